"""The store over Django's models: PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

from django.db import IntegrityError, connections, router, transaction
from django.db.models import Case, DateTimeField, F, Sum, Value, When
from django.db.models.functions import Coalesce

from django_convmemory import exceptions, models
from django_convmemory.clock import Clock
from django_convmemory.exchanges import Placed, Turn
from django_convmemory.ledger import Batch, Ledger
from django_convmemory.messages import PINNED_ROLES
from django_convmemory.stores import base, statements, transactions
from django_convmemory.stores.base import AttemptRecord, Claim, NewVersion, SessionName, SummaryVersion
from django_convmemory.strategies import Threshold, View

# How often an append that met a session in motion looks again.
_TRIES = 10


class ORMStore:
    """Keeps sessions in the tables of this app.

    ``using`` names the database; without it, the routers say. Reads go to the database that is written, so that a
    request sees what it appended, unless ``read_replica=True`` leaves them to the routers.
    """

    def __init__(self, using: str | None = None, *, read_replica: bool = False) -> None:
        self._using = using
        self._read_replica = read_replica

    @property
    def using(self) -> str:
        """The database that is written."""
        return self._using or router.db_for_write(models.Session)

    # Append.

    def append(
        self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
    ) -> base.Appended:
        if batch.key_hash is not None:
            return self._append_once(name, batch, threshold, counter=counter, hint=hint)
        return self._append(name, batch, threshold, counter=counter, hint=hint)

    def _append_once(
        self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
    ) -> base.Appended:
        replayed = self._replay(name, batch)
        if replayed is not None:
            return replayed
        try:
            return self._append(name, batch, threshold, counter=counter, hint=hint)
        except IntegrityError:
            # Two retries met: the other one's rows are there now, for it held the session's row until it committed.
            replayed = self._replay(name, batch)
            if replayed is None:
                raise
            return replayed

    def _replay(self, name: SessionName, batch: Batch) -> base.Appended | None:
        row = (
            models.Message.objects.using(self.using)
            .filter(session__handle=name.handle, idempotency_key=batch.key_hash)
            .values_list("session_id", "position", "payload_hash", "session__due_since")
            .first()
        )
        if row is None:
            return None
        session_id, first, payload_hash, due_since = row
        if payload_hash != batch.payload_hash:
            raise exceptions.IdempotencyConflict(base.key_conflict(first))
        last = first + len(batch.entries) - 1
        tokens = (
            models.Message.objects.using(self.using)
            .filter(session_id=session_id, position__gte=first, position__lte=last)
            .aggregate(total=Sum("tokens"))["total"]
        )
        return base.Appended(session_id, first, last, tokens, due_since is not None, turned_due=False, replayed=True)

    def _append(
        self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
    ) -> base.Appended:
        using = self.using
        vendor = connections[using].vendor
        append = {"postgresql": _append_in_one, "sqlite": _append_in_two}.get(vendor, _append_locking)
        one_statement = vendor == "postgresql" and len(batch.entries) <= statements.ROWS_PER_INSERT

        def work() -> statements.Advanced | None:
            return append(using, name, batch, threshold, counter, hint)

        for _ in range(_TRIES):
            if one_statement and batch.key_hash is None:
                # A statement is a transaction; it waits for one row's lock and takes no other.
                advanced = work()
            else:
                advanced = transactions.run(using, work, savepoint=batch.key_hash is not None)
            if advanced is not None:
                first = advanced.last_position - len(batch.entries) + 1
                return base.Appended(
                    advanced.session_id,
                    first,
                    advanced.last_position,
                    batch.tokens,
                    advanced.due_since is not None,
                    bool(advanced.turned_due),
                    replayed=False,
                )
            self._make_way(name, batch)
        raise exceptions.ConvMemoryError(f"The session {name.key!r} changes faster than it can be appended to.")

    def _make_way(self, name: SessionName, batch: Batch) -> None:
        """Create the session that is missing, or raise what keeps it from taking ``batch``."""
        session = models.Session.objects.using(self.using).named(name).first()
        ledger = session.ledger if session else Ledger()
        try:
            ledger.append(batch.entries)
        except exceptions.ToolResultRefused as error:
            raise self._explained(session, batch, error) from None
        if session is None:
            models.Session.objects.using(self.using).bulk_create(
                [
                    models.Session(
                        alias=name.alias,
                        key=name.key,
                        owner_id=name.owner_id,
                        visitor=name.visitor,
                        handle=name.handle,
                        created_at=Clock(),
                        updated_at=Clock(),
                    )
                ],
                ignore_conflicts=True,
            )

    def _explained(
        self, session: models.Session | None, batch: Batch, error: exceptions.ToolResultRefused
    ) -> exceptions.ToolResultRefused:
        """Add to ``error`` which message closed the exchange that the result belongs to, where there was one."""
        if session is None:
            return error
        rows = models.Message.objects.using(self.using).filter(session=session)
        for entry in batch.entries:
            call_id = entry.message.tool_call_id
            if call_id is None:
                continue
            calls = rows.filter(role="assistant", wire__isnull=False).order_by("-position")
            asked = next(
                (
                    position
                    for position, wire in calls.values_list("position", "wire")[:1000]
                    if call_id in statements.message_of("assistant", "", "", wire, None).call_ids
                ),
                None,
            )
            if asked is None:
                continue
            closing = rows.filter(role="assistant", position__gt=asked).order_by("position").values_list("position")
            closed = closing.first()
            how = (
                f"the assistant message at position {closed[0]} closed its exchange"
                if closed
                else "every call of it has its result"
            )
            return exceptions.ToolResultRefused(
                f"The call {call_id!r} was made by the assistant message at position {asked}, and {how}: a result that "
                "comes later has no place. Store it before the next assistant message, or leave it out."
            )
        return error

    # Load.

    def load(self, name: SessionName, view: View, max_pinned_tokens: int) -> base.Snapshot | None:
        using = router.db_for_read(models.Session) if self._read_replica else self.using
        while True:
            with connections[using].cursor() as cursor:
                cursor.execute(statements.SNAPSHOT, [name.handle])
                row = cursor.fetchone()
                if row is None:
                    return None
                session_id, epoch, revision, due = row[:4]
                ledger = models.ledger_of(row[4:16])
                summary = SummaryVersion(*row[16:]) if view.summary and row[16] is not None else None
                shown = base.shown_pinned(ledger.pinned, max_pinned_tokens)
                cursor.execute(*statements.context(session_id, shown, base.view_bound(ledger, view)))
                found = cursor.fetchall()
            # Rows removed in between: the snapshot's summary may stand for what is gone. Look again.
            if not found or found[0][0] != epoch:
                continue
            placed = _placed(found)
            return base.Snapshot(
                session_id=session_id,
                ledger=ledger,
                due=bool(due),
                revision=revision,
                summary=summary,
                pinned=[one for one in placed if one.message.role in PINNED_ROLES],
                tail=[one for one in placed if one.message.role not in PINNED_ROLES],
            )

    # Clear.

    def clear(self, name: SessionName) -> None:
        using = self.using

        def work() -> None:
            # The write comes first: it takes the row's lock, and with it the right to remove.
            changed = (
                models.Session.objects.using(using)
                .named(name)
                .update(**models.EMPTIED, epoch=F("epoch") + 1, revision=F("revision") + 1, updated_at=Clock())
            )
            session_id = self.find(name) if changed else None
            if session_id is not None:
                models.Message.objects.using(using).filter(session_id=session_id).delete()
                models.Summary.objects.using(using).filter(session_id=session_id).delete()

        transactions.run(using, work)

    def on_commit(self, function: Callable[[], None]) -> None:
        transaction.on_commit(function, using=self.using)

    # Compaction. The lease is the argument: of all the processes that read the tail and call a model, only the one
    # whose token stands in the row, unexpired by the database's clock, may write. Each write checks it, together with
    # the epoch and the position covered, in the WHERE of the UPDATE that begins its transaction: a process that slept
    # through its lease, or that folded what was cleared meanwhile, changes no row.

    def find(self, name: SessionName) -> int | None:
        found = models.Session.objects.using(self.using).named(name).values_list("pk").first()
        return found[0] if found else None

    def claim(self, session_id: int, *, lease: float, force: bool) -> Claim | str:
        using = self.using
        token = uuid.uuid4().hex

        def work() -> Claim | str:
            sessions = models.Session.objects.using(using).filter(pk=session_id)
            free = sessions.due().unleased()
            if not force:
                free = free.ready()
            claimed = free.update(
                lease_token=token,
                lease_expires_at=Clock(lease),
                attempts=F("attempts") + 1,
                revision=F("revision") + 1,
            )
            if claimed:
                session, now = sessions.get(), sessions.values_list(Clock()).get()[0]
                return self._claimed(session, (now - session.due_since).total_seconds())
            if not sessions.due().exists():
                return "not_due"
            return "waiting" if sessions.unleased().exists() else "busy"

        return transactions.run(using, work)

    def _claimed(self, session: models.Session, due_seconds: float) -> Claim:
        summary = None
        if session.current_version:
            row = models.Summary.objects.using(self.using).get(session=session, version=session.current_version)
            summary = SummaryVersion(row.version, row.first_position, row.last_position, row.text, row.tokens)
        return Claim(
            session_id=session.pk,
            name=session.memory_name,
            token=session.lease_token,
            epoch=session.epoch,
            last_version=session.last_version,
            attempts=session.attempts,
            due_seconds=max(0.0, due_seconds),
            ledger=session.ledger,
            summary=summary,
        )

    def turns(self, claim: Claim) -> list[Turn]:
        rows = self._tail(claim).values_list("position", "tokens", "answers")
        return [Turn(*row) for row in rows.iterator(chunk_size=2000)]

    def messages(self, claim: Claim, first: int, last: int) -> list[Placed]:
        rows = self._tail(claim).filter(position__gte=first, position__lte=last)
        return _placed(
            (None, *row)
            for row in rows.values_list("position", "role", "kind", "content", "wire", "metadata", "tokens", "answers")
        )

    def _tail(self, claim: Claim) -> Any:
        return (
            models.Message.objects.using(self.using)
            .filter(
                session_id=claim.session_id,
                position__gt=claim.ledger.covered_position,
                position__lte=claim.ledger.last_position,
            )
            .exclude(role__in=PINNED_ROLES)
            .order_by("position")
        )

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord, threshold: Threshold, *, lease: float
    ) -> Claim | None:
        using = self.using
        number = claim.last_version + 1

        def work() -> bool:
            published = (
                models.Session.objects.using(using)
                .held(claim.session_id, claim.token, claim.epoch)
                .filter(covered_position=claim.ledger.covered_position, last_version=claim.last_version)
                .update(
                    due_since=_due_since(threshold, version.tokens_through, version.count),
                    last_version=number,
                    current_version=number,
                    covered_position=version.last_position,
                    covered_count=version.count,
                    covered_tokens=version.tokens_through,
                    attempts=0,
                    next_attempt_at=None,
                    last_error="",
                    lease_expires_at=Clock(lease),
                    revision=F("revision") + 1,
                    updated_at=Clock(),
                )
            )
            if published:
                models.Summary.objects.using(using).create(
                    session_id=claim.session_id,
                    version=number,
                    parent_version=claim.summary.version if claim.summary else None,
                    first_position=version.first_position,
                    last_position=version.last_position,
                    covered_count=version.count,
                    covered_tokens=version.tokens_through,
                    text=version.text,
                    tokens=version.tokens,
                    model=version.model,
                    shortened=version.shortened,
                    fallback=version.fallback,
                    prompt_hash=version.prompt_hash,
                    created_at=Clock(),
                )
                self._record(claim, dataclasses.replace(attempt, version=number))
            return bool(published)

        if not transactions.run(using, work):
            self.record(claim, dataclasses.replace(attempt, outcome=models.Attempt.Outcome.DROPPED, version=None))
            return None
        return dataclasses.replace(
            claim,
            last_version=number,
            attempts=0,
            ledger=dataclasses.replace(
                claim.ledger,
                covered_position=version.last_position,
                covered_count=version.count,
                covered_tokens=version.tokens_through,
            ),
            summary=SummaryVersion(number, version.first_position, version.last_position, version.text, version.tokens),
        )

    def release(
        self,
        claim: Claim,
        threshold: Threshold,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
        hint: bool = False,
    ) -> bool:
        using = self.using
        attempts = 0 if not error else max(0, claim.attempts - 1) if uncount else claim.attempts

        def work() -> bool:
            sessions = models.Session.objects.using(using).filter(pk=claim.session_id)
            # By the token alone: an expired lease that nobody took is ours to free, another's token is not.
            released = sessions.filter(lease_token=claim.token).update(
                # Recomputed from the counters as they are now: an append during the call is not forgotten.
                due_since=_due_since(threshold, F("covered_tokens"), F("covered_count")),
                lease_token="",
                lease_expires_at=None,
                attempts=attempts,
                last_error=error,
                next_attempt_at=None if retry_in is None else Clock(retry_in),
                revision=F("revision") + 1,
                **({"hinted_at": Clock()} if hint else {}),
            )
            return bool(released) and sessions.due().exists()

        return transactions.run(using, work)

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        using = self.using

        def work() -> None:
            # The row's lock: a session that is deleted meanwhile takes its books with it.
            session = models.Session.objects.using(using).filter(pk=claim.session_id)
            if session.update(updated_at=F("updated_at")):
                self._record(claim, attempt)

        transactions.run(using, work)

    def _record(self, claim: Claim, attempt: AttemptRecord) -> None:
        models.Attempt.objects.using(self.using).create(
            session_id=claim.session_id,
            alias=claim.name.alias,
            started=Clock(-attempt.duration),
            **dataclasses.asdict(attempt),
        )

    def paused(self, alias: str, *, seconds: float) -> bool:
        newest = (
            models.Attempt.objects.using(self.using)
            .newest(alias)
            .annotate(recent=Case(When(started__gt=Clock(-seconds), then=Value(1)), default=Value(0)))
            .values_list("outcome", "recent")
        )
        return list(newest) == [(models.Attempt.Outcome.MISCONFIGURED.value, 1)]

    def sweep(self, alias: str, *, limit: int, hint_age: float) -> list[int]:
        using = self.using
        stale = models.Session.objects.using(using).due().unleased().ready().filter(alias=alias).unhinted(hint_age)
        found = list(stale.order_by("due_since", "pk").values_list("pk", flat=True)[:limit])
        if not found:
            return []

        def work() -> list[int]:
            # Two sweepers at once: each row goes to the one whose update comes first.
            token = Clock()
            return [pk for pk in found if stale.filter(pk=pk).update(hinted_at=token)]

        return transactions.run(using, work)


def _placed(rows: Any) -> list[Placed]:
    """Return the messages that these rows hold, by position."""
    placed = [
        Placed(position, statements.message_of(role, kind, content, wire, metadata), tokens, answers)
        for _, position, role, kind, content, wire, metadata, tokens, answers in rows
        if position is not None
    ]
    placed.sort(key=lambda one: one.position)
    return placed


def _due_since(threshold: Threshold, covered_tokens: Any, covered_count: Any) -> Case:
    condition = models.exceeds(threshold, covered_tokens=covered_tokens, covered_count=covered_count)
    return Case(
        When(condition, then=Coalesce("due_since", Clock())), default=None, output_field=DateTimeField(null=True)
    )


# The three ways to append. Each runs in a transaction and returns None where no row was changed.


def _append_in_one(
    using: str, name: SessionName, batch: Batch, threshold: Threshold, counter: str, hint: bool
) -> statements.Advanced | None:
    with connections[using].cursor() as cursor:
        cursor.execute(
            *statements.append_in_one("postgresql", name.handle, batch, threshold, counter=counter, hint=hint)
        )
        row = cursor.fetchone()
        advanced = statements.Advanced(*row) if row else None
        if advanced is not None:
            _insert(cursor, "postgresql", batch, advanced, statements.ROWS_PER_INSERT)
        return advanced


def _append_in_two(
    using: str, name: SessionName, batch: Batch, threshold: Threshold, counter: str, hint: bool
) -> statements.Advanced | None:
    with connections[using].cursor() as cursor:
        cursor.execute(*statements.advance("sqlite", name.handle, batch, threshold, counter=counter, hint=hint))
        row = cursor.fetchone()
        advanced = statements.Advanced(*row) if row else None
        if advanced is not None:
            _insert(cursor, "sqlite", batch, advanced)
        return advanced


def _append_locking(
    using: str, name: SessionName, batch: Batch, threshold: Threshold, counter: str, hint: bool
) -> statements.Advanced | None:
    session = models.Session.objects.using(using).select_for_update().named(name).first()
    if session is None:
        return None
    before = session.ledger
    try:
        after, _ = before.append(batch.entries)
    except exceptions.InvalidMessage:
        return None  # The caller finds out why, outside of the lock.
    turned_due = session.due_since is None and after.due(threshold)
    changes: dict[str, Any] = {
        field: value for field, value in models.counters(after).items() if value != getattr(session, field)
    }
    if turned_due:
        changes |= {"due_since": Clock(), "due_revision": session.revision + 1, "hinted_at": Clock() if hint else None}
    models.Session.objects.using(using).filter(pk=session.pk).update(
        **changes,
        answered_position=before.call_position,
        counter=counter,
        revision=session.revision + 1,
        updated_at=Clock(),
    )
    advanced = statements.Advanced(
        session.pk,
        after.last_position,
        after.unpinned_tokens,
        before.call_position,
        Clock() if turned_due else session.due_since,
        turned_due,
    )
    with connections[using].cursor() as cursor:
        _insert(cursor, connections[using].vendor, batch, advanced)
    return advanced


def _insert(cursor: Any, vendor: str, batch: Batch, advanced: statements.Advanced, start: int = 0) -> None:
    for at in range(start, len(batch.entries), statements.ROWS_PER_INSERT):
        cursor.execute(*statements.insert(vendor, batch, advanced, at, at + statements.ROWS_PER_INSERT))
