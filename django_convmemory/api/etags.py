"""Entity tags of a session. Every change of the session changes its tag, so a client can ask whether it has changed.

A tag is ``"<content>-<details>-<rest>"``. The first number is raised when messages are added, removed or redacted: it
is the revision of the session. The second is raised when the title, metadata, a flag or the owner is changed. The rest
changes with everything else that a response shows: folds, pauses, what is indexed, because a context may quote more
then, a title that the site sets by itself, and the configuration of the memory.

``If-None-Match`` compares the whole tag. ``If-Match`` compares the first number, and for a change of the session itself
the first two: what a client has read is the same after a fold. So all tags of a session begin with the two.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import zlib
from typing import Any

from django.utils.http import parse_etags, quote_etag

from django_convmemory import models
from django_convmemory.api import conf
from django_convmemory.api.problems import Problem
from django_convmemory.exceptions import StaleRevision
from django_convmemory.operations.handles import ConversationMemory

# The form of ``If-Match`` (RFC 9110): "*", or one entity tag or several. The schema has it too.
IF_MATCH = r'^(?:\*|(?:W/)?"[!#-~]*"(?:[ \t]*,[ \t]*(?:W/)?"[!#-~]*")*)$'


def of(session: models.Session, memory: ConversationMemory) -> str:
    """Return the tag of a session's state. ``session`` must have been read ``with_clock``."""
    rest = zlib.crc32(repr([getattr(session, name) for name in _REST]).encode("utf-8", "surrogatepass"))
    return quote_etag(f"{_beginning(session)}{_configuration(memory) ^ rest:08x}")


# What a response shows, and the two numbers do not count.
_REST = (
    *("state", "pause", "title", "metadata", "indexed_position", "forked_from_id", "last_version"),
    *("current_version", "covered_position", "due_since", "attempts", "next_attempt_at", "last_error"),
)


def _beginning(session: models.Session) -> str:
    return f"{session.revision}-{session.details}-"


@functools.lru_cache(maxsize=256)
def _configuration(memory: ConversationMemory) -> int:
    configuration = (memory.strategy, memory.options, memory.counter_name)
    return zlib.crc32(repr(configuration).encode())


def of_messages(session: models.Session) -> str:
    """Return the tag of the session's list of messages. ``If-Match`` takes it too."""
    return quote_etag(f"{_beginning(session)}m{conf.limits().default_page_size}")


def of_content(content: Any) -> str:
    """Return the tag of a response with this content, for a list that no revision counts."""
    return quote_etag(hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:32])


def matches(header: str | None, tag: str) -> bool:
    """Return whether ``If-None-Match`` names the tag, by the weak comparison of RFC 9110."""
    tags = parse_etags(header or "")
    return tags == ["*"] or tag in {etag.removeprefix("W/") for etag in tags}


def require_header(header: str | None) -> None:
    """Raise a 428 without ``If-Match``: a retry could delete what came after the first try."""
    if not header or not header.strip():
        detail = 'If-Match is missing. Send the ETag of the session or of its context, or "*" for any state.'
        raise Problem(428, "precondition_required", detail)


def require_match(header: str, session: models.Session, *, details: bool) -> None:
    """Raise a 412 unless ``If-Match`` names the revision of the session or is ``*``.

    With ``details``, the second number is compared too. A tag that a proxy has made weak still names both. Raises a 428
    for an empty header, and a 400 for a header that is not of this form.
    """
    require_header(header)
    header = header.strip()
    if not re.fullmatch(IF_MATCH, header):
        raise Problem(
            400, "invalid_etag", 'If-Match must be an ETag exactly as the server sent it, with its quotes, or "*".'
        )
    if header == "*":
        return
    beginning = _beginning(session) if details else f"{session.revision}-"
    if not any(tag.removeprefix("W/").startswith(f'"{beginning}') for tag in parse_etags(header)):
        raise stale()


def stale() -> StaleRevision:
    """Return the error of a request whose ``If-Match`` names an earlier revision."""
    return StaleRevision(
        "The session has changed since this ETag. Read the session again before you repeat the request."
    )
