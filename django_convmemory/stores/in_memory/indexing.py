"""The index of recall: adding messages, and removing from it what is removed from the messages."""

from __future__ import annotations

from django_convmemory.core import indexable
from django_convmemory.core.recall import segments
from django_convmemory.stores.in_memory.rows import Session
from django_convmemory.stores.in_memory.state import State


def index(state: State, session_id: int, *, limit: int) -> int:
    """Index the next messages: see :meth:`.Store.index`."""
    session = state.sessions.get(session_id)
    if session is None:
        return 0
    indexed = session.indexed_position
    end = min(session.counters.newest_position - 1, indexed + limit)
    previous = session.rows[indexed - 1].created_at if indexed else None
    documents = indexable.portion((row.indexable for row in session.rows[indexed:end]), previous)
    if documents:
        last = session.segments.pop() if session.segments else None
        new = segments.extended(last, indexed + 1, documents)
        if last is not None and new[0].first != last.first:
            session.segments.append(last)
        session.segments += new
    return len(documents)


def strike(session: Session, position: int) -> None:
    """Remove the words of the message at ``position`` from the index."""
    session.segments = [
        segments.struck(segment, position) if segment.first <= position <= segment.last else segment
        for segment in session.segments
    ]


def cut(session: Session, after: int) -> None:
    """Remove the messages after the position ``after`` from the index."""
    session.segments = [segment for segment in session.segments if segment.first <= after]
    if session.indexed_position > after:
        session.segments[-1] = segments.trimmed(session.segments[-1], after)
