"""Taking, keeping and releasing the lease of a session.

Many processes may read the tail and call a model. Only the one that holds the lease may write: its token is in the row,
and by the database's clock the lease has not expired. Each write is one UPDATE whose WHERE checks the token, the expiry
and the epoch. So a process changes no row if it slept through its lease, or if the messages that it folds were changed
meanwhile.

Outside of the caller's transaction each UPDATE commits by itself. So a process that is stopped anywhere here holds no
lock, and no append waits for it.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import Case, DateTimeField, F, Q, When
from django.db.models.functions import Coalesce

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.core import values
from django_convmemory.core.strategies import Threshold
from django_convmemory.core.values import Claim, DueRule, SummaryVersion
from django_convmemory.stores import transactions


def claim(using: str, session_id: int, rule: DueRule, *, lease: float, prompt_hash: str, force: bool) -> Claim | str:
    """Take the lease to fold the session: see :meth:`.Store.claim`."""
    sessions = models.Session.objects.using(using).filter(pk=session_id)
    # By the counters too: an import without compaction does not mark a session, and a limit may have been lowered.
    over = models.exceeds(rule.threshold, covered_tokens=F("covered_tokens"), covered_count=F("covered_count"))
    due = sessions.filter(Q(due_since__isnull=False) | over)
    free = due.unleased() if force else due.unleased().ready()
    claimed = _claimed(
        free,
        session_id,
        lease,
        # Before attempts changes: MariaDB evaluates an UPDATE from left to right.
        next_attempt_at=_after_lease(lease),
        attempts=F("attempts") + 1,
        due_since=Coalesce("due_since", Clock()),
    )
    if claimed is not None:
        return values.continued(claimed, _parts(using, claimed, prompt_hash))
    return _reason(sessions, rule)


def _reason(sessions: models.SessionQuerySet, rule: DueRule) -> str:
    """Return why the session could not be claimed.

    One statement reads it: between two, another process could release the session, and it would seem to wait.
    """
    session = transactions.latest(sessions.annotate(now=Clock())).first()
    if session is None or (session.due_since is None and not session.is_over(rule.threshold)):
        return "not_due"
    now: dt.datetime = session.now  # type: ignore[attr-defined]
    leased = session.lease_expires_at is not None and session.lease_expires_at > now
    waits = session.next_attempt_at is not None and session.next_attempt_at > now
    return "waiting" if waits and not leased else "busy"


def claim_rebuild(
    using: str,
    session_id: int,
    *,
    lease: float,
    prompt_hash: str,
    stand_ins: bool,
    wait: float,
    reanchor_every: int | None,
) -> Claim | str:
    """Take the lease to make the summary again: see :meth:`.Store.claim_rebuild`."""
    summarized = models.Session.objects.using(using).filter(pk=session_id, current_version__gt=0)
    changes: dict[str, Any] = {"epoch": F("epoch") + 1}
    if stand_ins:
        summarized = summarized.filter(rebuild_after__isnull=False)
        changes["rebuild_after"] = Clock(wait)
    claimed = _claimed(summarized.unleased(), session_id, lease, **changes)
    if claimed is None:
        return "busy" if summarized.exists() else "not_due"
    summaries = models.Summary.objects.using(using).filter(session_id=session_id).valid().order_by("version")
    finished = transactions.latest(summaries.filter(building=False))
    first = finished.filter(stand_in=True).first()
    base = None
    if first is not None:
        before, first = values.replaced_by_rebuild(first, lambda number: finished.filter(version=number).first())
        base = before if stand_ins else None
    elif stand_ins and not values.is_old(claimed.summary, reanchor_every):
        # What the fallback had made was replaced meanwhile, for example because a new release has other prompts.
        unmarked: dict[str, Any] = {"rebuild_after": None, "lease_token": "", "lease_expires_at": None}
        _update(models.Session.objects.using(using).filter(pk=session_id, lease_token=claimed.token), **unmarked)
        return "not_due"
    building = list(transactions.latest(summaries.filter(building=True)))
    covered = claimed.counters.covered_position
    rows = [row for row in building if values.may_continue(row, covered)]
    line = values.building_line(rows, prompt_hash, base.version if base else None)
    _invalidate_others(building, line)
    return values.rebuilding(claimed, line, base, first.version if first else 0)


def _claimed(free: models.SessionQuerySet, session_id: int, lease: float, **changes: Any) -> Claim | None:
    """Take the lease of the session ``free``, and return the claim, or None if the session is not free.

    Raises ImproperlyConfigured if nothing would commit the claim and the summary.
    """
    connection = connections[free.db]
    if not (connection.get_autocommit() or connection.in_atomic_block):
        raise ImproperlyConfigured(
            f"AUTOCOMMIT of the database {free.db!r} is off: a summary would be paid for and never be "
            "committed. Turn it on in the processes that make summaries."
        )
    token = uuid.uuid4().hex
    if not _update(free, lease_token=token, lease_expires_at=Clock(lease), revision=F("revision") + 1, **changes):
        return None
    # By the token: if there is no such row, the session was changed or deleted at once, and the lease is gone.
    rows = models.Session.objects.using(free.db).filter(pk=session_id, lease_token=token).with_clock()
    session = transactions.latest(rows).first()
    if session is None:
        return None
    summary: SummaryVersion | None = None
    if session.current_version:
        summaries = models.Summary.objects.using(free.db).filter(session=session, version=session.current_version)
        row = transactions.latest(summaries).first()
        if row is None:
            return None
        summary = row.value
    now: dt.datetime = session.now  # type: ignore[attr-defined]
    due_seconds = (now - session.due_since).total_seconds() if session.due_since else 0.0
    return values.claimed(session, summary, due_seconds)


def _parts(using: str, claimed: Claim, prompt_hash: str) -> dict[int, Any]:
    """Return the parts of the next exchange that are folded already. Invalidate those of other prompts."""
    summaries = models.Summary.objects.using(using).filter(session_id=claimed.session_id).valid()
    first = claimed.counters.covered_position + 1
    parts = summaries.filter(building=True, part_end__isnull=False, first_position=first).order_by("version")
    base = claimed.summary.version if claimed.summary else None
    rows = list(transactions.latest(parts))
    line = values.building_line(rows, prompt_hash, base)
    _invalidate_others(rows, line)
    return line


def _invalidate_others(building: list[models.Summary], line: dict[int, Any]) -> None:
    """Invalidate those of the unfinished versions that are not in ``line``.

    By their ids: if the lease is lost by now, another process may have begun a line of its own.
    """
    stale = [summary for summary in building if summary.version not in line]
    if stale:
        rows = models.Summary.objects.using(stale[0]._state.db).filter(pk__in=[summary.pk for summary in stale])
        _update(rows, invalidated_at=Clock())


def _after_lease(lease: float) -> Case:
    """Return the time of the next attempt if the process that takes the lease is killed: see values.wait_after_lease.

    ``attempts`` in it is the number of attempts before this one.
    """
    waits = [values.wait_after_lease(attempts) for attempts in range(1, 11)]
    cases = [When(attempts=before, then=Clock(lease + wait)) for before, wait in enumerate(waits)]
    return Case(*cases, default=Clock(lease + waits[-1]), output_field=DateTimeField(null=True))


def extend(using: str, claim: Claim, *, lease: float) -> bool:
    """Make the lease longer: see :meth:`.Store.extend`."""
    held = models.Session.objects.using(using).held(claim.session_id, claim.token, claim.epoch)
    return bool(_update(held, lease_expires_at=Clock(lease)))


def release(
    using: str,
    claim: Claim,
    rule: DueRule,
    *,
    retry_in: float | None,
    error: str,
    uncount: bool,
    rebuild_in: float | None,
) -> bool:
    """Release the lease: see :meth:`.Store.release`."""
    sessions = models.Session.objects.using(using).filter(pk=claim.session_id)
    changes: dict[str, Any] = {}
    if rule.hint:
        changes["hinted_at"] = Clock()
    if rebuild_in is not None:
        changes["rebuild_after"] = Clock(rebuild_in)
    if not claim.rebuilding:
        changes["attempts"] = 0 if not error else max(0, claim.attempts - 1) if uncount else claim.attempts
        changes["last_error"] = error
        changes["next_attempt_at"] = None if retry_in is None else Clock(retry_in)
    released = _update(
        # By the token alone: this process may release its expired lease as long as nobody else has taken one.
        sessions.filter(lease_token=claim.token),
        # Computed from the current counters, which include appends during the call of the model.
        due_since=due_since(rule.threshold, F("covered_tokens"), F("covered_count")),
        lease_token="",
        lease_expires_at=None,
        revision=F("revision") + 1,
        **changes,
    )
    return bool(released) and sessions.due().exists()


def due_since(threshold: Threshold, covered_tokens: Any, covered_count: Any) -> Case:
    """Return the new value of ``due_since`` for these covered counters."""
    condition = models.exceeds(threshold, covered_tokens=covered_tokens, covered_count=covered_count)
    return Case(
        When(condition, then=Coalesce("due_since", Clock())), default=None, output_field=DateTimeField(null=True)
    )


def _update(rows: Any, **changes: Any) -> int:
    changed: int = transactions.run(rows.db, lambda: rows.update(**changes), savepoint=True, atomic=False)
    return changed
