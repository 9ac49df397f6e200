"""The store over Django's models: PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connections, router, transaction
from django.db.models import BigIntegerField, Case, DateTimeField, F, Value, When
from django.db.models.functions import Coalesce, Least

from django_convmemory import exceptions, models
from django_convmemory.clock import Clock
from django_convmemory.core import exchanges, values
from django_convmemory.core.counters import Batch
from django_convmemory.core.exchanges import Placed, Turn
from django_convmemory.core.strategies import Threshold, View
from django_convmemory.core.values import (
    AttemptOutcome,
    AttemptRecord,
    Claim,
    DueRule,
    NewVersion,
    SessionName,
    SummaryVersion,
)
from django_convmemory.messages import PINNED_ROLES
from django_convmemory.stores import appending, columns, creating, editing, sql, transactions

T = TypeVar("T")

logger = logging.getLogger(__name__)

# How often adopt() is tried while the owner creates sessions with the same keys.
_TRIES = 20
_LONGEST_PAUSE = 0.05


class ORMStore:
    """Keeps sessions in the tables of this app.

    ``using`` names the database. Without it the database routers choose one. Reads go to the database that is written,
    so that a request sees its own appends. With ``read_replica=True`` the routers choose the database for reads; this
    is for a memory that is built in code.
    """

    def __init__(self, using: str | None = None, *, read_replica: bool = False) -> None:
        self._using = using
        self._read_replica = read_replica

    @property
    def using(self) -> str:
        """The database that is written."""
        return self._using or router.db_for_write(models.Session)

    def _run(self, work: Callable[[str], T], *, savepoint: bool = False) -> T:
        """Run ``work`` in a transaction on the database that is written. It takes the name of the database."""
        using = self.using
        return transactions.run(using, lambda: work(using), savepoint=savepoint)

    def owner_id(self, owner: Any) -> Any:
        # A row of another model may have the id of a user, and an unsaved user may have an id already.
        if not isinstance(owner, get_user_model()) or owner._state.adding or owner.pk is None:
            raise values.no_owner(owner)
        # The id of a user may be a UUID in the form of a text.
        return owner._meta.pk.to_python(owner.pk)

    def append(self, name: SessionName, batch: Batch, rule: DueRule, *, counter: str) -> values.Appended:
        return appending.append(self.using, name, batch, rule, counter=counter)

    def create(self, name: SessionName, *, title: str, metadata: Mapping[str, Any]) -> models.Session:
        using = self.using
        if name.row_id is not None:
            raise values.gone(name) if self.find(name) is None else values.session_exists(name)

        def insert() -> models.Session:
            with creating.explained(using, name):
                return transactions.run(
                    using, lambda: creating.create(using, name, title=title, metadata=metadata), savepoint=True
                )

        return _settled(insert, name)

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        self._run(lambda using: editing.update(using, name, changes, revision=revision))

    def delete(self, name: SessionName, *, revision: int | None) -> bool:
        return _settled(
            lambda: self._run(lambda using: editing.delete(using, name, revision=revision), savepoint=True), name
        )

    # Load.

    def load(self, name: SessionName, view: View, max_pinned_tokens: int) -> values.Snapshot | None:
        using = router.db_for_read(models.Session) if self._read_replica else self.using
        connection = connections[using]
        while True:
            with connection.cursor() as cursor:
                cursor.execute(*sql.load(connection.vendor, name, view))
                rows = {row[0]: row for row in cursor.fetchall()}
                if not rows:
                    return None
                session = rows.pop(None)
                session_id, epoch, revision, due, *counted = json.loads(session[sql.AT_SESSION])
                if name.row_id not in (None, session_id):
                    return None
                counters, summary = models.counters_of(counted), session[sql.AT_SUMMARY]
                tail, pinned = _placed(rows.values()), []
                if counters.pinned:
                    bound = values.view_bound(counters, view)
                    tail = [
                        placed
                        for placed in tail
                        if placed.message.role not in PINNED_ROLES and placed.position > bound.position
                    ]
                    positions = values.shown_pinned(counters.pinned, max_pinned_tokens)
                    cursor.execute(*sql.placed(session_id, positions))
                    pinned_rows = cursor.fetchall()
                    # Messages were removed between the two statements. The summary may cover them: read all again.
                    if not pinned_rows or pinned_rows[0][0] != epoch:
                        continue
                    pinned = _placed(row[1:] for row in pinned_rows if row[1] is not None)
            return values.Snapshot(
                session_id=session_id,
                counters=counters,
                due=bool(due),
                revision=revision,
                summary=SummaryVersion(*json.loads(summary)) if view.summary and summary else None,
                pinned=pinned,
                tail=tail,
            )

    def history(
        self, name: SessionName, *, before: int | None, after: int | None, limit: int
    ) -> list[values.StoredMessage]:
        using = router.db_for_read(models.Session) if self._read_replica else self.using
        # A subquery and not a join, and a range of positions: PostgreSQL expects a session of the usual length, and
        # might otherwise fetch and sort all of its messages.
        sessions = models.Session.objects.using(using).named(name)
        rows = models.Message.objects.using(using).filter(session_id=sessions.values("pk")[:1])
        if before is not None:
            rows = rows.filter(position__lt=before)
        if after is not None:
            rows = rows.filter(position__gt=after, position__lte=after + limit)
        else:
            end: Any = F("last_position") + 1
            if before is not None:
                end = Least(end, _bigint(before), output_field=BigIntegerField())
            rows = rows.filter(position__gte=sessions.values(first=end - _bigint(limit))[:1])
        # Ordered by both columns of the key: for the position alone, the database may scan the whole table.
        order = ("session_id", "position") if after is not None else ("-session_id", "-position")
        names = ("position", "created_at", *columns.READ_NAMES, "tokens", "redacted_at")
        stored_messages = [
            values.StoredMessage(
                position, created_at, columns.message_of_values(stored), tokens, redacted_at is not None
            )
            for position, created_at, *stored, tokens, redacted_at in (
                rows.order_by(*order).values_list(*names)[:limit]
            )
        ]
        return stored_messages if after is not None else stored_messages[::-1]

    # Operations that change stored conversations.

    def clear(self, name: SessionName) -> None:
        def work(using: str) -> None:
            # The write comes first: it locks the session's row.
            changed = (
                models.Session.objects.using(using)
                .named(name)
                .update(**models.EMPTIED, epoch=F("epoch") + 1, revision=F("revision") + 1, updated_at=Clock())
            )
            if not changed and name.row_id is not None:
                raise values.gone(name)
            session_id = self.find(name) if changed else None
            if session_id is not None:
                models.Message.objects.using(using).filter(session_id=session_id).delete()
                models.Summary.objects.using(using).filter(session_id=session_id).delete()

        self._run(work)

    def truncate(
        self, name: SessionName, after: int, rule: DueRule, *, revision: int | None
    ) -> tuple[int, values.Edited | None]:
        return self._run(lambda using: editing.truncate(using, name, after, rule, revision=revision))

    def fork(self, source: SessionName, target: SessionName, at: int, rule: DueRule) -> values.Forked:
        using = self.using

        def copy() -> values.Forked:
            with creating.explained(using, target):
                return transactions.run(using, lambda: editing.fork(using, source, target, at, rule), savepoint=True)

        return _settled(copy, target)

    def redact(self, name: SessionName, position: int, rule: DueRule, *, forks: bool) -> list[values.Edited]:
        return self._run(lambda using: editing.redact(using, name, position, rule, forks=forks), savepoint=True)

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        return self._run(lambda using: editing.erase(using, alias, owner_id=owner_id, visitor=visitor))

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        # The owner may create a session with one of the keys at the same time.
        return _settled(
            lambda: self._run(lambda using: editing.adopt(using, alias, visitor, owner_id), savepoint=True),
            f"all sessions of owner {owner_id!r}",
        )

    def on_commit(self, function: Callable[[], None]) -> None:
        connection = connections[self.using]
        if connection.in_atomic_block or connection.get_autocommit():
            transaction.on_commit(function, using=self.using)
        else:
            # Django does not see the commits of a caller who has turned autocommit off. The sweep finds the session.
            logger.warning(
                "A task or a signal was not sent: autocommit is off, so the store cannot wait for the commit."
            )

    # Compaction. Many processes may read the tail and call a model. Only the one that holds the lease may write: its
    # token is in the row, and by the database's clock the lease has not expired. Each write begins with an UPDATE whose
    # WHERE checks the token, the expiry, the epoch and the covered position. So a process changes no row if it slept
    # through its lease, or if the messages that it folded were changed meanwhile.

    def find(self, name: SessionName) -> int | None:
        sessions = transactions.latest(models.Session.objects.using(self.using)).named(name)
        return sessions.values_list("pk", flat=True).first()

    def claim(self, session_id: int, *, lease: float, force: bool) -> Claim | str:
        def work(using: str) -> Claim | str:
            sessions = models.Session.objects.using(using).filter(pk=session_id)
            free = sessions.due().unleased()
            if not force:
                free = free.ready()
            leased = _lease(free, lease, attempts=F("attempts") + 1)
            current = transactions.latest(sessions)
            if leased:
                session, now = current.get(), sessions.values_list(Clock()).get()[0]
                return values.claimed(session, self._summary(session), (now - session.due_since).total_seconds())
            if not current.due().exists():
                return "not_due"
            return "waiting" if current.unleased().exists() else "busy"

        return self._run(work)

    def _summary(self, session: models.Session) -> SummaryVersion | None:
        if not session.current_version:
            return None
        rows = transactions.latest(models.Summary.objects.using(self.using))
        return rows.get(session=session, version=session.current_version).value

    def claim_rebuild(self, session_id: int, *, lease: float, prompt_hash: str) -> Claim | str:
        def work(using: str) -> Claim | str:
            sessions = models.Session.objects.using(using).filter(pk=session_id)
            summarized = sessions.filter(current_version__gt=0)
            if not _lease(summarized.unleased(), lease, epoch=F("epoch") + 1):
                return "busy" if summarized.exists() else "not_due"
            summaries = models.Summary.objects.using(using).filter(session_id=session_id)
            building = transactions.latest(summaries).valid().filter(building=True).order_by("version")
            line = values.building_line(building, prompt_hash)
            summaries.filter(building=True).exclude(version__in=line).valid().update(invalidated_at=Clock())
            session = transactions.latest(sessions).get()
            return values.rebuilding(values.claimed(session, self._summary(session), 0.0), line)

        return self._run(work)

    def turns(self, claim: Claim) -> list[Turn]:
        rows = self._tail(claim).values_list("position", "tokens", "answers")
        return [Turn(*row) for row in rows.iterator(chunk_size=2000)]

    def messages(self, claim: Claim, first: int, last: int) -> list[Placed]:
        rows = self._tail(claim).filter(position__gte=first, position__lte=last)
        return _placed(rows.values_list(*sql.PLACED_NAMES))

    def _tail(self, claim: Claim) -> Any:
        return (
            models.Message.objects.using(self.using)
            .filter(
                session_id=claim.session_id,
                position__gt=claim.counters.covered_position,
                position__lte=claim.counters.last_position,
            )
            .exclude(role__in=PINNED_ROLES)
            .order_by("position")
        )

    def extend(self, claim: Claim, *, lease: float) -> bool:
        held = models.Session.objects.using(self.using).held(claim.session_id, claim.token, claim.epoch)
        return bool(transactions.run(held.db, lambda: held.update(lease_expires_at=Clock(lease)), savepoint=True))

    def release_connection(self) -> None:
        # The database may close an idle connection while the model answers, and the answer would be lost.
        # The next statement opens a new connection. A connection of a pool goes back to the pool.
        connection = connections[self.using]
        if connection.get_autocommit() and not connection.in_atomic_block:
            connection.close()

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, rule: DueRule, *, lease: float
    ) -> Claim | None:
        number = claim.last_version + 1
        building = claim.rebuilding and version.last_position < claim.counters.last_position
        pointer: dict[str, Any] = {}
        if not building:
            pointer = {
                "due_since": _due_since(rule.threshold, version.covered_tokens, version.covered_count),
                "current_version": number,
                **version.covered._asdict(),
            }

        def work(using: str) -> bool:
            published = (
                models.Session.objects.using(using)
                .held(claim.session_id, claim.token, claim.epoch)
                .filter(covered_position=values.covered_by(claim), last_version=claim.last_version)
                .update(
                    **pointer,
                    last_version=number,
                    attempts=0,
                    next_attempt_at=None,
                    last_error="",
                    lease_expires_at=Clock(lease),
                    revision=F("revision") + 1,
                    updated_at=Clock(),
                )
            )
            if published:
                summaries = models.Summary.objects.using(using).filter(session_id=claim.session_id)
                if claim.rebuilding and not building:
                    summaries.valid().filter(building=True).update(building=False)
                summaries.create(
                    session_id=claim.session_id,
                    version=number,
                    parent_version=claim.summary.version if claim.summary else None,
                    building=building,
                    created_at=Clock(),
                    **dataclasses.asdict(version),
                )
                if attempt is not None:
                    self._record(claim, dataclasses.replace(attempt, version=number))
            return bool(published)

        if not self._run(work, savepoint=True):
            if attempt is not None:
                self.record(claim, dataclasses.replace(attempt, outcome=AttemptOutcome.DROPPED))
            return None
        return values.after_publishing(claim, version, number)

    def release(
        self,
        claim: Claim,
        rule: DueRule,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
    ) -> bool:
        attempts = 0 if not error else max(0, claim.attempts - 1) if uncount else claim.attempts

        def work(using: str) -> bool:
            sessions = models.Session.objects.using(using).filter(pk=claim.session_id)
            # By the token alone: this process may release its expired lease as long as nobody else has taken one.
            released = sessions.filter(lease_token=claim.token).update(
                # Computed from the current counters, which include appends during the call of the model.
                due_since=_due_since(rule.threshold, F("covered_tokens"), F("covered_count")),
                lease_token="",
                lease_expires_at=None,
                attempts=attempts,
                last_error=error,
                next_attempt_at=None if retry_in is None else Clock(retry_in),
                revision=F("revision") + 1,
                **({"hinted_at": Clock()} if rule.hint else {}),
            )
            return bool(released) and sessions.due().exists()

        return self._run(work, savepoint=True)

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        def work(using: str) -> None:
            # With the lock of the row, nobody deletes the session meanwhile.
            if models.Session.objects.using(using).filter(pk=claim.session_id).lock():
                self._record(claim, attempt)

        self._run(work, savepoint=True)

    def _record(self, claim: Claim, attempt: AttemptRecord) -> None:
        models.Attempt.objects.using(self.using).create(
            session_id=claim.session_id,
            alias=claim.name.alias,
            started_at=Clock(-attempt.duration_seconds),
            **dataclasses.asdict(attempt),
        )

    def paused(self, alias: str, *, seconds: float) -> bool:
        newest = models.Attempt.objects.using(self.using).newest(alias)
        return any(
            outcome == AttemptOutcome.MISCONFIGURED and (now - started).total_seconds() - duration < seconds
            for outcome, started, duration, now in newest.values_list(
                "outcome", "started_at", "duration_seconds", Clock()
            )
        )

    def sweep(self, alias: str, *, limit: int, hint_age: float) -> list[int]:
        using = self.using
        stale = models.Session.objects.using(using).due().unleased().ready().filter(alias=alias).unhinted(hint_age)
        longest_due = stale.order_by("due_since", "pk").values_list("pk", flat=True)

        def work() -> list[int]:
            if not connections[using].features.has_select_for_update_skip_locked:
                # SQLite has one writer at a time. Of two sweeps, the first one that marks a row gets it, and the second
                # one looks for other rows.
                ids: list[int] = []
                while len(ids) < limit and (page := list(longest_due[: limit - len(ids)])):
                    ids += [pk for pk in page if stale.filter(pk=pk).update(hinted_at=Clock())]
                    if hint_age <= 0:
                        break
                return ids
            # Sweeps that run at the same time take different rows. A row that a request has locked is left for the next
            # sweep. This sweep holds the locks of other rows: if it waited, appends to those would wait too.
            ids = list(longest_due.select_for_update(skip_locked=True)[:limit])
            models.Session.objects.using(using).filter(pk__in=ids).update(hinted_at=Clock())
            return ids

        if not longest_due.exists():
            return []
        return transactions.run(using, work)

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        due = models.Session.objects.using(self.using).due().unleased().ready().filter(alias=alias)
        return due.filter(hinted_at__lte=Clock(-after), hinted_at__gt=Clock(-within)).order_by()[:limit].count()

    def unhint(self, session_ids: Sequence[int]) -> None:
        sessions = models.Session.objects.using(self.using).filter(pk__in=session_ids)
        transactions.run(sessions.db, lambda: sessions.update(hinted_at=None))


def _settled(work: Callable[[], T], what: object) -> T:
    """Run ``work`` again as long as changes by other processes violate a constraint, for example a unique name.

    Raises :class:`~django_convmemory.exceptions.SessionContended` in the end.
    """
    for _ in range(_TRIES):
        try:
            return work()
        except IntegrityError:
            time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311
    raise exceptions.SessionContended(f"Other processes change {what} all the time. Try again later.")


def _lease(free: models.SessionQuerySet, seconds: float, **changes: Any) -> int:
    """Take the lease of the session ``free``, and return the number of rows.

    Raises ImproperlyConfigured if nothing would commit the claim and the summary.
    """
    connection = connections[free.db]
    if not (connection.get_autocommit() or connection.in_atomic_block):
        raise ImproperlyConfigured(
            f"AUTOCOMMIT of the database {free.db!r} is off: a summary would be paid for and never be "
            "committed. Turn it on in the processes that make summaries."
        )
    return free.update(
        lease_token=uuid.uuid4().hex, lease_expires_at=Clock(seconds), **changes, revision=F("revision") + 1
    )


def _placed(rows: Any) -> list[Placed]:
    """Return the messages of rows with the columns ``PLACED_NAMES``, by position."""
    placed = []
    longer = bool(columns.MORE_NAMES)  # Slicing each row for nothing would take a fifth of the time.
    message_of = columns.message_of
    for row in rows:
        position, role, kind, content, wire, metadata, tokens, answers, redacted = row[:9] if longer else row
        message = message_of(role, kind, content, wire, metadata, row[9:] if longer else ())
        placed.append(Placed(position, exchanges.redacted(message) if redacted else message, tokens, answers))
    placed.sort()  # By position, which is unique.
    return placed


def _bigint(number: int) -> Value:
    # PostgreSQL would get a plain value as an integer of four bytes, whatever its size.
    return Value(number, BigIntegerField())


def _due_since(threshold: Threshold, covered_tokens: Any, covered_count: Any) -> Case:
    condition = models.exceeds(threshold, covered_tokens=covered_tokens, covered_count=covered_count)
    return Case(
        When(condition, then=Coalesce("due_since", Clock())), default=None, output_field=DateTimeField(null=True)
    )
