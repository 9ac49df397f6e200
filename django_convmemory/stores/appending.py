"""Appending a batch to a session, in the way that each database does it best."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F

from django_convmemory import exceptions, models
from django_convmemory.clock import Clock
from django_convmemory.core import values
from django_convmemory.core.counters import Batch, Counters
from django_convmemory.core.strategies import Threshold
from django_convmemory.core.values import SessionName
from django_convmemory.stores import creating, owners, sql, transactions

# How often an append that met a session in motion looks again.
_TRIES = 10
# For more results at the beginning of a batch the statement would be nested too deep.
_MANY_RESULTS = 8
# How many messages that made calls are looked at, to say which of them a refused result belongs to.
_RECENT = 200


def append(
    using: str, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
) -> values.Appended:
    """Store ``batch``: what :meth:`.base.Store.append` promises."""
    if batch.key_hash is not None:
        return _append_once(using, name, batch, threshold, counter=counter, hint=hint)
    return _append(using, name, batch, threshold, counter=counter, hint=hint)


def _append_once(
    using: str, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
) -> values.Appended:
    replayed = transactions.run(using, lambda: _replay(using, name, batch), atomic=False)
    if replayed is not None:
        return replayed
    try:
        return _append(using, name, batch, threshold, counter=counter, hint=hint)
    except (IntegrityError, exceptions.InvalidMessage):
        # Two retries met: the other one's rows are there now, for it held the session's row until it committed. What
        # this one brings is refused for them: its key is taken, and its tool results are there already.
        replayed = transactions.run(using, lambda: _replay(using, name, batch), atomic=False)
        if replayed is None:
            raise
        return replayed


def _replay(using: str, name: SessionName, batch: Batch) -> values.Appended | None:
    # As a value and not by a join, which could begin with the keys of all sessions.
    session = models.Session.objects.using(using).named(name).values("pk")[:1]
    row = (
        transactions.latest(models.Message.objects.using(using))
        .filter(session_id=session, idempotency_key=batch.key_hash)
        .values_list("session_id", "position", "payload_hash", "session__due_since")
        .first()
    )
    if row is None:
        return None
    session_id, first, payload, due_since = row
    if not values.payload_of(payload).is_retried_by(batch):
        raise exceptions.IdempotencyConflict(values.key_conflict(first))
    last = first + len(batch.entries) - 1
    rows = models.Message.objects.using(using).filter(session_id=session_id, position__gte=first, position__lte=last)
    tokens = sum(transactions.latest(rows).values_list("tokens", flat=True))
    return values.Appended(session_id, first, last, tokens, due_since is not None, turned_due=False, replayed=True)


def _append(
    using: str, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
) -> values.Appended:
    connection = connections[using]
    append = _WAYS.get(connection.vendor, _append_locking)
    if len(batch.leading_results) > _MANY_RESULTS:
        append = _append_locking
    keyed = batch.key_hash is not None
    # A statement is a transaction: nothing of the append stands outside it.
    single = append is _append_in_one and len(batch.entries) <= sql.ROWS_PER_INSERT and not keyed

    def work() -> sql.Advanced | None:
        return append(connection, name, batch, threshold, counter, hint)

    for _ in range(_TRIES):
        advanced = transactions.run(using, work, savepoint=keyed, atomic=not single)
        if advanced is not None:
            first = advanced.last_position - len(batch.entries) + 1
            return values.Appended(
                advanced.session_id,
                first,
                advanced.last_position,
                batch.tokens,
                advanced.due,
                advanced.turned_due,
                replayed=False,
            )
        _make_way(using, name, batch)
    raise exceptions.SessionContended(f"The session {name.key!r} changes faster than it can be appended to.")


def _make_way(using: str, name: SessionName, batch: Batch) -> None:
    """Create the session that is missing, or raise what keeps it from taking ``batch``."""
    session = transactions.latest(models.Session.objects.using(using)).named(name).first()
    if session is None and name.row_id is not None:
        raise values.gone(name)
    counters = session.counters if session else Counters()
    try:
        counters.append(batch.entries)
    except exceptions.ToolResultRefused as error:
        raise _explained(using, session, error) from None
    if session is None:
        try:
            transactions.run(using, lambda: creating.create(using, name), savepoint=True)
        except IntegrityError:
            # Another process was first, whatever became of it since, or the owner is gone.
            owners.require(using, name.owner_id)


def _explained(
    using: str, session: models.Session | None, error: exceptions.ToolResultRefused
) -> exceptions.ToolResultRefused:
    """Add to ``error`` which message closed the exchange that the result belongs to, where there was one."""
    if session is None:
        return error
    rows = models.Message.objects.using(using).filter(session=session, role="assistant")
    calls = rows.filter(wire__isnull=False).order_by("-position").values_list("position", "wire")
    for position, wire in calls[:_RECENT]:
        if error.call_id in sql.message_of("assistant", "", "", wire, None).call_ids:
            closing = rows.filter(position__gt=position).order_by("position")
            return values.late_result(error.call_id, position, closing.values_list("position", flat=True).first())
    return error


# The three ways to append. Each runs in a transaction and returns None where no row was changed.


def _append_in_one(
    connection: BaseDatabaseWrapper, name: SessionName, batch: Batch, threshold: Threshold, counter: str, hint: bool
) -> sql.Advanced | None:
    with connection.cursor() as cursor:
        cursor.execute(*sql.append_in_one(name, batch, threshold, counter=counter, hint=hint))
        advanced = sql.Advanced.of(cursor.fetchone())
        if advanced is not None:
            _insert(cursor, "postgresql", batch, advanced, sql.ROWS_PER_INSERT)
        return advanced


def _append_in_two(
    connection: BaseDatabaseWrapper, name: SessionName, batch: Batch, threshold: Threshold, counter: str, hint: bool
) -> sql.Advanced | None:
    with connection.cursor() as cursor:
        cursor.execute(*sql.advance("sqlite", name, batch, threshold, counter=counter, hint=hint))
        advanced = sql.Advanced.of(cursor.fetchone())
        if advanced is None:
            return None
        if advanced.turned_due:
            # It is over the threshold, and may have been before.
            advanced = advanced._replace(due=True, turned_due=not advanced.due)
        if advanced.turned_due:
            cursor.execute(*sql.mark_due(advanced.session_id, hint=hint))
        _insert(cursor, "sqlite", batch, advanced)
        return advanced


def _append_locking(
    connection: BaseDatabaseWrapper, name: SessionName, batch: Batch, threshold: Threshold, counter: str, hint: bool
) -> sql.Advanced | None:
    sessions = models.Session.objects.using(connection.alias).named(name)
    if connection.features.has_select_for_update:
        session = sessions.select_for_update().first()
    else:
        # SQLite: a write takes the lock, of which a reader that comes to write would be refused.
        session = sessions.first() if sessions.update(revision=F("revision")) else None
    if session is None:
        return None
    before = session.counters
    try:
        after, _ = before.append(batch.entries)
    except exceptions.InvalidMessage:
        return None  # The caller finds out why, outside of the lock.
    turned_due = session.due_since is None and after.due(threshold)
    changes: dict[str, Any] = {
        field: value for field, value in models.counter_columns(after).items() if value != getattr(session, field)
    }
    if turned_due:
        changes |= {"due_since": Clock(), "due_revision": session.revision + 1, "hinted_at": Clock() if hint else None}
    models.Session.objects.using(connection.alias).filter(pk=session.pk).update(
        **changes,
        answered_position=before.call_position,
        counter=counter,
        revision=session.revision + 1,
        updated_at=Clock(),
    )
    advanced = sql.Advanced(
        session.pk,
        after.last_position,
        after.unpinned_tokens,
        before.call_position,
        turned_due or session.due_since is not None,
        turned_due,
    )
    with connection.cursor() as cursor:
        _insert(cursor, connection.vendor, batch, advanced)
    return advanced


def _insert(cursor: Any, vendor: str, batch: Batch, advanced: sql.Advanced, start: int = 0) -> None:
    for first, after in sql.portions(batch, start):
        cursor.execute(*sql.insert(vendor, batch, advanced, first, after))


_WAYS = {"postgresql": _append_in_one, "sqlite": _append_in_two}
