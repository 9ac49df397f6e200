"""Stored messages as the index of recall takes them, and a session as a search reads it. Both stores share this."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from django_convmemory.core.recall import segments
from django_convmemory.core.recall.documents import MAX_CHARACTERS, document
from django_convmemory.core.recall.segments import Document, Segment
from django_convmemory.core.values import Searchable, SessionName
from django_convmemory.messages import ChatMessage

# A search reads so many messages that are not indexed yet, the newest ones.
MOST_UNINDEXED = 512
# In characters of text. One transaction writes the segments of so much, and a little more.
_PORTION_SIZE = 500_000
# In characters. A search reads so much of the messages that are not indexed yet, the newest ones.
_MOST_READ = 500_000


class Indexable(NamedTuple):
    """A stored message, as far as the index needs it. ``whole``: nothing that is indexed was left out."""

    position: int
    created_at: dt.datetime
    message: ChatMessage
    redacted: bool
    whole: bool = True


def documents(messages: Iterable[Indexable], previous: dt.datetime | None) -> Iterator[Document]:
    """Yield the documents of neighbouring ``messages``. ``previous`` is the time of the message before them."""
    for stored in messages:
        terms = document(stored.message, redacted=stored.redacted)
        yield Document(terms, segments.begins_sitting(stored.created_at, previous))
        previous = stored.created_at


def portion(messages: Iterable[Indexable], previous: dt.datetime | None) -> list[Document]:
    """Return the documents of ``messages`` that one transaction can write: all of them, or as many as its size allows.

    What is not needed of ``messages`` is not read.
    """
    return list(documents(_first_text(messages), previous))


def _first_text(messages: Iterable[Indexable]) -> Iterator[Indexable]:
    size = 0
    for stored in messages:
        yield stored
        size += min(len(stored.message.text), MAX_CHARACTERS)
        if size >= _PORTION_SIZE:
            return


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


def searchable(
    extent: Extent,
    stored: Sequence[Segment],
    messages: Iterable[Indexable],
    *,
    after: int,
    before: int | None = None,
) -> Searchable:
    """Return a session as a search reads it, from its segments and its messages after the position ``after``.

    Both are in order. The message at ``after`` may be among them, for its time.
    """
    end, indexed = extent.end(before), extent.indexed_position
    known = [segment for segment in stored if segment.first <= end]
    if known and known[-1].last > end:
        known[-1] = segments.trimmed(known[-1], end)
    messages = list(messages)
    unindexed = _newest_text([each for each in messages if max(after, indexed) < each.position <= end])
    if unindexed:
        first = unindexed[0].position
        last, previous = None, None
        # If messages are left out before them, a sitting begins: the last message of the index is no neighbour.
        if first == indexed + 1:
            last = known.pop() if known else None
            previous = next((each.created_at for each in messages if each.position == indexed), None)
        more = segments.extended(last, first, list(documents(unindexed, previous)))
        known += more if last is None or more[0].first == last.first else [last, *more]
    left = max(0, end - indexed)
    complete = len(unindexed) >= left and all(each.whole for each in unindexed)
    return Searchable(extent.session_id, extent.name, extent.epoch, known, complete, left)


def _newest_text(messages: Sequence[Indexable]) -> Sequence[Indexable]:
    """Return the last of ``messages``, as many as have at most ``_MOST_READ`` characters, and the very last one."""
    left = _MOST_READ
    for index in reversed(range(len(messages))):
        left -= min(len(messages[index].message.text), MAX_CHARACTERS)
        if left < 0 and index < len(messages) - 1:
            return messages[index + 1 :]
    return messages
