"""Taking, keeping and releasing the lease of a session, and publishing versions of its summary while it is held.

Many processes may read the tail and call a model. Only the one that holds the lease may write: its token is in the row,
and by the database's clock the lease has not expired. Each write is one UPDATE whose WHERE checks the token, the expiry
and the epoch. So a process changes no row if it slept through its lease, or if the messages that it folds were changed
meanwhile.

Outside of the caller's transaction each UPDATE commits by itself. So a process that is stopped anywhere here holds no
lock, and no append waits for it. A version is published in a transaction that begins with such an UPDATE.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import uuid
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import Case, DateTimeField, F, Q, Subquery, When
from django.db.models.functions import Coalesce

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.messages import PINNED_ROLES
from django_convmemory.rules import values
from django_convmemory.rules.counters import Covered
from django_convmemory.rules.exchanges import MessageRef, Turn
from django_convmemory.rules.pause import wait_after_lease
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import AttemptOutcome, AttemptRecord, Claim, NewVersion
from django_convmemory.store import columns, compiled, sql, transactions
from django_convmemory.store.compiled import Slot
from django_convmemory.store.database import Database

# What a claim needs of the session, and the whole row of a version, in the order of the fields.
_NEEDED = {
    *("id", "public_id", "alias", "owner_id", "visitor", "key", "lease_token", "epoch", "last_version", "attempts"),
    *("current_version", "due_since", "fold_window", *models.COUNTER_COLUMNS),
}
_SESSION_NAMES = [field.attname for field in models.Session._meta.concrete_fields if field.attname in _NEEDED]
_SUMMARY_NAMES = [field.attname for field in models.Summary._meta.concrete_fields]


class Leases(Database):
    """Takes, keeps and releases the lease of a session, reads what its holder folds, and stores what it makes."""

    def claim(
        self,
        session_id: int,
        threshold: Threshold,
        *,
        lease: float,
        prompt_hash: str,
        force: bool,
        due_for: float = 0.0,
    ) -> Claim | str:
        """Take the lease for ``lease`` seconds, and count an attempt. Otherwise return the reason why not.

        The reasons are ``not_due``, ``busy`` and ``waiting``. A session that is not marked is due too if its counters
        exceed the limit. The next attempt is made after the lease, and waits longer from the second attempt on. With
        ``force`` the time of the next attempt does not matter. With ``due_for`` the session must have been due for so
        many seconds; until then it is ``waiting``. Parts that were folded with the same prompt are continued.
        """
        claiming = _claiming(self.using, threshold, lease, force=force, due_for=due_for)
        claimed, parts = _claimed(claiming, session_id)
        if claimed is None:
            return _reason(self._sessions.filter(pk=session_id), threshold, due_for)
        line = values.building_line(parts, prompt_hash, claimed.summary.version if claimed.summary else None)
        _invalidate_others(parts, line)
        return values.continued(claimed, line)

    def claim_rebuild(
        self, session_id: int, *, lease: float, prompt_hash: str, whole: bool, wait: float
    ) -> Claim | str:
        """Take the lease to make the summary again from the messages. Otherwise return the reason why not.

        The reasons are ``not_due`` (there is no summary) and ``busy``. Where it begins: see :func:`.values.rebuild_of`.
        Unless it is ``whole``, it is ``not_due`` too if the session is not marked for a rebuild, or if there is nothing
        to make again. The next rebuild of the session waits for ``wait`` seconds, unless this one succeeds.
        """
        summarized = self._sessions.filter(pk=session_id, current_version__gt=0)
        if not whole:
            summarized = summarized.filter(rebuild_after__isnull=False)
        claiming = compiled.update(summarized.unleased(), **_leased(lease), rebuild_after=Clock(wait))
        claimed, _ = _claimed(claiming, session_id)
        if claimed is None:
            return "busy" if summarized.exists() else "not_due"
        summaries = models.Summary.objects.using(self.using).filter(session_id=session_id).valid().order_by("version")
        finished = transactions.latest(summaries.filter(building=False))
        unfinished = list(transactions.latest(summaries.filter(building=True)))
        rebuild = values.rebuild_of(
            claimed,
            unfinished,
            finished.filter(stand_in=True).first(),
            lambda number: finished.filter(version=number).first(),
            prompt_hash=prompt_hash,
            whole=whole,
        )
        if rebuild is None:
            # What the fallback had made was replaced meanwhile, for example because a new release has other prompts.
            rows = self._sessions.filter(pk=session_id, lease_token=claimed.token)
            transactions.update(rows, rebuild_after=None, lease_token="", lease_expires_at=None)
            return "not_due"
        claim, line = rebuild
        _invalidate_others(unfinished, line)
        return claim

    def turns(self, claim: Claim, limit: int | None = None) -> list[Turn]:
        """Return the first ``limit`` unpinned messages of the claimed tail, or all, without texts."""
        covered, last = claim.counters.covered_position, claim.counters.last_position
        rows = _turns(self.using, limit).read(session_id=claim.session_id, after=covered, last=last)
        return [Turn(*row) for row in rows]

    def messages(self, claim: Claim, first: int, last: int) -> list[MessageRef]:
        """Return the unpinned messages of the claimed tail from the position ``first`` through ``last``."""
        # Only messages that the claim is for.
        after = max(first - 1, claim.counters.covered_position)
        last = min(last, claim.counters.last_position)
        rows = _messages(self.using).read(session_id=claim.session_id, after=after, last=last)
        placed = columns.placed(row[:-1] for row in rows)
        return [row._replace(created_at=created_at) for row, (*_, created_at) in zip(placed, rows, strict=True)]

    def extend(self, claim: Claim, *, lease: float) -> bool:
        """Make the lease last for ``lease`` seconds from now, and return whether it was still held.

        If a message was removed or redacted since the claim, it is not held any more.
        """
        extending = _extending(self.using, lease)
        return bool(_changed(extending, session_id=claim.session_id, token=claim.token, epoch=claim.epoch))

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
        first = _publishing(using, threshold, lease, final=final, rebuilding=claim.rebuilding, rebuild=rebuild).bind(
            session_id=claim.session_id,
            token=claim.token,
            epoch=claim.epoch,
            base=values.covered_by(claim),
            last_version=claim.last_version,
            number=number,
            **version.covered._asdict(),
        )
        updates = _other_versions(using, claim, version) if final else []
        summary = models.Summary(
            session_id=claim.session_id,
            version=number,
            parent_version=claim.summary.version if claim.summary else None,
            building=not final,
            created_at=Clock(),
            **{**dataclasses.asdict(version), "identifiers": version.identifiers or None},
        )
        attempts = [] if attempt is None else [_attempt(claim, dataclasses.replace(attempt, version=number))]
        rows = [summary, *attempts]
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
        work = functools.partial(compiled.insert, using, row)
        insert = functools.partial(transactions.run, using, work, savepoint=True, atomic=False, happened=stored.exists)
        # They are deleted between the look and the check of the foreign key.
        transactions.settled(insert, "the sessions")

    def release(self, claim: Claim, threshold: Threshold, how: values.Release = values.SUCCESS) -> bool:
        """Release the lease, and return whether the session is still due by ``threshold`` and its current counters."""
        # A time to wait is another one each time.
        make = _releasing_now if how.retry_in is None and how.rebuild_in is None else _releasing
        released = _changed(
            make(self.using, threshold, how._replace(error="", window=None), rebuilding=claim.rebuilding),
            session_id=claim.session_id,
            token=claim.token,
            window=how.window,
            attempts=max(0, claim.attempts - how.uncount) if how.error else 0,
            error=how.error,
        )
        return bool(released) and self.is_due(claim.session_id)

    def is_due(self, session_id: int) -> bool:
        """Whether the session is marked due."""
        return bool(_due(self.using).read(session_id=session_id))

    def release_connection(self) -> None:
        """Close the database connection, which would be idle while a model answers."""
        # The database may close an idle connection while the model answers, and the answer would be lost.
        # The next statement opens a new connection. A connection of a pool goes back to the pool.
        connection = connections[self.using]
        if connection.get_autocommit() and not connection.in_atomic_block:
            connection.close()


@compiled.once
def _claiming(
    using: str, threshold: Threshold, lease: float, *, force: bool, due_for: float
) -> compiled.CompiledStatement:
    sessions = models.Session.objects.using(using).filter(pk=Slot("session_id"))
    # By the counters too: an import without compaction does not mark a session, and a limit may have been lowered.
    over = models.exceeds(threshold, covered_tokens=F("covered_tokens"), covered_count=F("covered_count"))
    due = sessions.due(due_for) if due_for else sessions.filter(Q(due_since__isnull=False) | over)
    return compiled.update(
        due.unleased() if force else due.unleased().ready(),
        **_leased(lease),
        # Before attempts changes: MariaDB evaluates an UPDATE from left to right.
        next_attempt_at=_after_lease(lease),
        attempts=F("attempts") + 1,
        due_since=Coalesce("due_since", Clock()),
    )


def _leased(lease: float) -> dict[str, Any]:
    """Return the changes that take a lease."""
    return {"lease_token": Slot("token"), "lease_expires_at": Clock(lease)}


def _reason(sessions: models.SessionQuerySet, threshold: Threshold, due_for: float) -> str:
    """Return why the session could not be claimed.

    One statement reads it: between two, another process could release the session, and it would seem to wait.
    """
    session = transactions.latest(sessions.annotate(now=Clock())).first()
    if session is None or (session.due_since is None and not session.is_over(threshold)):
        return "not_due"
    now: dt.datetime = session.now  # type: ignore[attr-defined]
    leased = session.lease_expires_at is not None and session.lease_expires_at > now
    waits = session.next_attempt_at is not None and session.next_attempt_at > now
    if due_for:
        waits = waits or session.due_since is None or session.due_since > now - dt.timedelta(seconds=due_for)
    return "waiting" if waits and not leased else "busy"


def _claimed(claiming: compiled.CompiledStatement, session_id: int) -> tuple[Claim | None, list[models.Summary]]:
    """Take the lease of a session. Return the claim, and the parts of the next exchange that are folded already.

    The claim is None if the session is not free. Raises ImproperlyConfigured if nothing would commit the claim and the
    summary.
    """
    using = claiming.using
    connection = connections[using]
    if not (connection.get_autocommit() or connection.in_atomic_block):
        raise ImproperlyConfigured(
            f"AUTOCOMMIT of the database {using!r} is off: a summary would be paid for and never be "
            "committed. Turn it on in the processes that make summaries."
        )
    token = uuid.uuid4().hex
    if not _changed(claiming, session_id=session_id, token=token):
        return None, []
    lock = transactions.reads_earlier(using)
    # By the token: if there is no such row, the session was changed or deleted at once, and the lease is gone.
    rows = _leased_session(using, lock=lock).read(session_id=session_id, token=token)
    if not rows:
        return None, []
    *row, now = rows[0]
    session = models.Session.from_db(using, _SESSION_NAMES, row)
    current, first = session.current_version, session.covered_position + 1
    versions = {}
    if session.last_version:
        read = _versions(using, lock=lock).read(session_id=session_id, current=current, first=first)
        versions = {row.version: row for row in (models.Summary.from_db(using, _SUMMARY_NAMES, row) for row in read)}
    if current and current not in versions:
        return None, []
    summary = versions.pop(current).value if current else None
    due_seconds = (now - session.due_since).total_seconds() if session.due_since else 0.0
    return values.claimed(session, summary, due_seconds), list(versions.values())


@compiled.once
def _leased_session(using: str, *, lock: bool) -> compiled.Selection:
    rows = models.Session.objects.using(using).filter(pk=Slot("session_id"), lease_token=Slot("token"))
    return compiled.selection(rows, *_SESSION_NAMES, Clock(), lock=lock)


@compiled.once
def _versions(using: str, *, lock: bool) -> compiled.Selection:
    """Return the statement that reads the current version, and the parts of the next exchange."""
    is_part = Q(building=True, part_end__isnull=False, first_position=Slot("first"), invalidated_at__isnull=True)
    rows = models.Summary.objects.using(using).filter(session_id=Slot("session_id"))
    rows = rows.filter(is_part | Q(version=Slot("current"))).order_by("version")
    return compiled.selection(rows, *_SUMMARY_NAMES, lock=lock)


def _invalidate_others(building: list[models.Summary], line: dict[int, Any]) -> None:
    """Invalidate those of the unfinished versions that are not in ``line``.

    By their ids: if the lease is lost by now, another process may have begun a line of its own.
    """
    stale = [summary for summary in building if summary.version not in line]
    if stale:
        rows = models.Summary.objects.using(stale[0]._state.db).filter(pk__in=[summary.pk for summary in stale])
        transactions.update(rows, invalidated_at=Clock())


def _after_lease(lease: float) -> Case:
    """Return the time of the next attempt if the process that takes the lease is killed: see pause.wait_after_lease.

    ``attempts`` in it is the number of attempts before this one.
    """
    waits = [wait_after_lease(attempts) for attempts in range(1, 11)]
    cases = [When(attempts=before, then=Clock(lease + wait)) for before, wait in enumerate(waits)]
    return Case(*cases, default=Clock(lease + waits[-1]), output_field=DateTimeField(null=True))


def _held(using: str) -> models.SessionQuerySet:
    """Return the session that a claim holds, with the slots ``session_id``, ``token`` and ``epoch``."""
    sessions = models.Session.objects.using(using).filter(pk=Slot("session_id"), lease_token=Slot("token"))
    # No message was removed or redacted since it was taken.
    return sessions.filter(epoch=Slot("epoch"), lease_expires_at__gt=Clock())


@compiled.once
def _extending(using: str, lease: float) -> compiled.CompiledStatement:
    return compiled.update(_held(using), lease_expires_at=Clock(lease))


@compiled.once
def _publishing(
    using: str, threshold: Threshold, lease: float, *, final: bool, rebuilding: bool, rebuild: bool
) -> compiled.CompiledStatement:
    """Return the UPDATE of the session's row. ``rebuild``: the session should be rebuilt."""
    changes: dict[str, Any] = {}
    if final:
        covered = {name: Slot(name) for name in Covered._fields}
        tokens, count = covered["covered_tokens"], covered["covered_count"]
        changes = {"due_since": _due_since(threshold, tokens, count), "current_version": Slot("number"), **covered}
    if rebuild:
        changes["rebuild_after"] = Coalesce("rebuild_after", Clock())
    elif final and rebuilding:
        changes["rebuild_after"] = None
    if not rebuilding:  # A rebuild does not fold what has failed.
        changes |= {"attempts": 0, "next_attempt_at": None, "last_error": ""}
    return compiled.update(
        _held(using).filter(covered_position=Slot("base"), last_version=Slot("last_version")),
        **changes,
        last_version=Slot("number"),
        lease_expires_at=Clock(lease),
    )


def _other_versions(using: str, claim: Claim, version: NewVersion) -> list[compiled.Bound]:
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


def _releasing(
    using: str, threshold: Threshold, how: values.Release, *, rebuilding: bool
) -> compiled.CompiledStatement:
    changes: dict[str, Any] = {"fold_window": Slot("window")}
    if not rebuilding:  # A rebuild does not fold what has failed.
        changes |= {"attempts": Slot("attempts"), "last_error": Slot("error")}
        changes["next_attempt_at"] = None if how.retry_in is None else Clock(how.retry_in)
    if how.rebuild_in is not None:
        changes["rebuild_after"] = Clock(how.rebuild_in)
    if how.queued:
        changes["queued_at"] = Clock()
    return compiled.update(
        # By the token alone: this process may release its expired lease as long as nobody else has taken one.
        models.Session.objects.using(using).filter(pk=Slot("session_id"), lease_token=Slot("token")),
        # Computed from the current counters, which include appends during the model call.
        due_since=_due_since(threshold, F("covered_tokens"), F("covered_count")),
        lease_token="",
        lease_expires_at=None,
        **changes,
    )


_releasing_now = compiled.once(_releasing)


@compiled.once
def _due(using: str) -> compiled.Selection:
    return compiled.selection(models.Session.objects.using(using).filter(pk=Slot("session_id")).due(), "pk")


def _due_since(threshold: Threshold, covered_tokens: Any, covered_count: Any) -> Case:
    """Return the new value of ``due_since`` for these covered counters."""
    condition = models.exceeds(threshold, covered_tokens=covered_tokens, covered_count=covered_count)
    return Case(
        When(condition, then=Coalesce("due_since", Clock())), default=None, output_field=DateTimeField(null=True)
    )


def _changed(statement: compiled.CompiledStatement, **values: Any) -> int:
    return transactions.run(statement.using, lambda: statement.run(**values), savepoint=True, atomic=False)


@compiled.once
def _turns(using: str, limit: int | None) -> compiled.Selection:
    return compiled.selection(_unpinned(using)[:limit], *Turn._fields)


@compiled.once
def _messages(using: str) -> compiled.Selection:
    return compiled.selection(_unpinned(using), *sql.PLACED_NAMES, "created_at")


def _unpinned(using: str) -> Any:
    """Return the unpinned messages of a session after a position, through another one."""
    rows = models.Message.objects.using(using).filter(
        session_id=Slot("session_id"), position__gt=Slot("after"), position__lte=Slot("last")
    )
    return rows.exclude(role__in=PINNED_ROLES).order_by("position")
