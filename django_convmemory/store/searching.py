"""Reading the index of recall, the messages that are not indexed yet, and the messages that a search has found.

A session is read in one statement, so that its segments, its other messages and its epoch are of one moment.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Sequence
from typing import Any

from django.db import connections
from django.db.models import BigIntegerField, ExpressionWrapper, F, Q, TextField, Value
from django.db.models.functions import Cast, Greatest, Least, Left

from django_convmemory import exceptions, models
from django_convmemory.rules import segments
from django_convmemory.rules.segments import MAX_CHARACTERS, MOST_UNINDEXED, Extent, IndexRead, Segment
from django_convmemory.rules.values import SessionName, StoredMessage
from django_convmemory.store import columns, database, index_rows

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


class Searching(database.Database):
    """Reads the index of sessions, and the messages that a search has found."""

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
        after = Greatest(F("indexed_position"), end - database.bigint(MOST_UNINDEXED), output_field=BigIntegerField())
        messages = messages.filter(position__gte=rows.values(after=after)[:1])
        if database.is_partitioned(connections[using]):
            # With a constant, the planner knows a long session, and would read all of it to find its end. In this order
            # it takes the index.
            messages = messages.order_by("session_id", "position")
        read = _Rows(messages, index, rows)
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


def _columns(**columns: Any) -> list[Any]:
    """Return the columns ``_NAMES`` of a table that has those in ``columns`` only."""
    return [columns.get(name, _NULL) for name in _NAMES]


# These queries are made once, because that takes Django longer than to filter them.
_MESSAGES = models.Message.objects.values_list(
    Value("message"),
    *({"content": index_rows.CONTENT, "wire": Left("wire", _LONGEST_WIRE + 1)}.get(name, name) for name in _NAMES),
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
    read = _Rows(
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


class _Rows:
    """What one statement returns: rows of ``_MESSAGES``, ``_SEGMENTS`` and ``_SESSIONS``."""

    def __init__(self, messages: Any, segments: Any, sessions: Any) -> None:
        # The messages come first: the database's values become those of Python by the fields of the first part.
        union = messages.union(segments, sessions, all=True)
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
