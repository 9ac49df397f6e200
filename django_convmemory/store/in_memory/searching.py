"""Reading the index of recall, the messages that are not indexed yet, and the messages that a search has found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_convmemory.rules import indexable
from django_convmemory.rules.indexable import IndexRead
from django_convmemory.rules.values import SessionName, StoredMessage
from django_convmemory.store.in_memory.rows import Session
from django_convmemory.store.in_memory.state import State


def read_index(state: State, name: SessionName, *, before: int | None, epoch: int | None) -> IndexRead | None:
    """Return what a search reads of the session: see :meth:`.Store.read_index`."""
    session = state.named(name)
    if session is None or epoch not in (None, session.epoch):
        return None
    return _read(session, session.extent.unindexed_after(before), before=before)


def read_indexes_of(state: State, alias: str, *, owner_id: Any, visitor: str, max_messages: int) -> list[IndexRead]:
    """Return what a search reads of the sessions of a person: see :meth:`.Store.read_indexes_of`."""
    theirs = [session for session in state.of_scope(alias, owner_id=owner_id, visitor=visitor) if session.rows]
    theirs.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
    extents = [session.extent for session in theirs]
    chosen = indexable.newest(extents, max_messages=max_messages, max_sessions=len(extents))
    after = indexable.unindexed_after(chosen)
    results = [
        _read(session, after.get(session.id, session.counters.last_position)) for session in theirs[: len(chosen)]
    ]
    if len(chosen) < len(theirs):
        results[-1] = results[-1]._replace(others=True)
    return results


def _read(session: Session, after: int, *, before: int | None = None) -> IndexRead:
    rows = [row.indexable for row in session.rows if row.position >= after]
    return IndexRead(session.extent, list(session.segments), rows, after, before)


def messages_at(state: State, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], StoredMessage]:
    """Return messages by the id of their session and their position: see :meth:`.Store.messages_at`."""
    return {
        (session_id, position): session.rows[position - 1].stored
        for session_id, epoch, position in places
        if (session := state.sessions.get(session_id)) is not None
        and session.epoch == epoch
        and 0 < position <= len(session.rows)
    }
