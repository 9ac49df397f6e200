"""What a store reads for the index of recall: stored messages, and how far a session and its index reach."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_convmemory.messages import ChatMessage
from django_convmemory.rules.segments import Segment
from django_convmemory.rules.values import SessionName

# A search reads so many messages that are not indexed yet, the newest ones.
MOST_UNINDEXED = 512
# So many characters of a text are indexed.
MAX_CHARACTERS = 50_000


class Indexable(NamedTuple):
    """A stored message, as far as the index needs it. ``whole``: nothing that is indexed was left out."""

    position: int
    created_at: dt.datetime
    message: ChatMessage
    redacted: bool
    whole: bool = True


class Unindexed(NamedTuple):
    """The next messages of a session that are not indexed, and what the index is extended from.

    ``last`` is the last segment, or None if there is none. ``previous`` is the time of the message before the first of
    ``messages``, which may be read as they are taken.
    """

    epoch: int
    indexed_position: int
    last_position: int
    last: Segment | None
    previous: dt.datetime | None
    messages: Iterable[Indexable]


class Extent(NamedTuple):
    """A session as a search finds it: how far its messages and its index reach."""

    session_id: int
    name: SessionName
    epoch: int
    indexed_position: int
    last_position: int

    def unindexed_after(self, before: int | None = None, limit: int = MOST_UNINDEXED) -> int:
        """Return the position after which a search reads messages that are not indexed, at most ``limit``."""
        return max(self.indexed_position, self.end(before) - limit)

    def end(self, before: int | None) -> int:
        """Return the last position that is searched."""
        return self.last_position if before is None else min(self.last_position, before - 1)


class IndexRead(NamedTuple):
    """A session's index as it is at one moment, in order, and its messages after the position ``after``, in order.

    The message at ``after`` may be among them, for its time. Only positions below ``before`` are searched. ``others``:
    it is the last one of several sessions, and others were left out.
    """

    extent: Extent
    segments: Sequence[Segment]
    messages: Sequence[Indexable]
    after: int
    before: int | None = None
    others: bool = False


def newest(extents: Sequence[Extent], *, max_messages: int, max_sessions: int) -> list[Extent]:
    """Return the first of ``extents`` that have at most ``max_messages`` together, and the first one in any case."""
    chosen: list[Extent] = []
    total = 0
    for extent in extents[:max_sessions]:
        total += extent.last_position
        if chosen and total > max_messages:
            break
        chosen.append(extent)
    return chosen


def unindexed_after(extents: Iterable[Extent]) -> dict[int, int]:
    """Return for sessions the position after which a search reads messages that are not indexed.

    They are ``MOST_UNINDEXED`` messages in all, those of the first sessions. Sessions of which none is read are left
    out.
    """
    after: dict[int, int] = {}
    left = MOST_UNINDEXED
    for extent in extents:
        position = extent.unindexed_after(limit=left)
        if position < extent.last_position:
            after[extent.session_id] = position
            left -= extent.last_position - position
    return after
