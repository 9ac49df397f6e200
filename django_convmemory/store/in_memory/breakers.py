"""The breakers of the aliases."""

from __future__ import annotations

from django_convmemory.rules.breaker import KNOWN_FOR, Breaker, Reason
from django_convmemory.rules.values import Attempted, AttemptOutcome
from django_convmemory.store.in_memory.state import State, moment


def read(state: State, alias: str) -> Breaker:
    """Return the state of an alias's breaker."""
    row = state.alias(alias)
    since, until = (None if time is None else moment(time) for time in (row.since, row.until))
    return Breaker(moment(state.clock()), row.failures, row.last_session, since, until, row.reason, row.error)


def count_failure(state: State, alias: str, session_id: int, error: str, *, seconds: float) -> int:
    """Count a failure, and return how many there are in a row: see :meth:`.Store.count_failure`."""
    row = state.alias(alias)
    is_open = row.until is not None and row.reason != Reason.RATE_LIMIT
    if is_open or (row.last_session != session_id and not _has_folded_another(state, alias, session_id, seconds)):
        row.failures += 1
        row.last_session, row.error = session_id, error
        row.since = state.clock() if row.since is None else row.since
    return row.failures


def _has_folded_another(state: State, alias: str, session_id: int, seconds: float) -> bool:
    """Whether the alias's own model has folded another session since this one last failed, or for ``seconds``."""
    since = moment(state.clock() - seconds)
    newest = next((attempt for attempt in reversed(state.attempts) if attempt.session_id == session_id), None)
    if newest is not None and newest.record.outcome == AttemptOutcome.UNAVAILABLE:
        since = newest.started_at
    return any(
        attempt.alias == alias
        and attempt.session_id != session_id
        and attempt.record.outcome == AttemptOutcome.PUBLISHED
        and attempt.started_at >= since
        and not _is_stand_in(state, attempt)
        for attempt in state.attempts
    )


def _is_stand_in(state: State, attempt: Attempted) -> bool:
    session = state.sessions.get(attempt.session_id)
    version = session.versions.get(attempt.record.version or 0) if session else None
    return version is not None and version.stand_in


def open_(state: State, alias: str, reason: Reason, error: str, *, seconds: float) -> None:
    """Pause the alias."""
    row = state.alias(alias)
    # Of two calls at a time, only one may have been told how long to wait.
    longer = row.until is not None and row.until >= state.clock() + seconds
    other = row.until is not None and row.reason != Reason.RATE_LIMIT
    if reason == Reason.RATE_LIMIT and (other or longer):
        return
    # The outage begins now, also if it follows a wrong configuration.
    was_closed = row.until is None or row.reason == Reason.RATE_LIMIT
    begins = was_closed or (row.reason == Reason.MISCONFIGURED and row.reason != reason)
    if reason != Reason.RATE_LIMIT and begins:
        row.since = state.clock()
    row.until, row.reason, row.error = state.clock() + seconds, reason, error


def probe(state: State, alias: str, *, seconds: float) -> bool:
    """Move the end of a pause that has ended. Of all who try, one does it."""
    row, now = state.alias(alias), state.clock()
    ended = row.until is not None and row.until <= now and row.reason != Reason.RATE_LIMIT
    if ended:
        if row.until is not None and row.until < now - KNOWN_FOR:
            row.since = now
        row.until = now + seconds
    return ended


def end_probe(state: State, alias: str, *, seconds: float, silent: bool) -> bool:
    """End the pause of a probe in ``seconds``. If the provider was not ``silent``, the outage begins anew."""
    row, now = state.alias(alias), state.clock()
    paused = row.until is not None and row.until > now and row.reason != Reason.RATE_LIMIT
    if paused:
        row.until, row.since = now + seconds, row.since if silent else now
    return paused


def close(state: State, alias: str) -> bool:
    """Close the breaker. A rate limit that has not ended stays."""
    row = state.alias(alias)
    opened = row.until is not None and row.reason != Reason.RATE_LIMIT
    row.failures, row.last_session, row.since = 0, None, None
    if opened:
        row.until, row.reason, row.error = None, "", ""
    return opened
