"""Storing a version of the summary, and the calls of models that made it."""

from __future__ import annotations

import dataclasses

from django_convmemory.rules import values
from django_convmemory.rules.values import AttemptOutcome, AttemptRecord, Claim, DueRule, NewVersion
from django_convmemory.store.in_memory import leases
from django_convmemory.store.in_memory.rows import Session, Summary
from django_convmemory.store.in_memory.state import State, moment


def publish(
    state: State, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, rule: DueRule, *, lease: float
) -> Claim | None:
    """Store the version if the lease still stands: see :meth:`.Store.publish`."""
    session = leases.held(state, claim)
    if session is None or session.counters.covered_position != values.covered_by(claim):
        if attempt is not None:
            record(state, claim, dataclasses.replace(attempt, outcome=AttemptOutcome.DROPPED))
        return None
    number = session.last_version + 1
    final = values.is_final(claim, version)
    if final:
        _finish(session, claim, version)
    parent = claim.summary.version if claim.summary else None
    session.versions[number] = Summary(
        version.stored(number), version.covered, parent, version.prompt_hash, not final, version.stand_in
    )
    session.last_version = number
    if final:
        session.current_version = number
        session.counters = session.counters.covering(version.covered)
        session.mark_due(rule.threshold, state.clock())
    if final and claim.rebuilding:
        session.rebuild_after = None
    elif values.needs_rebuild(claim, version, rule) and session.rebuild_after is None:
        session.rebuild_after = state.clock()
    if not claim.rebuilding:
        session.attempts, session.next_attempt_at, session.last_error = 0, None, ""
    session.lease_expires_at = state.clock() + lease
    session.revision += 1
    if attempt is not None:
        record(state, claim, dataclasses.replace(attempt, version=number))
    return values.after_publishing(claim, version, number)


def _finish(session: Session, claim: Claim, version: NewVersion) -> None:
    """Prepare the versions of the session for one that becomes current."""
    unfinished = session.unfinished()
    if claim.rebuilding and claim.replaces:
        for number, stored in session.versions.items():
            stored.valid = stored.valid and (stored.building or number < claim.replaces)
    elif not claim.rebuilding:
        first = version.first_position
        unfinished = [part for part in unfinished if claim.parts and part.value.first_position == first]
    for part in unfinished:
        part.building = False


def record(state: State, claim: Claim, attempt: AttemptRecord) -> None:
    """Keep a model call: see :meth:`.Store.record`."""
    started = moment(state.clock() - attempt.duration_seconds)
    state.attempts.append(values.Attempted(claim.session_id, claim.name.alias, started, attempt))
