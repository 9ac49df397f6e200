"""Storing a version of the summary, and the calls of models that made it.

A version is published in a transaction that begins with the UPDATE of the session's row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from django.db.models import Subquery
from django.db.models.functions import Coalesce

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.rules import values
from django_convmemory.rules.counters import Covered
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import AttemptOutcome, AttemptRecord, Claim, NewVersion
from django_convmemory.store import compiled, transactions
from django_convmemory.store.compiled import Slot
from django_convmemory.store.database import Database
from django_convmemory.store.leases import due_since, held


class Publishing(Database):
    """Stores versions of the summary, and the calls of models."""

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, threshold: Threshold, *, lease: float
    ) -> Claim | None:
        """Store ``version`` and extend the lease, if the claim still holds.

        If it is final (:func:`.values.is_final`), it becomes the current summary. A version that the fallback made in
        the model's place marks the session for a rebuild, and the end of a rebuild removes the mark.

        ``attempt`` is the model call that made it, unless that is recorded already.

        Returns the claim as it is after that. If the lease is lost, or the session has been changed since the claim,
        only the attempt is stored, and the result is None.
        """
        using = self.using
        number = claim.last_version + 1
        final = values.is_final(claim, version)
        rebuild = version.stand_in and not (final and claim.rebuilding)
        first = _session(using, threshold, lease, final=final, rebuilding=claim.rebuilding, rebuild=rebuild).bind(
            session_id=claim.session_id,
            token=claim.token,
            epoch=claim.epoch,
            base=values.covered_by(claim),
            last_version=claim.last_version,
            number=number,
            **version.covered._asdict(),
        )
        updates = _updates(using, claim, version) if final else []
        rows: list[Any] = [
            models.Summary(
                session_id=claim.session_id,
                version=number,
                parent_version=claim.summary.version if claim.summary else None,
                building=not final,
                created_at=Clock(),
                **{**dataclasses.asdict(version), "identifiers": version.identifiers or None},
            )
        ]
        if attempt is not None:
            rows.append(_attempt(claim, dataclasses.replace(attempt, version=number)))
        if transactions.run(using, lambda: compiled.run_all(using, first, updates, rows), savepoint=True):
            return values.after_publishing(claim, version, number)
        if attempt is not None:
            self.record(claim, dataclasses.replace(attempt, outcome=AttemptOutcome.DROPPED))
        return None

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        """Store an attempt that did not lead to a version. If its session was deleted, its cost still counts."""
        using, row = self.using, _attempt(claim, attempt)
        # One statement, so that a process that is stopped here holds up no append.
        row.session_id = Subquery(self._sessions.filter(pk=claim.session_id).values("pk"))
        stored = models.Attempt.objects.using(using).filter(
            session=claim.session_id, first_position=row.first_position, duration_seconds=row.duration_seconds
        )
        transactions.settled(
            lambda: transactions.run(
                using, lambda: compiled.insert(using, row), savepoint=True, atomic=False, happened=stored.exists
            ),
            "the sessions",  # They are deleted between the look and the check of the foreign key.
        )


@compiled.once
def _session(
    using: str, threshold: Threshold, lease: float, *, final: bool, rebuilding: bool, rebuild: bool
) -> compiled.CompiledStatement:
    """Return the UPDATE of the session's row. ``rebuild``: the session should be rebuilt."""
    changes: dict[str, Any] = {}
    if final:
        covered = {name: Slot(name) for name in Covered._fields}
        tokens, count = covered["covered_tokens"], covered["covered_count"]
        changes = {"due_since": due_since(threshold, tokens, count), "current_version": Slot("number"), **covered}
    if rebuild:
        changes["rebuild_after"] = Coalesce("rebuild_after", Clock())
    elif final and rebuilding:
        changes["rebuild_after"] = None
    if not rebuilding:  # A rebuild does not fold what has failed.
        changes |= {"attempts": 0, "next_attempt_at": None, "last_error": ""}
    return compiled.update(
        held(using).filter(covered_position=Slot("base"), last_version=Slot("last_version")),
        **changes,
        last_version=Slot("number"),
        lease_expires_at=Clock(lease),
    )


def _updates(using: str, claim: Claim, version: NewVersion) -> list[compiled.Bound]:
    """Return the changes of other versions when ``version`` becomes current."""
    if not (claim.rebuilding or claim.parts):
        return []  # The usual case, so it builds no queries.
    summaries = models.Summary.objects.using(using).filter(session_id=claim.session_id).valid()
    unfinished = summaries.filter(building=True)
    if not claim.rebuilding:
        parts = unfinished.filter(first_position=version.first_position)
        return [compiled.update(parts, building=False).bind()]
    updates: list[compiled.Bound] = []
    if claim.replaces:
        # What was made from the fallback's text goes with it.
        replaced = summaries.filter(building=False, version__gte=claim.replaces)
        updates.append(compiled.update(replaced, invalidated_at=Clock()).bind())
    return [*updates, compiled.update(unfinished, building=False).bind()]


def _attempt(claim: Claim, attempt: AttemptRecord) -> models.Attempt:
    return models.Attempt(
        session_id=claim.session_id,
        alias=claim.name.alias,
        started_at=Clock(-attempt.duration_seconds),
        **dataclasses.asdict(attempt),
    )
