"""Appending a batch to a session, in the fastest way of each database."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import FilteredRelation, Q

from django_convmemory import exceptions, models
from django_convmemory.clock import Clock
from django_convmemory.messages import CHAT
from django_convmemory.rules import spent_keys, values
from django_convmemory.rules.counters import Batch, Counters, Previous
from django_convmemory.rules.values import DueRule, SessionName
from django_convmemory.store import columns, creating, database, owners, preparing, sql, transactions
from django_convmemory.store.database import Database

# How often an append is tried while others change the session.
_TRIES = 20
# In seconds. Appends wait at most so long before the third try and each later one. So they do not keep the pace of a
# process that deletes the session again and again.
_LONGEST_PAUSE = 0.05
# With more tool results at the beginning of a batch, the statement would be nested too deeply.
_MAX_RESULTS = 8
# How many messages with tool calls are searched for the one that a refused result belongs to.
_RECENT = 200


class Appending(Database):
    """Appends to sessions."""

    def append(self, name: SessionName, batch: Batch, rule: DueRule, *, counter: str) -> values.Appended:
        """Store all messages of ``batch`` at the end of the session, or none. Create the session if there is none.

        In the same transaction the session is marked due if ``rule`` says so. ``counter`` is the name of the token
        counter.
        Raises :class:`~django_convmemory.exceptions.ToolResultRefused`, ``TooManyPinned``, ``IdempotencyConflict``.
        """
        using = self.using
        if batch.key_hash is None:
            return append_new(using, name, batch, rule, counter=counter)
        for _ in range(_TRIES):
            looked = _look_again(using, name, batch)
            if isinstance(looked, values.Appended):
                return looked
            try:
                return append_new(using, name, batch, rule, counter=counter, epoch=looked)
            except exceptions.OutcomeUnknown:
                continue  # The key tells whether it was stored.
            except _Moved:
                continue
            except (IntegrityError, exceptions.InvalidMessage):
                # Another retry of this append was faster. It held the session's row until it committed, so its rows are
                # visible now. They are why this batch is refused: its key is taken, and its tool results are stored.
                looked = _look_again(using, name, batch)
                if isinstance(looked, values.Appended):
                    return looked
                raise
        raise _contended(name)


class _Moved(Exception):
    """Messages were removed or changed since the key of an append was looked for."""


def _contended(name: SessionName) -> exceptions.SessionContended:
    return exceptions.SessionContended(f"The session {name.key!r} changes faster than it can be appended to.")


# Note [A key is used once]
#
# The unique index of a message's key lets two appends with the same key store their messages only once. It does not
# help after the messages were deleted: the key is in the session's row then. Such an append could come in between:
#
# - a retry looks for its key and finds nothing;
# - the first try, which was slow, stores the messages, and a clear deletes them;
# - the retry stores them again.
#
# So a keyed append stores nothing unless the session is at the epoch that it had when the key was looked for. A
# deletion raises the epoch. A session that was not there yet has the epoch 0 when it is created.


def _look_again(using: str, name: SessionName, batch: Batch) -> values.Appended | int:
    """Return what the batch's key has stored, or the epoch of the session at which the key was not used."""
    return transactions.run(using, lambda: _look(using, name, batch), atomic=False, happened=lambda: False)


def replay(using: str, name: SessionName, batch: Batch) -> values.Appended | None:
    """Return what the batch's key has stored, or None.

    Raises :class:`~django_convmemory.exceptions.IdempotencyConflict` if that was something else.
    """
    looked = _look(using, name, batch)
    return looked if isinstance(looked, values.Appended) else None


def _look(using: str, name: SessionName, batch: Batch) -> values.Appended | int:
    key_hash = batch.key_hash or ""
    row = _keyed(using, name, key_hash)
    if row is None:
        return 0
    session_id, epoch, due_since, spent, first, payload = row
    if first is None:
        spent_key = spent_keys.find(spent, key_hash)
        if spent_key is None:
            return int(epoch)
        # The messages are gone, and with them their content and tokens.
        first, payload = spent_key.first_position, values.Payload("", spent_key.size).text
    if not values.payload_of(payload).is_retried_by(batch):
        raise exceptions.IdempotencyConflict(values.key_conflict(first))
    last, tokens = first + len(batch.entries) - 1, 0
    if row[-1] is not None:
        rows = models.Message.objects.using(using).filter(session_id=session_id, position__range=(first, last))
        tokens = sum(transactions.latest(rows).values_list("tokens", flat=True))
    return values.Appended(session_id, first, last, tokens, due_since is not None, turned_due=False, replayed=True)


def _keyed(using: str, name: SessionName, key_hash: str) -> Sequence[Any] | None:
    """Read the session, and the position and the payload of the message with this key, or None twice."""
    sessions = models.Session.objects.using(using).named(name)
    names = ("pk", "epoch", "due_since", "spent_keys")
    if database.is_partitioned(connections[using]):
        # The session first. If a message is deleted in between, the epoch is not the session's any more.
        session = sessions.values_list(*names).first()
        if session is None:
            return None
        messages = models.Message.objects.using(using).filter(session_id=session[0], idempotency_key=key_hash)
        stored = list(messages.values_list("position", "payload_hash"))
        return *session, *(stored[0] if stored else (None, None))
    # An outer join begins with the session, and not with the keys of all sessions.
    keyed = FilteredRelation("convmemory_messages", condition=Q(convmemory_messages__idempotency_key=key_hash))
    rows = transactions.latest(sessions.annotate(keyed=keyed))
    row: Sequence[Any] | None = rows.values_list(*names, "keyed__position", "keyed__payload_hash").first()
    return row


def append_new(
    using: str, name: SessionName, batch: Batch, rule: DueRule, *, counter: str, epoch: int | None = None
) -> values.Appended:
    """Store ``batch``, whose key is not used yet. With ``epoch``, raise ``_Moved`` if the session is at another one."""
    connection = connections[using]
    append = _APPENDS.get(connection.vendor, _append_locking)
    if batch.has_items or len(batch.leading_results) > _MAX_RESULTS:
        append = _append_locking
    keyed = batch.key_hash is not None
    # The append is one statement, which is a transaction by itself.
    single = append is _append_in_one and len(batch.entries) <= sql.ROWS_PER_INSERT

    def work() -> sql.Advanced | None:
        return append(connection, name, batch, rule, counter, epoch)

    for number in range(_TRIES):
        if number > 1:
            time.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311
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
        _prepare(using, name, batch, epoch)
    raise _contended(name)


def _prepare(using: str, name: SessionName, batch: Batch, epoch: int | None) -> None:
    """Create the session if it is missing. Raise an error if it cannot take ``batch``.

    Raises ``_Moved`` if it is at another epoch than ``epoch``.
    """
    session = transactions.latest(models.Session.objects.using(using)).named(name).first()
    if session is None and name.row_id is not None:
        raise values.gone(name)
    if epoch not in (None, session.epoch if session else 0):
        raise _Moved
    counters = session.counters if session else Counters()
    try:
        counters.append(batch.entries, _previous(using, session, batch) if session else None)
    except exceptions.ToolResultRefused as error:
        raise _explained(using, session, error) from None
    if session is None:
        try:
            transactions.run(
                using,
                lambda: creating.create(using, name),
                savepoint=True,
                happened=lambda: False,  # If it exists, it is not created again.
            )
        except IntegrityError:
            # Another process has created the session, or the owner was deleted.
            owners.require(using, name.owner_id)


def _explained(
    using: str, session: models.Session | None, error: exceptions.ToolResultRefused
) -> exceptions.ToolResultRefused:
    """Return the error of a refused tool result, with the message that closed its exchange.

    If no stored message made the call, it is ``error`` itself.
    """
    if session is None:
        return error
    rows = models.Message.objects.using(using).filter(session=session, role="assistant")
    calls = rows.filter(wire__isnull=False).order_by("-position").values_list("position", "wire")
    for position, wire in calls[:_RECENT]:
        if error.call_id in columns.message_of("assistant", "", "", wire, None).call_ids:
            closing = rows.filter(position__gt=position).order_by("position")
            return values.late_result(error.call_id, position, closing.values_list("position", flat=True).first())
    return error


# The three ways to append. Each runs in a transaction, and returns None if it changed no row.


def _append_in_one(
    connection: BaseDatabaseWrapper, name: SessionName, batch: Batch, rule: DueRule, counter: str, epoch: int | None
) -> sql.Advanced | None:
    with connection.cursor() as cursor:
        preparing.execute(cursor, *sql.append_in_one(name, batch, rule, counter=counter, epoch=epoch))
        advanced = sql.Advanced.of(cursor.fetchone())
        if advanced is not None and len(batch.entries) > sql.ROWS_PER_INSERT:
            _insert(cursor, "postgresql", batch, advanced, sql.ROWS_PER_INSERT)
        return advanced


def _append_in_two(
    connection: BaseDatabaseWrapper, name: SessionName, batch: Batch, rule: DueRule, counter: str, epoch: int | None
) -> sql.Advanced | None:
    with connection.cursor() as cursor:
        cursor.execute(*sql.advance("sqlite", name, batch, rule, counter=counter, epoch=epoch))
        advanced = sql.Advanced.of(cursor.fetchone())
        if advanced is None:
            return None
        if advanced.turned_due:
            # The tail exceeds the threshold. It may have done so before.
            advanced = advanced._replace(due=True, turned_due=not advanced.due)
        if advanced.turned_due:
            cursor.execute(*sql.mark_due(advanced.session_id))
        _insert(cursor, "sqlite", batch, advanced)
        return advanced


def _append_locking(
    connection: BaseDatabaseWrapper, name: SessionName, batch: Batch, rule: DueRule, counter: str, epoch: int | None
) -> sql.Advanced | None:
    sessions = models.Session.objects.using(connection.alias).named(name)
    if epoch is not None:
        sessions = sessions.filter(epoch=epoch)
    if connection.features.has_select_for_update:
        session = sessions.select_for_update().first()
    else:
        # SQLite would refuse the lock to a transaction that reads before it writes.
        session = sessions.first() if sessions.lock() else None
    if session is None:
        return None
    before = session.counters
    try:
        after, rows = before.append(batch.entries, _previous(connection.alias, session, batch))
    except exceptions.InvalidMessage:
        return None  # The caller finds the reason, without the lock.
    over = after.due(rule.threshold, indexed_position=session.indexed_position)
    turned_due = session.due_since is None and over
    changes: dict[str, Any] = {
        field: value for field, value in models.counter_columns(after).items() if value != getattr(session, field)
    }
    if turned_due:
        changes |= {"due_since": Clock(), "due_revision": session.revision + 1}
    models.Session.objects.using(connection.alias).filter(pk=session.pk).update(
        **changes,
        answered_position=before.call_position,
        counter=counter if not before.last_position or session.counter == counter else "",
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
        for statement, params in sql.inserts_at(connection.vendor, batch, advanced.session_id, rows):
            cursor.execute(statement, params)
    return advanced


def _previous(using: str, session: models.Session, batch: Batch) -> Previous | None:
    """Read the last message of a session, if the place of the batch's first item depends on it."""
    first = batch.entries[0].message
    if first.format == CHAT or first.role != "assistant":
        return None
    rows = models.Message.objects.using(using).filter(session=session, position=session.last_position)
    row = transactions.latest(rows).values_list("format", "role", "kind", "answers").first()
    if row is None or row[0] is None:
        return None
    form, role, kind, answers = row
    return Previous(str(form), role, kind, session.last_position if answers is None else answers)


def _insert(cursor: Any, vendor: str, batch: Batch, advanced: sql.Advanced, start: int = 0) -> None:
    for statement, params in sql.inserts(vendor, batch, advanced, start):
        cursor.execute(statement, params)


_APPENDS = {"postgresql": _append_in_one, "sqlite": _append_in_two}
