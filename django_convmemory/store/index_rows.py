"""The rows of the index of recall: writing and reading them, and removing from them what messages lose.

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

A search reads a session in one statement, so that its segments, its other messages and its epoch are of one moment.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import connections
from django.db.models import BigIntegerField, ExpressionWrapper, F, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast, Greatest, Least, Left

from django_convmemory import exceptions, models
from django_convmemory.rules import segments
from django_convmemory.rules.segments import MAX_CHARACTERS, VERSION, Extent, Indexable, IndexRead, Segment, Unindexed
from django_convmemory.rules.values import SessionName, StoredMessage
from django_convmemory.store import columns, compiled, database, transactions
from django_convmemory.store.compiled import Slot

# How often the end of an index is read again because others begin it.
_TRIES = 3
# The number of messages that one statement reads.
_PAGE = 100
# The number of segments that one statement writes, of 64 KB at most. MariaDB takes 16 MiB in a statement by default.
_ROWS_PER_INSERT = 32
# By both columns of the key: for the second one alone, the database may scan the whole table.
_NEWEST_FIRST = ("-session_id", "-first")
# One character more than is indexed, so that a text that was cut can be told from a whole one.
_TEXT = Left("content", MAX_CHARACTERS + 1)
_SESSION_NAMES = ("epoch", "indexed_position", "last_position")
# A search looks into so many sessions of a person at most. The statement names each of them.
_MOST_SESSIONS = 10_000
# In characters. A search reads a message without its wire form if that is longer, for example because it has an image.
_LONGEST_WIRE = 4 * MAX_CHARACTERS
# The columns of a row of the union, after the name of its table. Two more numbers follow.
_NAMES = ("session_id", *columns.INDEXED_NAMES)
_CONTENT, _WIRE = map(columns.INDEXED_NAMES.index, ("content", "wire"))
_NULL = Value(None, TextField())
# With a type: PostgreSQL takes a plain NULL for a text, and MariaDB makes decimals of the numbers of a union.
_NUMBER = Cast(Value(None), BigIntegerField())


class Indexing(database.Database):
    """Reads what is not indexed, adds segments to the index, and reads what a search needs."""

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

    def read_index(self, name: SessionName, *, before: int | None, epoch: int | None) -> IndexRead | None:
        """Return what a search reads of the session before the position ``before``, as it is at one moment.

        None: there is no such session, or it is at another epoch than ``epoch``.
        """
        using = self.using
        rows = _SESSIONS.using(using).named(name)
        if epoch is not None:
            rows = rows.filter(epoch=epoch)
        # Subqueries and not joins, and a range of positions: see ORMStore.history.
        session = database.id_of(rows)
        index = _SEGMENTS.using(using).filter(session_id=session)
        messages = _MESSAGES.using(using).filter(session_id=session)
        end: Any = F("last_position")
        if before is not None:
            end = Least(end, database.bigint(before - 1), output_field=BigIntegerField())
            index, messages = index.filter(first__lt=before), messages.filter(position__lt=before)
        # The arithmetic of Extent.unindexed_after().
        after = Greatest(
            F("indexed_position"), end - database.bigint(segments.MOST_UNINDEXED), output_field=BigIntegerField()
        )
        messages = messages.filter(position__gte=rows.values(after=after)[:1])
        if database.is_partitioned(connections[using]):
            # With a constant, the planner knows a long session, and would read all of it to find its end. In this order
            # it takes the index.
            messages = messages.order_by("session_id", "position")
        read = _Found(messages, index, rows)
        for session_id in read.sessions:
            return read.index(session_id, name, before=before)
        return None

    def read_indexes_of(self, alias: str, *, owner_id: Any, visitor: str, max_messages: int) -> list[IndexRead]:
        """Return what a search reads of the sessions of an owner or a visitor, the last changed first.

        They are whole sessions with at most ``max_messages`` messages together, but always the first one. Each is as it
        is at one moment, the same for all.
        """
        theirs = self._sessions.filter(alias=alias, owner_id=owner_id, visitor=visitor)
        return _read_indexes(self.using, theirs, max_messages=max_messages)

    def read_indexes_among(self, alias: str, sessions: models.SessionQuerySet, *, max_messages: int) -> list[IndexRead]:
        """Return what a search reads of the sessions of ``alias`` in a query, as :meth:`read_indexes_of` does.

        Raises :class:`~django_convmemory.exceptions.InvalidSession` if the store has no rows.
        """
        if getattr(sessions, "model", None) is not models.Session or sessions.query.is_sliced:
            raise exceptions.InvalidSession(
                "sessions must be a query of Session rows without a slice, such as Session.objects.filter(…)."
            )
        # A query may name its database, and have subqueries that another one could not run.
        using = sessions._db or self.using  # type: ignore[attr-defined]
        # By a subquery, because a query with a join has a session several times, and a union takes no filter.
        chosen = sessions.using(using).order_by().values("pk")
        rows = models.Session.objects.using(using).filter(alias=alias, pk__in=chosen)
        return _read_indexes(using, rows, max_messages=max_messages)

    def messages_at(self, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], StoredMessage]:
        """Return messages by the id of their session and their position.

        A place is the id of a session, its epoch, and a position. There is no message for a session that is at another
        epoch by now.
        """
        positions: dict[int, list[int]] = collections.defaultdict(list)
        for session_id, _, position in places:
            positions[session_id].append(position)
        if not positions:
            return {}
        conditions = [Q(session_id=pk, position__in=numbers) for pk, numbers in positions.items()]
        rows = _PLACED.using(self.using).filter(functools.reduce(operator.or_, conditions))
        wanted = set(places)
        return {
            (session_id, position): columns.stored_message(position, *stored)
            for session_id, epoch, position, *stored in rows
            if (session_id, epoch, position) in wanted
        }


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
    return compiled.selection(rows, *(_TEXT if name == "content" else name for name in columns.INDEXED_NAMES))


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


# Searching.


def _columns(**columns: Any) -> list[Any]:
    """Return the columns ``_NAMES`` of a table that has those in ``columns`` only."""
    return [columns.get(name, _NULL) for name in _NAMES]


# These queries are made once, because that takes Django longer than to filter them.
_MESSAGES = models.Message.objects.values_list(
    Value("message"),
    *({"content": _TEXT, "wire": Left("wire", _LONGEST_WIRE + 1)}.get(name, name) for name in _NAMES),
    *(_NUMBER, _NUMBER),
)
_SEGMENTS = models.Segment.objects.values_list(
    Value("segment"), *_columns(session_id="session_id", position="first", content="data"), "last", _NUMBER
)
_SESSIONS: Any = models.Session.objects.values_list(
    Value("session"), *_columns(session_id="pk", position="epoch"), "indexed_position", "last_position"
)
# JSON comes as text. Otherwise Django would call the field for each value, also for NULL.
_PLACED = models.Message.objects.values_list(
    *("session_id", "session__epoch"),
    *(ExpressionWrapper(F(name), TextField()) if name in columns.JSON_NAMES else name for name in columns.STORED_NAMES),
)


def _read_indexes(using: str, sessions: models.SessionQuerySet, *, max_messages: int) -> list[IndexRead]:
    """Return what a search reads of these sessions: see :meth:`.ORMStore.read_indexes_among`.

    A first statement chooses the sessions, and a second one reads all of them as they are at one moment. If the index
    of a session has grown in between, fewer of the messages that the second one returns are needed.
    """
    newest_first = sessions.using(using).filter(last_position__gt=0).order_by("-updated_at", "-pk")
    names = ("pk", "alias", "key", "owner_id", "visitor", "epoch", "indexed_position", "last_position")
    found = [
        Extent(pk, SessionName(alias, key, owner_id, visitor, pk), *rest)
        for pk, alias, key, owner_id, visitor, *rest in newest_first.values_list(*names)[: _MOST_SESSIONS + 1]
    ]
    chosen = segments.newest_sessions(found, max_messages=max_messages, max_sessions=_MOST_SESSIONS)
    if not chosen:
        return []
    after = segments.unindexed_after(chosen)
    ids = [extent.session_id for extent in chosen]
    unindexed = [Q(session_id=pk, position__gte=after[pk]) for pk in ids if pk in after]
    messages = _MESSAGES.using(using)
    read = _Found(
        messages.filter(functools.reduce(operator.or_, unindexed)) if unindexed else messages.none(),
        _SEGMENTS.using(using).filter(session_id__in=ids),
        _SESSIONS.using(using).filter(pk__in=ids),
    )
    results = [
        read.index(pk, extent.name, after=after.get(pk))
        for extent in chosen
        if (pk := extent.session_id) in read.sessions
    ]
    if results and len(chosen) < len(found):
        results[-1] = results[-1]._replace(others=True)
    return results


class _Found:
    """What one statement returns: rows of ``_MESSAGES``, ``_SEGMENTS`` and ``_SESSIONS``."""

    def __init__(self, messages: Any, index: Any, sessions: Any) -> None:
        # The messages come first: the database's values become those of Python by the fields of the first part.
        union = messages.union(index, sessions, all=True)
        # The epoch, the indexed position and the last position of each session.
        self.sessions: dict[int, tuple[int, int, int]] = {}
        self._segments: dict[int, list[Segment]] = collections.defaultdict(list)
        self._messages: dict[int, list[Sequence[Any]]] = collections.defaultdict(list)
        for table, session_id, *values, second, third in union:
            if table == "message":
                self._messages[session_id].append(values)
            elif table == "segment":
                self._segments[session_id].append(Segment(values[0], second, values[_CONTENT]))
            else:
                self.sessions[session_id] = (values[0], second, third)

    def index(
        self, session_id: int, name: SessionName, *, after: int | None = None, before: int | None = None
    ) -> IndexRead:
        """Return a session. Of its messages that are not indexed, those after the position ``after`` were read."""
        extent = Extent(session_id, name, *self.sessions[session_id])
        messages = [
            columns.indexable(values, whole=len(values[_WIRE] or "") <= _LONGEST_WIRE)
            for values in sorted(self._messages[session_id], key=operator.itemgetter(0))
        ]
        after = extent.unindexed_after(before) if after is None else after
        return IndexRead(extent, sorted(self._segments[session_id]), messages, after, before)
