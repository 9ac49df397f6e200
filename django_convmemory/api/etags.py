"""Entity tags of a session. Every change of the session changes its tag, so a client can ask whether it has changed.

A tag is ``"<revision>-<rest>"``. The rest changes with six things that the revision does not count: the end of a
lease, a pause of the alias, a title or metadata that the site sets by itself, what is indexed, because a context may
quote more then, the deletion of the session that this one is a copy of, and the configuration of the memory.

``If-Match`` is compared by the revision alone, because the tags of a session and of its context share it. Django's own
conditional requests compare whole tags.
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
    pause: str | None = session.pause  # type: ignore[attr-defined]
    parts = (session.title, session.metadata, pause, session.indexed_position, session.forked_from_id)
    description = zlib.crc32(repr(parts).encode("utf-8", "surrogatepass"))
    return quote_etag(f"{session.revision}-{session.state[0]}{_configuration(memory) ^ description:08x}")


@functools.lru_cache(maxsize=256)
def _configuration(memory: ConversationMemory) -> int:
    configuration = (memory.strategy, memory.options, memory.counter_name)
    return zlib.crc32(repr(configuration).encode())


def of_messages(session: models.Session) -> str:
    """Return the tag of the session's list of messages. ``If-Match`` takes it too."""
    return quote_etag(f"{session.revision}-m{conf.limits().default_page_size}")


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
        raise Problem(
            428,
            "precondition_required",
            'The If-Match header is missing. Send the ETag of the session or of its context, or "*" for any state.',
        )


def require_match(header: str, revision: int) -> None:
    """Raise a 412 unless ``If-Match`` names this revision or is ``*``.

    A tag that a proxy has made weak still names its revision. Raises a 428 for an empty header, and a 400 for a header
    that is not of this form.
    """
    require_header(header)
    header = header.strip()
    if not re.fullmatch(IF_MATCH, header):
        raise Problem(
            400, "invalid_etag", 'If-Match must be an ETag exactly as the server sent it, with its quotes, or "*".'
        )
    if header == "*":
        return
    if str(revision) not in {tag.removeprefix("W/").strip('"').partition("-")[0] for tag in parse_etags(header)}:
        raise stale()


def stale() -> StaleRevision:
    """Return the error of a request whose ``If-Match`` names an earlier revision."""
    return StaleRevision(
        "The session has changed since this ETag. Read the session again before you repeat the request."
    )
