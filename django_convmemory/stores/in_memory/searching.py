"""Reading the index of recall, the messages that are not indexed yet, and the messages that a search has found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_convmemory.core import indexable
from django_convmemory.core.values import Searchable, SessionName, StoredMessage
from django_convmemory.stores.in_memory.rows import Session
from django_convmemory.stores.in_memory.state import State


def searchable(state: State, name: SessionName, *, before: int | None, epoch: int | None) -> Searchable | None:
    """Return the session as a search reads it: see :meth:`.Store.searchable`."""
    session = state.named(name)
    if session is None or epoch not in (None, session.epoch):
        return None
    return _searchable(session, session.extent.unindexed_after(before), before=before)


def searchable_of(state: State, alias: str, *, owner_id: Any, visitor: str, max_messages: int) -> list[Searchable]:
    """Return the sessions of an owner or a visitor as a search reads them: see :meth:`.Store.searchable_of`."""
    theirs = [session for session in state.of_scope(alias, owner_id=owner_id, visitor=visitor) if session.rows]
    theirs.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
    extents = [session.extent for session in theirs]
    chosen = indexable.newest(extents, max_messages=max_messages, max_sessions=len(extents))
    after = indexable.unindexed_after(chosen)
    results = [
        _searchable(session, after.get(session.id, session.counters.last_position)) for session in theirs[: len(chosen)]
    ]
    if len(chosen) < len(theirs):
        results[-1] = results[-1]._replace(complete=False)
    return results


def _searchable(session: Session, after: int, *, before: int | None = None) -> Searchable:
    """Return the session as a search reads it, with its messages after the position ``after`` if not indexed."""
    rows = [row.indexable for row in session.rows if row.position >= after]
    return indexable.searchable(session.extent, session.segments, rows, after=after, before=before)


def messages_at(state: State, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], StoredMessage]:
    """Return messages by the id of their session and their position: see :meth:`.Store.messages_at`."""
    return {
        (session_id, position): session.rows[position - 1].stored
        for session_id, epoch, position in places
        if (session := state.sessions.get(session_id)) is not None
        and session.epoch == epoch
        and 0 < position <= len(session.rows)
    }
