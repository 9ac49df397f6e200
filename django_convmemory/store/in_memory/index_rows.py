"""The index of recall: adding segments, and removing from them what is removed from the messages."""

from __future__ import annotations

from collections.abc import Sequence

from django_convmemory.rules import segments
from django_convmemory.rules.indexable import Unindexed
from django_convmemory.rules.segments import Segment
from django_convmemory.store.in_memory.rows import Session
from django_convmemory.store.in_memory.state import State


def unindexed(state: State, session_id: int, *, limit: int) -> Unindexed | None:
    """Return the next messages to index: see :meth:`.Store.unindexed`."""
    session = state.sessions.get(session_id)
    if session is None or session.indexed_position >= len(session.rows):
        return None
    indexed = session.indexed_position
    return Unindexed(
        epoch=session.epoch,
        indexed_position=indexed,
        last_position=len(session.rows),
        last=session.segments[-1] if session.segments else None,
        previous=session.rows[indexed - 1].created_at if indexed else None,
        messages=[row.indexable for row in session.rows[indexed : indexed + limit]],
    )


def add(state: State, session_id: int, read: Unindexed, new: Sequence[Segment]) -> bool:
    """Store the segments ``new`` if the session is as it was read: see :meth:`.Store.add_segments`."""
    session = state.sessions.get(session_id)
    if session is None or (session.epoch, session.indexed_position) != (read.epoch, read.indexed_position):
        return False
    if session.segments and session.segments[-1].first == new[0].first:
        session.segments.pop()
    session.segments += new
    return True


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
