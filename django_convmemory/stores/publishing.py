"""Storing a version of the summary, and the calls of models that made it.

On PostgreSQL all of it is one statement, which commits by itself: a process that is stopped holds no lock. On the other
databases it is a transaction that begins with the UPDATE of the session's row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from django.db import IntegrityError, connections
from django.db.models import F
from django.db.models.functions import Coalesce

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.core import values
from django_convmemory.core.values import AttemptRecord, Claim, DueRule, NewVersion
from django_convmemory.stores import compound, transactions
from django_convmemory.stores.leases import due_since


def publish(
    using: str, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, rule: DueRule, *, lease: float
) -> bool:
    """Store ``version`` if the claim still holds, and return whether it did: see :meth:`.Store.publish`."""
    number = claim.last_version + 1
    final = values.is_final(claim, version)
    sessions = models.Session.objects.using(using).held(claim.session_id, claim.token, claim.epoch)
    sessions = sessions.filter(covered_position=values.covered_by(claim), last_version=claim.last_version)
    changes = {
        **_pointer(claim, version, rule, number),
        # A rebuild does not fold what has failed.
        **({} if claim.rebuilding else {"attempts": 0, "next_attempt_at": None, "last_error": ""}),
        "last_version": number,
        "lease_expires_at": Clock(lease),
        "revision": F("revision") + 1,
        "updated_at": Clock(),
    }
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

    def work() -> bool:
        if connections[using].vendor == "postgresql":
            return compound.execute(using, sessions, changes, updates, rows)
        if not sessions.update(**changes):
            return False
        for summaries, change in updates:
            summaries.update(**change)
        for row in rows:
            row.pk = None  # It may be set from a transaction that was run before.
            row.save(force_insert=True, using=using)
        return True

    return transactions.run(using, work, savepoint=True, atomic=connections[using].vendor != "postgresql")


def _pointer(claim: Claim, version: NewVersion, rule: DueRule, number: int) -> dict[str, Any]:
    """Return the columns of the session that depend on whether ``version`` is final, and who made it."""
    if not values.is_final(claim, version):
        return {"rebuild_after": Coalesce("rebuild_after", Clock())} if version.stand_in else {}
    pointer: dict[str, Any] = {
        "due_since": due_since(rule.threshold, version.covered_tokens, version.covered_count),
        "current_version": number,
        **version.covered._asdict(),
    }
    if claim.rebuilding:
        pointer["rebuild_after"] = None
    elif values.needs_rebuild(claim, version, rule):
        pointer["rebuild_after"] = Coalesce("rebuild_after", Clock())
    return pointer


def _updates(using: str, claim: Claim, version: NewVersion) -> list[compound.Update]:
    """Return the changes of other versions when ``version`` becomes current."""
    summaries = models.Summary.objects.using(using).filter(session_id=claim.session_id).valid()
    unfinished = summaries.filter(building=True)
    if not claim.rebuilding:
        parts = unfinished.filter(first_position=version.first_position)
        return [(parts, {"building": False})] if claim.parts else []
    updates: list[compound.Update] = []
    if claim.replaces:
        # What was made from the fallback's text goes with it.
        replaced = summaries.filter(building=False, version__gte=claim.replaces)
        updates.append((replaced, {"invalidated_at": Clock()}))
    return [*updates, (unfinished, {"building": False})]


def record(using: str, claim: Claim, attempt: AttemptRecord) -> None:
    """Store the call of a model that led to no version."""
    connection = connections[using]
    row = _attempt(claim, attempt)
    if connection.in_atomic_block:
        # The database may check the foreign key at the caller's COMMIT. With the lock nobody deletes the session until
        # then.
        if models.Session.objects.using(using).filter(pk=claim.session_id).lock():
            row.save(force_insert=True, using=using)
        return
    try:
        transactions.run(using, lambda: row.save(force_insert=True, using=using), atomic=False)
    except IntegrityError:
        # The session was deleted. What the call has cost still counts.
        row.pk, row.session_id = None, None
        transactions.run(using, lambda: row.save(force_insert=True, using=using), atomic=False)


def _attempt(claim: Claim, attempt: AttemptRecord) -> models.Attempt:
    return models.Attempt(
        session_id=claim.session_id,
        alias=claim.name.alias,
        started_at=Clock(-attempt.duration_seconds),
        **dataclasses.asdict(attempt),
    )
