"""The index of recall: adding messages to it, and reading it together with the messages that it does not have yet.

A session is indexed before its messages are folded, so an outage of the model leaves nothing unindexed.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from django_convmemory.rules import segments
from django_convmemory.rules.indexable import MAX_CHARACTERS, Indexable, IndexRead
from django_convmemory.rules.segments import Document, Segment
from django_convmemory.rules.values import SessionName
from django_convmemory.search.documents import document
from django_convmemory.store.either import Store

logger = logging.getLogger(__name__)

# What reading a segment raises whose text is not in the form that rules.segments defines.
DAMAGE = (ValueError, LookupError)
# In seconds. A longer index is finished by the next run.
LONGEST = 30.0
# How often a session is read again because others change it.
_TRIES = 3
# In characters of text. One transaction writes the segments of so much, and a little more.
_PORTION_SIZE = 500_000
# In characters. A search reads so much of the messages that are not indexed yet, the newest ones.
_MOST_READ = 500_000


class Indexed(NamedTuple):
    """How many messages were added to the index of a session, and whether there are ``more`` to add."""

    messages: int
    more: bool


class Searchable(NamedTuple):
    """A session as a search sees it.

    - ``segments``: its index, in order. The last ones may be made from messages that are not indexed yet.
    - ``complete``: False if messages were left out: of those that are not indexed only the newest 512 are read, none of
      them with a large image, and of the sessions of a person only the newest ones.
    - ``unindexed``: how many of its messages are not indexed, whether or not they are read.
    """

    session_id: int
    name: SessionName
    epoch: int
    segments: Sequence[Segment]
    complete: bool
    unindexed: int = 0


# Adding.


def catch_up(store: Store, session_id: int, *, longest: float = LONGEST) -> int:
    """Index the messages of the session that are not indexed, for ``longest`` seconds. Return how many it indexed.

    It needs no lease: if another process indexes the session at the same time, one of the two changes nothing.
    Commands pass ``math.inf``, because no later run would index the rest.
    """
    until = time.monotonic() + longest
    total, more = index(store, session_id)
    while more and time.monotonic() < until:
        count, more = index(store, session_id)
        total += count
    return total


def index(store: Store, session_id: int, *, limit: int = 1_000) -> Indexed:
    """Index the next messages, at most ``limit``, or fewer if one transaction could not write so much.

    Everything is read and computed before the transaction, which only writes. If other processes change the session all
    the time, nothing is indexed, and there are no ``more``.
    """
    for _ in range(_TRIES):
        unindexed = store.unindexed(session_id, limit=limit)
        if unindexed is None:
            break
        indexed, last = unindexed.indexed_position, unindexed.last
        if (last.last if last else 0) != indexed:
            warn_of_damage(session_id)  # Folding goes on.
            break
        new = portion(unindexed.messages, unindexed.previous)
        if new and store.add_segments(session_id, unindexed, segments.extended(last, indexed + 1, new)):
            return Indexed(len(new), more=indexed + len(new) < unindexed.last_position)
    return Indexed(0, more=False)


def warn_of_damage(session_id: int) -> None:
    """Log that the index of a session is damaged, so that search does not find all of its messages."""
    logger.warning(
        "The index of session %s is damaged, so search does not find all of its messages. Rebuild it: "
        "manage.py convmemory_check --reindex.",
        session_id,
    )


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


# Reading.


def searchable(
    store: Store, name: SessionName, *, before: int | None = None, epoch: int | None = None
) -> Searchable | None:
    """Return the session as it is at one moment, with the messages before ``before`` only.

    None: there is no such session, or it is at another epoch than ``epoch``.
    """
    read = store.read_index(name, before=before, epoch=epoch)
    return None if read is None else _searchable(read)


def searchable_of(
    store: Store, alias: str, *, owner_id: Any, visitor: str, max_messages: int = 100_000
) -> list[Searchable]:
    """Return the sessions of an owner or a visitor, the last changed first.

    They are whole sessions with at most ``max_messages`` messages together, but always the first one. If others are
    left out, the last one is not complete. Each session is as it is at one moment, the same for all.
    """
    reads = store.read_indexes_of(alias, owner_id=owner_id, visitor=visitor, max_messages=max_messages)
    return list(map(_searchable, reads))


def searchable_among(store: Store, alias: str, sessions: Any) -> list[Searchable]:
    """Return the sessions of ``alias`` in a query of ``Session`` rows, as :func:`searchable_of` does.

    Raises :class:`~django_convmemory.exceptions.InvalidSession` if the store has no rows.
    """
    return list(map(_searchable, store.read_indexes_among(alias, sessions)))


def _searchable(read: IndexRead) -> Searchable:
    try:
        return _joined(read)
    except DAMAGE:
        extent = read.extent
        warn_of_damage(extent.session_id)
        return Searchable(extent.session_id, extent.name, extent.epoch, [], complete=False)


def _joined(read: IndexRead) -> Searchable:
    """Return the index that was read, and after it one of the messages that are not indexed yet."""
    extent, end, indexed = read.extent, read.extent.end(read.before), read.extent.indexed_position
    known = [segment for segment in read.segments if segment.first <= end]
    if known and known[-1].last > end:
        known[-1] = segments.trimmed(known[-1], end)
    unindexed = _newest_text([each for each in read.messages if max(read.after, indexed) < each.position <= end])
    if unindexed:
        first = unindexed[0].position
        last, previous = None, None
        # If messages are left out before them, a sitting begins: the last message of the index is no neighbour.
        if first == indexed + 1:
            last = known.pop() if known else None
            previous = next((each.created_at for each in read.messages if each.position == indexed), None)
        more = segments.extended(last, first, list(documents(unindexed, previous)))
        known += more if last is None or more[0].first == last.first else [last, *more]
    left = max(0, end - indexed)
    complete = len(unindexed) >= left and all(each.whole for each in unindexed) and not read.others
    return Searchable(extent.session_id, extent.name, extent.epoch, known, complete, left)


def _newest_text(messages: Sequence[Indexable]) -> Sequence[Indexable]:
    """Return the last of ``messages``, as many as have at most ``_MOST_READ`` characters, and the very last one."""
    left = _MOST_READ
    for index in reversed(range(len(messages))):
        left -= min(len(messages[index].message.text), MAX_CHARACTERS)
        if left < 0 and index < len(messages) - 1:
            return messages[index + 1 :]
    return messages
