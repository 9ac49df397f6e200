"""The rows of the index of recall: writing them, and removing from them what is removed from the messages.

The index covers the messages from the first one through the session's ``indexed_position``. Two rules keep both in
step:

- Whoever removes or changes messages locks the session's row, raises its epoch, and changes the segments in the same
  transaction.
- Whoever adds segments reads without a lock, and writes if the epoch and the indexed position are still those that were
  read: the write begins with an UPDATE of the session's row that compares both.

So a redaction and the indexing of the same message come one after the other. If the redaction commits first, the UPDATE
waits for its lock, finds another epoch, and changes nothing: neither a new segment nor a longer last one with the
removed words is written. If the index commits first, the redaction has waited for the lock, and finds the words in the
segment. The same holds for ``truncate`` and ``clear``, also if other messages stand at the same positions by then.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from django.db.models import F, QuerySet
from django.db.models.functions import Left

from django_convmemory import models
from django_convmemory.rules import segments
from django_convmemory.rules.segments import MAX_CHARACTERS, VERSION, Indexable, Segment, Unindexed
from django_convmemory.store import columns, compiled, transactions
from django_convmemory.store.compiled import Slot
from django_convmemory.store.database import Database

# How often the end of an index is read again because others begin it.
_TRIES = 3
# The number of messages that one statement reads.
_PAGE = 100
# The number of segments that one statement writes, of 64 KB at most. MariaDB takes 16 MiB in a statement by default.
_ROWS_PER_INSERT = 32
# By both columns of the key: for the second one alone, the database may scan the whole table.
_NEWEST_FIRST = ("-session_id", "-first")
# One character more than is indexed, so that a text that was cut can be told from a whole one.
CONTENT = Left("content", MAX_CHARACTERS + 1)
_SESSION_NAMES = ("epoch", "indexed_position", "last_position")


class Indexing(Database):
    """Reads what is not indexed, and adds segments to the index."""

    def unindexed(self, session_id: int, *, limit: int) -> Unindexed | None:
        """Return the next messages to index, at most ``limit``. None: there are none, or no such session.

        An index of an older version is removed before, so that all messages are indexed anew.
        """
        using = self.using
        end = _end(using, session_id)
        if end is not None and end.last is not None and end.last.version < VERSION:
            reset(using, session_id)
            end = _end(using, session_id)
        if end is not None and end.last is not None and end.last.version > VERSION:
            return None
        if end is None or end.indexed_position >= end.last_position:
            return None
        indexed = end.indexed_position
        messages = messages_of(using, session_id, max(1, indexed), min(end.last_position, indexed + limit))
        # The last message that is indexed, for its time.
        previous = next(messages, None) if indexed else None
        return end._replace(previous=previous.created_at if previous else None, messages=messages)

    def add_segments(self, session_id: int, unindexed: Unindexed, new: Sequence[Segment]) -> bool:
        """Store the segments ``new`` if the session is as it was read. Return whether it was.

        The first one takes the place of the last segment if both begin at the same position.
        """
        using = self.using
        reached = new[-1].last
        first = _advancing(using).bind(
            session_id=session_id, epoch=unindexed.epoch, indexed_position=unindexed.indexed_position, reached=reached
        )
        updates: list[compiled.Bound] = []
        if unindexed.last is not None and new[0].first == unindexed.last.first:
            updates.append(_replacing(using).bind(session_id=session_id, **new[0]._asdict()))
            new = new[1:]
        rows = [models.Segment(session_id=session_id, **segment._asdict()) for segment in new]

        def happened() -> bool:
            sessions = models.Session.objects.using(using).filter(pk=session_id, epoch=unindexed.epoch)
            return sessions.filter(indexed_position__gte=reached).exists()

        work = functools.partial(compiled.run_all, using, first, updates, rows)
        return transactions.run(using, work, savepoint=True, happened=happened)


def _end(using: str, session_id: int) -> Unindexed | None:
    """Read the end of the index of a session, without messages. None: there is no such session."""
    end = None
    for _ in range(_TRIES):
        for epoch, indexed, position, *last in _last_segment(using).read(session_id=session_id):
            return Unindexed(epoch, indexed, position, Segment._make(last))
        rows = _session(using).read(session_id=session_id)
        end = Unindexed(*rows[0]) if rows else None
        if end is None or not end.indexed_position:
            break
        # Another process may have begun the index between the two statements.
    return end


@compiled.once
def _last_segment(using: str) -> compiled.Selection:
    rows = _rows(using, Slot("session_id")).order_by(*_NEWEST_FIRST)
    return compiled.selection(rows[:1], *(f"session__{name}" for name in _SESSION_NAMES), *Segment._fields)


@compiled.once
def _session(using: str) -> compiled.Selection:
    rows = models.Session.objects.using(using).filter(pk=Slot("session_id"))
    return compiled.selection(rows, *_SESSION_NAMES)


@compiled.once
def _page(using: str) -> compiled.Selection:
    rows = models.Message.objects.using(using).filter(session_id=Slot("session_id"))
    rows = rows.filter(position__gte=Slot("first"), position__lte=Slot("last")).order_by("session_id", "position")
    return compiled.selection(rows, *(CONTENT if name == "content" else name for name in columns.INDEXED_NAMES))


def messages_of(using: str, session_id: int, first: int, last: int) -> Iterator[Indexable]:
    """Yield the messages from ``first`` through ``last``, read in pages. End where one is missing."""
    while first <= last:
        page = _page(using).read(session_id=session_id, first=first, last=min(last, first + _PAGE - 1))
        stored = list(map(columns.indexable, page))
        for each in stored:
            if each.position != first:
                return
            yield each
            first += 1
        if not stored:
            return


@compiled.once
def _advancing(using: str) -> compiled.CompiledStatement:
    rows = models.Session.objects.using(using).filter(pk=Slot("session_id"), epoch=Slot("epoch"))
    unchanged = rows.filter(indexed_position=Slot("indexed_position"))
    return compiled.update(unchanged, indexed_position=Slot("reached"))


@compiled.once
def _replacing(using: str) -> compiled.CompiledStatement:
    """Return the statement that stores a segment in the place of the one that begins at the same position."""
    rows = _rows(using, Slot("session_id")).filter(first=Slot("first"))
    return compiled.update(rows, last=Slot("last"), data=Slot("data"))


def _rows(using: str, session_id: Any) -> QuerySet[models.Segment]:
    return models.Segment.objects.using(using).filter(session_id=session_id)


def _last(rows: QuerySet[models.Segment]) -> Segment | None:
    """Return the last segment of one session's ``rows``."""
    values = rows.order_by(*_NEWEST_FIRST).values_list(*Segment._fields).first()
    return Segment._make(values) if values else None


def insert(using: str, session_id: int, new: Sequence[Segment]) -> None:
    """Store new segments of a session whose row is locked."""
    rows = [models.Segment(session_id=session_id, **segment._asdict()) for segment in new]
    models.Segment.objects.using(using).bulk_create(rows, batch_size=_ROWS_PER_INSERT)


# Removing. The session's row is locked, and the caller sets its indexed_position, which these return. An index of
# another version cannot be changed, so all of it goes.


def strike(using: str, session_id: int, position: int, indexed: int) -> int:
    """Remove the words of the message at ``position``. The messages are indexed through ``indexed``."""
    if indexed >= position:
        segment = _last(transactions.latest(_rows(using, session_id).filter(first__lte=position)))
        if segment is not None and segment.last >= position:
            if segment.version != VERSION:
                delete(using, session_id)
                return 0
            _replacing(using).run(session_id=session_id, **segments.struck(segment, position)._asdict())
    return indexed


def cut(using: str, session_id: int, after: int, indexed: int) -> int:
    """Remove the messages after the position ``after``. The messages are indexed through ``indexed``."""
    if indexed <= after:
        return indexed
    rows = _rows(using, session_id)
    rows.filter(first__gt=after).delete()
    last = _last(transactions.latest(rows))
    if last is not None and last.last > after:
        if last.version != VERSION:
            delete(using, session_id)
            return 0
        _replacing(using).run(session_id=session_id, **segments.trimmed(last, after)._asdict())
    return after


def delete(using: str, session_id: int) -> None:
    """Remove the whole index of a session."""
    _rows(using, session_id).delete()


def reset(using: str, session_id: int) -> None:
    """Remove the whole index of a session, in a transaction of its own, so that it is rebuilt."""

    def work() -> None:
        # The epoch is raised: the segments that another process has read are not there any more.
        changes = {"indexed_position": 0, "epoch": F("epoch") + 1}
        if models.Session.objects.using(using).filter(pk=session_id).update(**changes):
            delete(using, session_id)

    # It does no harm to do it twice.
    transactions.run(using, work, savepoint=True, happened=lambda: False)


# Copying.


def copied(using: str, sessions: models.SessionQuerySet, at: int) -> tuple[list[Segment], int | None]:
    """Read the index of the one session in ``sessions`` through the position ``at``, and its epoch, for a fork.

    It is read before the transaction of the fork: this takes long for a long session, and statements that return large
    texts have no place where the session's row is locked. It is right for the fork as long as the epoch is the same.
    """
    rows = models.Segment.objects.using(using).filter(session_id=sessions.values("pk")[:1], first__lte=at)
    rows = rows.order_by("session_id", "first")
    found = list(rows.values_list("first", "last", "data", "session__epoch"))
    index = [Segment(first, last, data) for first, last, data, _ in found]
    if not index or index[-1].version != VERSION:
        return [], None
    return segments.through(index, at), found[0][-1]
