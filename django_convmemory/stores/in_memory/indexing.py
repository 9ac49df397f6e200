"""The index of recall: adding messages, and removing from it what is removed from the messages."""

from __future__ import annotations

from django_convmemory.core import indexable
from django_convmemory.core.recall import segments
from django_convmemory.core.values import Indexed
from django_convmemory.stores.in_memory.rows import Session
from django_convmemory.stores.in_memory.state import State


def index(state: State, session_id: int, *, limit: int) -> Indexed:
    """Index the next messages: see :meth:`.Store.index`."""
    session = state.sessions.get(session_id)
    if session is None:
        return Indexed(0, more=False)
    indexed = session.indexed_position
    previous = session.rows[indexed - 1].created_at if indexed else None
    rows = session.rows[indexed : indexed + limit]
    documents = indexable.portion((row.indexable for row in rows), previous)
    if documents:
        last = session.segments.pop() if session.segments else None
        new = segments.extended(last, indexed + 1, documents)
        if last is not None and new[0].first != last.first:
            session.segments.append(last)
        session.segments += new
    return Indexed(len(documents), more=indexed + len(documents) < len(session.rows))


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
