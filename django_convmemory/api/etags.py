"""Entity tags: a session's revision, which every change raises, so that a page can ask whether anything is new.

A tag is ``"<revision>-<the rest>"``. The rest tells apart what changes without the row: that a lease has ended, and how
the memory is configured.
"""

from __future__ import annotations

import functools
import zlib

from django.utils.http import parse_etags, quote_etag

from django_convmemory import models
from django_convmemory.api.problems import Problem
from django_convmemory.conversation import ConversationMemory


def of(session: models.Session, memory: ConversationMemory) -> str:
    """Return the tag of a session's state; ``session`` must have been read ``with_clock``."""
    # A site may change title and metadata by itself.
    own = zlib.crc32(repr((session.title, session.metadata)).encode("utf-8", "surrogatepass"))
    return quote_etag(f"{session.revision}-{session.state[0]}{_configured(memory) ^ own:08x}")


@functools.lru_cache(maxsize=256)
def _configured(memory: ConversationMemory) -> int:
    said = (memory.strategy, memory.options, memory.max_context_tokens, type(memory.counter).__name__)
    return zlib.crc32(repr(said).encode())


def matches(header: str | None, tag: str) -> bool:
    """Whether ``If-None-Match`` names the tag. Weakly, as RFC 9110 has it."""
    if not header:
        return False
    given = parse_etags(header)
    return given == ["*"] or tag in {one.removeprefix("W/") for one in given}


def required(header: str | None) -> None:
    """Raise a 428 where there is no ``If-Match``: without it a retry could delete what came after the first try."""
    if not header or not header.strip():
        raise Problem(
            428,
            "precondition_required",
            'The If-Match header is missing. Send the ETag of the session or of its context, or "*" for any state.',
        )


def require(header: str, revision: int) -> None:
    """Raise a 412 unless ``If-Match`` names this revision, or is ``*``.

    A tag that a proxy has made weak still names it. Raises a 428 for an empty header, and a 412 with a code of its own
    for one that names no tag.
    """
    required(header)
    if header.strip() == "*":
        return
    given = parse_etags(header)
    if not given:
        raise Problem(
            412, "invalid_etag", 'If-Match must be an ETag exactly as the server sent it, with its quotes, or "*".'
        )
    named = {tag.removeprefix("W/").strip('"').partition("-")[0] for tag in given}
    if str(revision) not in named:
        raise Problem(
            412,
            "stale_revision",
            "The session has changed since this ETag. Read the session again before you repeat the request.",
        )
