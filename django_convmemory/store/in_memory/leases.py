"""Taking, keeping and releasing the lease of a session."""

from __future__ import annotations

import uuid

from django_convmemory.rules import values
from django_convmemory.rules.values import Claim, DueRule
from django_convmemory.store.in_memory.rows import Session
from django_convmemory.store.in_memory.state import State


def claim(state: State, session_id: int, rule: DueRule, *, lease: float, prompt_hash: str, force: bool) -> Claim | str:
    """Take the lease of a due session: see :meth:`.Store.claim`."""
    session = state.sessions.get(session_id)
    now = state.clock()
    if session is None or (session.due_since is None and not session.is_over(rule.threshold)):
        return "not_due"
    if session.is_leased(now):
        return "busy"
    if session.next_attempt_at is not None and session.next_attempt_at > now and not force:
        return "waiting"
    session.lease_token = uuid.uuid4().hex
    session.lease_expires_at = now + lease
    session.due_since = now if session.due_since is None else session.due_since
    session.attempts += 1
    session.next_attempt_at = session.lease_expires_at + values.wait_after_lease(session.attempts)
    session.revision += 1
    claim = values.claimed(session, session.summary, now - session.due_since)
    first = claim.counters.covered_position + 1
    parts = [
        version
        for version in session.unfinished()
        if version.value.part_end is not None and version.value.first_position == first
    ]
    line = values.building_line(parts, prompt_hash, claim.summary.version if claim.summary else None)
    for part in parts:
        part.valid = part.value.version in line
    return values.continued(claim, line)


def claim_rebuild(
    state: State,
    session_id: int,
    *,
    lease: float,
    prompt_hash: str,
    stand_ins: bool,
    wait: float,
    reanchor_every: int | None,
) -> Claim | str:
    """Take the lease to make the summary again: see :meth:`.Store.claim_rebuild`."""
    session = state.sessions.get(session_id)
    now = state.clock()
    if session is None or not session.current_version or (stand_ins and session.rebuild_after is None):
        return "not_due"
    if session.is_leased(now):
        return "busy"
    first = session.first_stand_in()
    if first is None and stand_ins and not values.is_old(session.summary, reanchor_every):
        # What the fallback had made was replaced meanwhile.
        session.rebuild_after = None
        return "not_due"
    if stand_ins:
        session.rebuild_after = now + wait
    base = None
    if first is not None:
        before, first = values.replaced_by_rebuild(first, session.versions.get)
        base = before if stand_ins else None
    building = session.unfinished()
    covered = session.counters.covered_position
    rows = [version for version in building if values.may_continue(version, covered)]
    line = values.building_line(rows, prompt_hash, base.value.version if base else None)
    for version in building:
        version.valid = version.value.version in line
    session.lease_token = uuid.uuid4().hex
    session.lease_expires_at = now + lease
    session.epoch += 1
    session.revision += 1
    claim = values.claimed(session, session.summary, 0.0)
    return values.rebuilding(claim, line, base, first.value.version if first else 0)


def held(state: State, claim: Claim) -> Session | None:
    """Return the session if the lease of ``claim`` still stands, and its messages are those of the claim."""
    session = state.sessions.get(claim.session_id)
    if session is None or session.epoch != claim.epoch:
        return None
    if session.lease_token != claim.token or session.lease_expires_at <= state.clock():
        return None
    return session


def extend(state: State, claim: Claim, *, lease: float) -> bool:
    """Make the lease end in ``lease`` seconds: see :meth:`.Store.extend`."""
    session = held(state, claim)
    if session is not None:
        session.lease_expires_at = state.clock() + lease
    return session is not None


def release(
    state: State,
    claim: Claim,
    rule: DueRule,
    *,
    retry_in: float | None,
    error: str,
    uncount: bool,
    rebuild_in: float | None,
) -> bool:
    """End the lease: see :meth:`.Store.release`."""
    session = state.sessions.get(claim.session_id)
    if session is None or session.lease_token != claim.token:
        return False
    now = state.clock()
    session.lease_token, session.lease_expires_at = "", 0.0
    session.mark_due(rule.threshold, now)
    due = session.due_since is not None
    if not claim.rebuilding:
        if not error:
            session.attempts = 0
        elif uncount:
            session.attempts = max(0, session.attempts - 1)
        session.last_error = error
        session.next_attempt_at = now + retry_in if due and retry_in is not None else None
    if rule.hint and due:
        session.hinted_at = now
    if rebuild_in is not None:
        session.rebuild_after = now + rebuild_in
    session.revision += 1
    return due
