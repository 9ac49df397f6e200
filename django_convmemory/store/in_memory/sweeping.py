"""Finding the sessions that a worker should fold, and those whose summary should be rebuilt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django_convmemory.rules.values import DueRule
from django_convmemory.store.in_memory.rows import Session
from django_convmemory.store.in_memory.state import State


def due(
    state: State, alias: str, *, limit: int, hint_age: float, fewest_attempts: bool, unindexed: int | None
) -> list[int]:
    """Mark due sessions as sent, and return their ids: see :meth:`.Store.sweep`."""
    now = state.clock()
    order = sorted(
        (session.attempts if fewest_attempts else 0, session.due_since or 0.0, session.id)
        for session in _free(state, alias, now, unindexed=unindexed)
        if session.hinted_at is None
        or session.hinted_at <= now - hint_age
        or (session.lease_token and session.lease_expires_at > session.hinted_at)
    )
    ids = [session_id for *_, session_id in order[:limit]]
    for session_id in ids:
        state.sessions[session_id].hinted_at = now
    return ids


def _free(state: State, alias: str, now: float, *, unindexed: int | None = None) -> Iterator[Session]:
    """Yield the sessions that are due and that a worker could fold now, or index: see :meth:`.Store.sweep`."""
    for session in state.of_alias(alias):
        if unindexed is None:
            ready = session.next_attempt_at is None or session.next_attempt_at <= now
        else:
            ready = session.counters.newest_position > session.indexed_position + unindexed
        if session.due_since is not None and ready and not session.is_leased(now):
            yield session


def rebuilds(state: State, alias: str, *, limit: int, wait: float) -> list[int]:
    """Mark sessions whose rebuild is sent, and return their ids: see :meth:`.Store.sweep_rebuilds`."""
    now = state.clock()
    order = sorted(
        (session.rebuild_after, session.id)
        for session in state.of_alias(alias)
        if session.rebuild_after is not None
        and session.rebuild_after <= now
        and session.due_since is None
        and not session.is_leased(now)
    )
    ids = [session_id for _, session_id in order[:limit]]
    for session_id in ids:
        state.sessions[session_id].rebuild_after = now + wait
    return ids


def waiting_rebuilds(state: State, alias: str, *, within: float, limit: int) -> int:
    """Return the number of sessions whose rebuild is sent: see :meth:`.Store.waiting_rebuilds`."""
    now = state.clock()
    times = [session.rebuild_after for session in state.of_alias(alias) if session.due_since is None]
    return min(limit, sum(time is not None and now < time <= now + within for time in times))


def mark_unmarked(state: State, alias: str, rule: DueRule) -> int:
    """Mark sessions that exceed a new threshold: see :meth:`.Store.mark_unmarked`. It looks at all at once."""
    alias_state = state.alias(alias)
    if alias_state.threshold == rule.threshold:
        return 0
    alias_state.threshold = rule.threshold
    marked = 0
    for session in state.of_alias(alias):
        if session.due_since is None and session.is_over(rule.threshold):
            session.due_since, session.hinted_at = state.clock(), None
            marked += 1
    return marked


def waiting(state: State, alias: str, *, after: float, within: float, limit: int) -> int:
    """Return the number of due sessions whose task no worker has taken: see :meth:`.Store.waiting`."""
    now = state.clock()
    times = [session.hinted_at for session in _free(state, alias, now)]
    return min(limit, sum(time is not None and now - within < time <= now - after for time in times))


def unhint(state: State, session_ids: Sequence[int]) -> None:
    """Remove the marks of :func:`due`."""
    for session_id in session_ids:
        if session_id in state.sessions:
            state.sessions[session_id].hinted_at = None
