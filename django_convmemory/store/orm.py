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
from django.db import IntegrityError, connections, router, transaction
from django.db.models import BigIntegerField, F, Value
from django.db.models.functions import Least

from django_convmemory import exceptions, models
from django_convmemory.messages import PINNED_ROLES, ChatMessage
from django_convmemory.rules import exchanges, values
from django_convmemory.rules.breaker import Breaker, Reason
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.creations import Creation
from django_convmemory.rules.exchanges import Placed, Turn
from django_convmemory.rules.indexable import IndexRead, Unindexed
from django_convmemory.rules.segments import Segment
from django_convmemory.rules.strategies import View
from django_convmemory.rules.values import (
    AttemptOutcome,
    AttemptRecord,
    Claim,
    DueRule,
    NewVersion,
    SessionName,
    SummaryVersion,
)
from django_convmemory.store import (
    appending,
    breakers,
    columns,
    compiled,
    creating,
    editing,
    index_rows,
    leases,
    partitions,
    preparing,
    publishing,
    replacing,
    searching,
    sql,
    sweeping,
    transactions,
)
from django_convmemory.store.compiled import Slot

T = TypeVar("T")

logger = logging.getLogger(__name__)

# How often adopt() is tried while the owner creates sessions with the same keys.
_TRIES = 20
_LONGEST_PAUSE = 0.05


class ORMStore:
    """Keeps sessions in the tables of this app.

    ``using`` names the database. Without it the database routers choose one. Reads go to the database that is written,
    so that a request sees its own appends.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    @property
    def using(self) -> str:
        """The database that is written."""
        return self._using or router.db_for_write(models.Session)

    def _run(
        self, work: Callable[[str], T], *, savepoint: bool = False, happened: Callable[[], bool] | None = None
    ) -> T:
        """Run ``work`` in a transaction on the database that is written. It takes the name of the database."""
        using = self.using
        return transactions.run(using, lambda: work(using), savepoint=savepoint, happened=happened)

    def _none(self, **conditions: Any) -> bool:
        """Whether no session meets the conditions."""
        return not models.Session.objects.using(self.using).filter(**conditions).exists()

    def owner_id(self, owner: Any) -> Any:
        # A row of another model may have the id of a user, and an unsaved user may have an id already.
        if not isinstance(owner, get_user_model()) or owner._state.adding or owner.pk is None:
            raise values.no_owner(owner)
        # The id of a user may be a UUID in the form of a text.
        return owner._meta.pk.to_python(owner.pk)

    def append(self, name: SessionName, batch: Batch, rule: DueRule, *, counter: str) -> values.Appended:
        return appending.append(self.using, name, batch, rule, counter=counter)

    def replace(
        self, name: SessionName, after: int, batch: Batch, rule: DueRule, *, counter: str, revision: int | None
    ) -> values.Appended:
        using = self.using
        return _settled(
            lambda: replacing.replace(using, name, after, batch, rule, counter=counter, revision=revision), name
        )

    def create(
        self, name: SessionName, *, title: str, metadata: Mapping[str, Any], creation: Creation | None = None
    ) -> models.Session:
        using = self.using
        if name.row_id is not None:
            raise values.gone(name) if self.find(name) is None else values.session_exists(name)

        def insert() -> models.Session:
            if creation is not None:
                earlier = transactions.run(
                    using, lambda: creating.replayed(using, creation), atomic=False, happened=lambda: False
                )
                if earlier is not None:
                    return earlier
            public_id = uuid.uuid4()
            columns = {"public_id": public_id, "title": title, "metadata": metadata, **creating.columns_of(creation)}
            with creating.explained(using, name, creation):
                return transactions.run(
                    using,
                    lambda: creating.create(using, name, **columns),
                    savepoint=True,
                    happened=lambda: not self._none(public_id=public_id),
                )

        return _settled(insert, name)

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        using = self.using
        # One statement, so no transaction.
        transactions.run(using, lambda: editing.update(using, name, changes, revision=revision), atomic=False)

    def update_message(
        self, name: SessionName, position: int, metadata: Mapping[str, Any], *, revision: int | None
    ) -> None:
        self._run(
            lambda using: editing.update_message(using, name, position, metadata, revision=revision),
            savepoint=True,
            happened=lambda: False,  # A second change to the same metadata does no harm.
        )

    def delete(self, name: SessionName, *, revision: int | None) -> bool:
        return _settled(
            lambda: self._run(
                lambda using: editing.delete(using, name, revision=revision),
                savepoint=True,
                happened=lambda: self._none(name_hash=name.name_hash),
            ),
            name,
        )

    # Load.

    def load(self, name: SessionName, view: View, max_pinned_tokens: int) -> values.Snapshot | None:
        connection = connections[self.using]
        by_id = partitions.constant_id(self.using, name)
        while True:
            with connection.cursor() as cursor:
                statement = sql.load(connection.vendor, name, view, by_id)
                if by_id is None:
                    preparing.execute(cursor, *statement)
                else:
                    # A plan for any session would lock all partitions.
                    cursor.execute(*statement)
                rows = {row[0]: row for row in cursor.fetchall()}
                if not rows:
                    return None
                session = rows.pop(None)
                session_id, epoch, revision, due, *counted = json.loads(session[sql.AT_SESSION])
                if name.row_id not in (None, session_id):
                    return None
                if by_id not in (None, session_id):
                    # Another session has got the name since. The messages are not its own.
                    by_id = session_id
                    continue
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
                epoch=epoch,
                summary=SummaryVersion(*json.loads(summary)) if view.summary and summary else None,
                pinned=pinned,
                tail=tail,
            )

    def history(
        self, name: SessionName, *, before: int | None, after: int | None, limit: int, items: bool = False
    ) -> list[values.StoredMessage]:
        using = self.using
        # A subquery and not a join, and a range of positions: PostgreSQL expects a session of the usual length, and
        # might otherwise fetch and sort all of its messages.
        sessions = models.Session.objects.using(using).named(name)
        rows = models.Message.objects.using(using).filter(session_id=partitions.id_of(sessions))
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
        names = columns.STORED_NAMES + (columns.ITEM_NAMES if items else ())
        stored_messages = [columns.stored_message(*row) for row in rows.order_by(*order).values_list(*names)[:limit]]
        return stored_messages if after is not None else stored_messages[::-1]

    # Recall: see indexing and searching.

    def unindexed(self, session_id: int, *, limit: int) -> Unindexed | None:
        return index_rows.unindexed(self.using, session_id, limit=limit)

    def add_segments(self, session_id: int, unindexed: Unindexed, new: Sequence[Segment]) -> bool:
        return index_rows.add(self.using, session_id, unindexed, new)

    def read_index(self, name: SessionName, *, before: int | None, epoch: int | None) -> IndexRead | None:
        return searching.read_index(self.using, name, before=before, epoch=epoch)

    def read_indexes_of(self, alias: str, *, owner_id: Any, visitor: str, max_messages: int) -> list[IndexRead]:
        using = self.using
        theirs = models.Session.objects.using(using).filter(alias=alias, owner_id=owner_id, visitor=visitor)
        return searching.read_indexes(using, theirs, max_messages=max_messages)

    def read_indexes_among(
        self, alias: str, sessions: models.SessionQuerySet, *, max_messages: int = 100_000
    ) -> list[IndexRead]:
        if getattr(sessions, "model", None) is not models.Session or sessions.query.is_sliced:
            raise exceptions.InvalidSession(
                "sessions must be a query of Session rows without a slice, such as Session.objects.filter(…)."
            )
        # A query may name its database, and have subqueries that another one could not run.
        using = sessions._db or self.using  # type: ignore[attr-defined]
        # By a subquery, because a query with a join has a session several times, and a union takes no filter.
        chosen = sessions.using(using).order_by().values("pk")
        rows = models.Session.objects.using(using).filter(alias=alias, pk__in=chosen)
        return searching.read_indexes(using, rows, max_messages=max_messages)

    def messages_at(self, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], values.StoredMessage]:
        return searching.messages_at(self.using, places)

    # Operations that change stored conversations.

    def clear(self, name: SessionName) -> None:
        self._run(
            lambda using: editing.clear(using, name),
            happened=lambda: self._none(name_hash=name.name_hash, last_position__gt=0),
        )

    def truncate(
        self, name: SessionName, after: int, rule: DueRule, *, revision: int | None
    ) -> tuple[int, values.Edited | None]:
        return self._run(
            lambda using: editing.truncate(using, name, after, rule, revision=revision),
            happened=lambda: self._none(name_hash=name.name_hash, last_position__gt=after),
        )

    def pop(self, name: SessionName, rule: DueRule) -> tuple[values.StoredMessage | None, values.Edited | None]:
        # If nobody knows whether it was deleted, another try could delete another message. So the error is raised.
        return self._run(lambda using: editing.pop(using, name, rule))

    def fork(
        self,
        source: SessionName,
        target: SessionName,
        at: int,
        rule: DueRule,
        *,
        title: str | None = None,
        creation: Creation | None = None,
    ) -> values.Forked:
        using = self.using

        def copy() -> values.Forked:
            public_id = uuid.uuid4()
            index = index_rows.copied(using, models.Session.objects.using(using).named(source), at)
            with creating.explained(using, target, creation):
                return transactions.run(
                    using,
                    lambda: editing.fork(
                        *(using, source, target, at, rule),
                        index=index,
                        public_id=public_id,
                        title=title,
                        creation=creation,
                    ),
                    savepoint=True,
                    happened=lambda: not self._none(public_id=public_id),
                )

        return _settled(copy, target)

    def redact(self, name: SessionName, position: int, rule: DueRule, *, forks: bool) -> values.Redaction:
        return self._run(
            lambda using: editing.redact(using, name, position, rule, forks=forks),
            savepoint=True,
            happened=lambda: False,  # A second redaction finds the same copies, and changes nothing.
        )

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        return self._run(
            lambda using: editing.erase(using, alias, owner_id=owner_id, visitor=visitor),
            happened=lambda: self._none(alias=alias, owner_id=owner_id, visitor=visitor),
        )

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        # The owner may create a session with one of the keys at the same time.
        return _settled(
            lambda: self._run(
                lambda using: editing.adopt(using, alias, visitor, owner_id),
                savepoint=True,
                happened=lambda: self._none(alias=alias, visitor=visitor),
            ),
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

    # Compaction: see leases.

    def find(self, name: SessionName) -> int | None:
        sessions = transactions.latest(models.Session.objects.using(self.using)).named(name)
        return sessions.values_list("pk", flat=True).first()

    def claim(self, session_id: int, rule: DueRule, *, lease: float, prompt_hash: str, force: bool) -> Claim | str:
        return leases.claim(self.using, session_id, rule, lease=lease, prompt_hash=prompt_hash, force=force)

    def claim_rebuild(
        self,
        session_id: int,
        *,
        lease: float,
        prompt_hash: str,
        stand_ins: bool,
        wait: float,
        reanchor_every: int | None = None,
    ) -> Claim | str:
        return leases.claim_rebuild(
            self.using,
            session_id,
            lease=lease,
            prompt_hash=prompt_hash,
            stand_ins=stand_ins,
            wait=wait,
            reanchor_every=reanchor_every,
        )

    def turns(self, claim: Claim) -> list[Turn]:
        covered, last = claim.counters.covered_position, claim.counters.last_position
        return [Turn(*row) for row in _turns(self.using).read(session_id=claim.session_id, after=covered, last=last)]

    def messages(self, claim: Claim, first: int, last: int) -> list[Placed]:
        # Only messages that the claim is for.
        after = max(first - 1, claim.counters.covered_position)
        last = min(last, claim.counters.last_position)
        rows = _messages(self.using).read(session_id=claim.session_id, after=after, last=last)
        placed = _placed(row[:-1] for row in rows)
        return [row._replace(created_at=created_at) for row, (*_, created_at) in zip(placed, rows, strict=True)]

    def extend(self, claim: Claim, *, lease: float) -> bool:
        return leases.extend(self.using, claim, lease=lease)

    def is_due(self, session_id: int) -> bool:
        return leases.is_due(self.using, session_id)

    def release_connection(self) -> None:
        # The database may close an idle connection while the model answers, and the answer would be lost.
        # The next statement opens a new connection. A connection of a pool goes back to the pool.
        connection = connections[self.using]
        if connection.get_autocommit() and not connection.in_atomic_block:
            connection.close()

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, rule: DueRule, *, lease: float
    ) -> Claim | None:
        if publishing.publish(self.using, claim, version, attempt, rule, lease=lease):
            return values.after_publishing(claim, version, claim.last_version + 1)
        if attempt is not None:
            self.record(claim, dataclasses.replace(attempt, outcome=AttemptOutcome.DROPPED))
        return None

    def release(
        self,
        claim: Claim,
        rule: DueRule,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
        rebuild_in: float | None = None,
    ) -> bool:
        return leases.release(
            self.using, claim, rule, retry_in=retry_in, error=error, uncount=uncount, rebuild_in=rebuild_in
        )

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        publishing.record(self.using, claim, attempt)

    def sweep(
        self,
        alias: str,
        *,
        limit: int,
        hint_age: float,
        fewest_attempts: bool = False,
        unindexed: int | None = None,
    ) -> list[int]:
        return sweeping.due(
            self.using, alias, limit=limit, hint_age=hint_age, fewest_attempts=fewest_attempts, unindexed=unindexed
        )

    def sweep_rebuilds(self, alias: str, *, limit: int, wait: float) -> list[int]:
        return sweeping.rebuilds(self.using, alias, limit=limit, wait=wait)

    def waiting_rebuilds(self, alias: str, *, within: float, limit: int) -> int:
        return sweeping.waiting_rebuilds(self.using, alias, within=within, limit=limit)

    def mark_unmarked(self, alias: str, rule: DueRule, *, limit: int) -> int:
        return sweeping.mark_unmarked(self.using, alias, rule, limit=limit)

    def breaker(self, alias: str) -> Breaker:
        return breakers.read(self.using, alias)

    def count_failure(self, alias: str, session_id: int, error: str, *, seconds: float = 0.0) -> int:
        return breakers.count_failure(self.using, alias, session_id, error, seconds=seconds)

    def open_breaker(self, alias: str, reason: Reason, error: str, *, seconds: float) -> None:
        breakers.open_(self.using, alias, reason, error, seconds=seconds)

    def probe(self, alias: str, *, seconds: float) -> bool:
        return breakers.probe(self.using, alias, seconds=seconds)

    def end_probe(self, alias: str, *, seconds: float = 0.0, silent: bool = True) -> bool:
        return breakers.end_probe(self.using, alias, seconds=seconds, silent=silent)

    def close_breaker(self, alias: str) -> bool:
        return breakers.close(self.using, alias)

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        return sweeping.waiting(self.using, alias, after=after, within=within, limit=limit)

    def unhint(self, session_ids: Sequence[int]) -> None:
        sweeping.unhint(self.using, session_ids)


@compiled.once
def _turns(using: str) -> compiled.Selection:
    return compiled.selection(_unpinned(using).values_list(*Turn._fields))


@compiled.once
def _messages(using: str) -> compiled.Selection:
    return compiled.selection(_unpinned(using).values_list(*sql.PLACED_NAMES, "created_at"))


def _unpinned(using: str) -> Any:
    """Return the unpinned messages of a session after a position, through another one."""
    rows = models.Message.objects.using(using).filter(
        session_id=Slot("session_id"), position__gt=Slot("after"), position__lte=Slot("last")
    )
    return rows.exclude(role__in=PINNED_ROLES).order_by("position")


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


def _placed(rows: Any) -> list[Placed]:
    """Return the messages of rows with the columns ``PLACED_NAMES``, by position."""
    placed = []
    longer = bool(columns.MORE_NAMES)  # Slicing each row for nothing would take a fifth of the time.
    restore, message_of, place = ChatMessage.restore, columns.message_of, Placed._make
    for row in rows:
        position, role, kind, content, wire, metadata, tokens, answers, redacted = row[:9] if longer else row
        if wire or metadata or longer:
            message = message_of(role, kind, content, wire, metadata, row[9:])
        else:
            message = restore(role, content, kind)  # The usual case. A call more would take a tenth of the time.
        placed.append(place((position, exchanges.redacted(message) if redacted else message, tokens, answers, None)))
    placed.sort()  # By position, which is unique.
    return placed


def _bigint(number: int) -> Value:
    # PostgreSQL would get a plain value as an integer of four bytes, whatever its size.
    return Value(number, BigIntegerField())
