"""Creating sessions, and appending a batch to one in the fastest way of each database."""

from __future__ import annotations

import functools
import random
import time
import uuid
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import IntegrityError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.crypto import constant_time_compare, salted_hmac

from django_convmemory import exceptions, models
from django_convmemory.clock import Clock
from django_convmemory.messages import CHAT
from django_convmemory.rules import values
from django_convmemory.rules.counters import Batch, Counters, Previous
from django_convmemory.rules.keys import Creation, check_reuse, creation_conflict, key_removed
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.turns import Does, Step
from django_convmemory.rules.values import SessionName
from django_convmemory.store import columns, preparing, sql, transactions
from django_convmemory.store.database import Database

# How many messages with tool calls are searched for the one that a refused result belongs to.
_RECENT = 200
_SALT = "django_convmemory.used_keys"


class Appending(Database):
    """Creates sessions, and appends to them."""

    def owner_id(self, owner: Any) -> Any:
        """Return the id of a user. Raises :class:`~django_convmemory.exceptions.InvalidSession` for anything else."""
        # A row of another model may have the id of a user, and an unsaved user may have an id already.
        if not isinstance(owner, get_user_model()) or owner._state.adding or owner.pk is None:
            raise values.no_owner(owner)
        # The id of a user may be a UUID in the form of a text.
        return owner._meta.pk.to_python(owner.pk)

    def create(
        self, name: SessionName, *, title: str, metadata: Mapping[str, Any], creation: Creation | None = None
    ) -> models.Session:
        """Create an empty session and return it: its row, if the store has rows.

        If an earlier request has used the key of ``creation``, return the session that it created. Its ``replayed`` is
        true. Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``IdempotencyConflict``.
        """
        using = self.using
        if name.row_id is not None:
            raise values.gone(name) if self.find(name) is None else values.session_exists(name)

        public_id = uuid.uuid4()
        work = functools.partial(
            create_session, using, name, creation, public_id=public_id, title=title, metadata=metadata
        )
        happened = self._sessions.filter(public_id=public_id).exists

        def insert() -> models.Session:
            try:
                return transactions.run(using, work, savepoint=True, happened=happened)
            except IntegrityError as error:
                return created_before(error, using, name, creation)

        return transactions.settled(insert, name)

    def append(self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str) -> values.Appended:
        """Store all messages of ``batch`` at the end of the session, or none. Create the session if there is none.

        In the same transaction the session is marked due if ``threshold`` says so. ``counter`` is the name of the token
        counter.
        Raises :class:`~django_convmemory.exceptions.ToolResultRefused`, ``TooManyPinned``, ``IdempotencyConflict``.
        """
        using = self._using or router.db_for_write(models.Session)
        if batch.key_hash is None:
            return append_new(using, name, batch, threshold, counter=counter)
        for _ in range(transactions.SETTLING_TRIES):
            try:
                return append_new(using, name, batch, threshold, counter=counter)
            except (IntegrityError, exceptions.ConvMemoryError) as error:
                # The key is used already, or the tool results are stored already, or an id is taken, or a turn is open,
                # perhaps that of the key, or nobody knows what happened. An append with this key that was faster is
                # committed by now: it held the lock of the session's row.
                looking = functools.partial(replay, using, name, batch)
                replayed = transactions.run(using, looking, atomic=False, happened=lambda: False)
                if replayed is not None:
                    return replayed
                if not (transactions.is_taken(error) or isinstance(error, exceptions.OutcomeUnknown)):
                    raise
        raise _contended(name)


def _contended(name: SessionName) -> exceptions.SessionContended:
    return exceptions.SessionContended(f"The session {name.key!r} changes faster than it can be appended to.")


def append_new(using: str, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str) -> values.Appended:
    """Store ``batch``. Raises IntegrityError if its key is used, and IdempotencyConflict if an id is."""
    connection = connections[using]
    content = None if batch.key_hash is None else content_of(batch)
    append = sql.Append(connection.vendor, name, batch, threshold, counter, content)
    way = _append_locking if append.is_unusual else _WAYS.get(connection.vendor, _append_locking)
    for number in range(transactions.SETTLING_TRIES):
        if number > 1:
            # So that it does not keep the pace of a process that deletes the session again and again.
            time.sleep(random.uniform(0, transactions.LONGEST_PAUSE))  # noqa: S311
        try:
            unsure = content is not None or batch.has_own_ids
            work = functools.partial(way, connection, append)
            # One statement is a transaction by itself.
            advanced = transactions.run(connection, work, savepoint=unsure, atomic=way is not _append_in_one)
        except IntegrityError:
            sessions = models.Session.objects.using(using).named(name).values("pk")
            messages = models.Message.objects.using(using).filter(session__in=sessions, public_id__in=batch.ids)
            if batch.has_own_ids and transactions.latest(messages).exists():
                raise values.id_taken() from None
            raise
        if advanced is not None:
            last = advanced.last_position
            first = last - len(batch.entries) + 1
            receipt = values.Receipt(first, last, batch.tokens, advanced.due, replayed=False, ids=batch.ids)
            return values.Appended(advanced.session_id, receipt, advanced.turned_due, advanced.epoch)
        _prepare(using, name, batch)
        if batch.leading_results:
            way = _append_locking  # Perhaps two calls have one id, which no statement tells apart.
    raise _contended(name)


def _prepare(using: str, name: SessionName, batch: Batch) -> None:
    """Create the session if it is missing. Raise an error if it cannot take ``batch``."""
    session = transactions.latest(models.Session.objects.using(using)).named(name).first()
    if session is None and name.row_id is not None:
        raise values.gone(name)
    if batch.step is not None:
        check_step(using, session, batch.step)
    counters = session.counters if session else Counters()
    try:
        counters.append(batch.entries, _previous(using, session, batch) if session else None)
    except exceptions.ToolResultRefused as error:
        raise _explained(using, session, error) from None
    if session is None:
        try:
            # If it exists, it is not created again.
            work = functools.partial(create_session, using, name)
            transactions.run(using, work, savepoint=True, happened=lambda: False)
        except IntegrityError as error:
            # Another process has created the session, or the owner was deleted.
            require_owner(using, name.owner_id)
            if not transactions.is_taken(error):
                raise


def check_step(using: str, session: models.Session | None, step: Step) -> None:
    """Raise the reason why the session is not as ``step`` needs it."""
    if session is None:
        step.check("", open_seconds=0.0, epoch=-1, last_position=0)
        return
    times = models.Session.objects.using(using).filter(pk=session.pk).values_list("turn_expires_at", Clock()).first()
    seconds = (times[0] - times[1]).total_seconds() if times and times[0] else 0.0
    step.check(session.turn_token, open_seconds=seconds, epoch=session.epoch, last_position=session.last_position)


def turn_columns(step: Step, question: int) -> dict[str, Any]:
    """Return what a step changes in the session's row."""
    if step.does is Does.ENDS:
        return {"turn_token": "", "turn_expires_at": None, "turn_question": 0}
    changes: dict[str, Any] = {"turn_expires_at": Clock(step.seconds)}
    if step.does is Does.BEGINS:
        changes |= {"turn_token": step.token, "turn_question": question, "turn_stopped": False}
    return changes


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


def _append_in_one(connection: BaseDatabaseWrapper, append: sql.Append) -> sql.Advanced | None:
    with connection.cursor() as cursor:
        preparing.execute(cursor, *append.in_one())
        row = cursor.cursor.fetchone()
        return None if row is None else sql.Advanced(*row)


def _append_in_two(connection: BaseDatabaseWrapper, append: sql.Append) -> sql.Advanced | None:
    with connection.cursor() as cursor:
        cursor.execute(*append.advance())
        with connection.wrap_database_errors:
            row = cursor.cursor.fetchone()
        if row is None:
            return None
        session_id, last_position, unpinned_tokens, answered_position, due, is_over, *epoch = row
        turned_due = bool(is_over) and not due
        if turned_due:
            cursor.execute(*sql.mark_due(session_id))
        due = bool(due or is_over)
        advanced = sql.Advanced(session_id, last_position, unpinned_tokens, answered_position, due, turned_due, *epoch)
        if append.content is not None:
            cursor.execute(*append.use_key(advanced))
        for statement, params in append.inserts(advanced):
            cursor.execute(statement, params)
        return advanced


def _append_locking(connection: BaseDatabaseWrapper, append: sql.Append) -> sql.Advanced | None:
    batch, using = append.batch, connection.alias
    sessions = models.Session.objects.using(using).named(append.name)
    if connection.features.has_select_for_update:
        session = sessions.select_for_update().first()
    else:
        # SQLite would refuse the lock to a transaction that reads before it writes.
        session = sessions.first() if sessions.lock() else None
    if session is None:
        return None
    before = session.counters
    try:
        if batch.step is not None:
            check_step(using, session, batch.step)
        after, rows = before.append(batch.entries, _previous(using, session, batch))
    except (exceptions.InvalidMessage, exceptions.TurnError):
        return None  # The caller finds the reason, without the lock.
    over = after.due(append.threshold, indexed_position=session.indexed_position)
    turned_due = session.due_since is None and over
    changes: dict[str, Any] = {
        field: value for field, value in models.counter_columns(after).items() if value != getattr(session, field)
    }
    if turned_due:
        changes |= {"due_since": Clock(), "due_revision": session.revision + 1}
    if batch.step is not None:
        changes |= turn_columns(batch.step, after.last_position)
    models.Session.objects.using(using).filter(pk=session.pk).update(
        **changes,
        answered_position=before.call_position,
        counter=append.counter if not before.last_position or session.counter == append.counter else "",
        revision=session.revision + 1,
        updated_at=Clock(),
    )
    due = turned_due or session.due_since is not None
    counted = (after.last_position, after.unpinned_tokens, before.call_position)
    advanced = sql.Advanced(session.pk, *counted, due, turned_due, session.epoch)
    with connection.cursor() as cursor:
        if append.content is not None:
            cursor.execute(*append.use_key(advanced))
        for statement, params in append.inserts_at(session.pk, rows):
            cursor.execute(statement, params)
    return advanced


_WAYS = {"postgresql": _append_in_one, "sqlite": _append_in_two}


def _previous(using: str, session: models.Session, batch: Batch) -> Previous | None:
    """Read the last message of a session, if the place of the batch's first item depends on it."""
    first = batch.entries[0].message
    if first.format == CHAT or first.role != "assistant":
        return None
    rows = models.Message.objects.using(using).filter(session=session, position=session.last_position)
    row = transactions.latest(rows).only("format", "role", "kind", "answers").first()
    return None if row is None or row.format is None else Previous.of(row, session.last_position, row.answers)


# The row of a session: for an append, for a copy, and by itself.


def create_session(using: str, name: SessionName, creation: Creation | None = None, **columns: Any) -> models.Session:
    """Insert the row of a session and return it as it was stored, with the database's time.

    Raises IntegrityError if the name is taken. If the owner is not there, raises IntegrityError or
    :class:`~django_convmemory.exceptions.InvalidSession`.
    """
    sessions = models.Session.objects.using(using)
    inserted = sessions.create(
        alias=name.alias,
        key=name.key,
        owner_id=name.owner_id,
        visitor=name.visitor,
        name_hash=name.name_hash,
        created_at=Clock(),
        updated_at=Clock(),
        creation_key=creation and creation.key_hash,
        creation_hash=creation and creation.request_hash,
        **columns,
    )
    # PostgreSQL and SQLite check the foreign key only at the commit, which may be the caller's.
    session = sessions.with_clock().select_related("owner").get(pk=inserted.pk)
    if session.owner is None and name.owner_id is not None:
        raise _missing_owner(name.owner_id, using)
    return session


def require_owner(using: str, owner_id: Any) -> None:
    """Raise :class:`~django_convmemory.exceptions.InvalidSession` if there is no such user.

    Some databases check the foreign key only at the commit.
    """
    if owner_id is not None and not get_user_model()._base_manager.using(using).filter(pk=owner_id).exists():
        raise _missing_owner(owner_id, using)


def _missing_owner(owner_id: Any, using: str) -> exceptions.InvalidSession:
    return exceptions.InvalidSession(f"There is no user {owner_id!r} in the database {using!r}, or not any more.")


def created_by(using: str, creation: Creation | None) -> models.Session | None:
    """Return the session that an earlier request with the same idempotency key created, or None.

    Raises :class:`~django_convmemory.exceptions.IdempotencyConflict` if that was another request.
    """
    if creation is None:
        return None
    sessions = models.Session.objects.using(using).with_clock().filter(creation_key=creation.key_hash)
    session = transactions.latest(sessions).first()
    if session is not None:
        if session.creation_hash != creation.request_hash:
            raise creation_conflict()
        session.replayed = True
    return session


def created_before(error: IntegrityError, using: str, name: SessionName, creation: Creation | None) -> models.Session:
    """Return what :func:`created_by` returns, after ``error`` of :func:`create_session`.

    Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``IdempotencyConflict``, and
    ``error`` itself if nothing of this is the reason any more: then another try may succeed.
    """
    require_owner(using, name.owner_id)
    if (session := created_by(using, creation)) is not None:
        return session
    if transactions.latest(models.Session.objects.using(using)).named(name).exists():
        raise values.session_exists(name) from None
    raise error


# Idempotency keys: see Note [A key is used once] in rules.keys. Appending stores a key in the transaction of its
# messages. The primary key of the table lets only one of several appends with a key do so. The others wait for it at
# the lock of the session's row, and fail then. They look what it has stored.


def content_of(batch: Batch, secret: str | bytes | None = None) -> str:
    """Return the HMAC of what ``batch`` says, by the site's ``SECRET_KEY`` or another ``secret``."""
    return salted_hmac(_SALT, batch.payload_hash, secret, algorithm="sha256").hexdigest()


def is_same(content: str, batch: Batch) -> bool:
    """Whether ``content`` is the HMAC of ``batch``, or was deleted."""
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return not content or any(constant_time_compare(content, content_of(batch, secret)) for secret in secrets)


def used_key(using: str, name: SessionName, batch: Batch) -> models.UsedKeyQuerySet:
    """Return the row of the key of ``batch``, if it is used."""
    sessions = models.Session.objects.using(using).named(name).values("pk")
    return models.UsedKey.objects.using(using).filter(session__in=sessions, key_hash=batch.key_hash)


def replay(using: str, name: SessionName, batch: Batch) -> values.Appended | None:
    """Return what the key of ``batch`` has stored, or None if the key is not used.

    Raises :class:`~django_convmemory.exceptions.IdempotencyConflict` unless ``batch`` is a retry.
    """
    keys = used_key(using, name, batch)
    names = ("session_id", "first_position", "size", "content", "gone_at", "session__epoch", "session__due_since")
    seen_epoch = None
    while True:
        key = transactions.latest(keys).values_list(*names).first()
        if key is None:
            return None
        session_id, first, size, content, gone_at, epoch, due_since = key
        if gone_at is not None and keys.forgotten().delete()[0]:
            return None
        check_reuse(batch, first, size, is_same=is_same(content, batch))
        # If messages are missing at the epoch at which they should be there, the session is damaged.
        if gone_at is not None or epoch == seen_epoch:
            raise key_removed(first)
        last = first + size - 1
        messages = models.Message.objects.using(using).filter(session_id=session_id, position__range=(first, last))
        # At another epoch, the messages may have been removed since the key was read.
        messages = transactions.latest(messages.filter(session__epoch=epoch)).order_by("session_id", "position")
        if stored := list(messages.values_list("public_id", "tokens")):
            ids, tokens = zip(*stored, strict=True)
            receipt = values.Receipt(first, last, sum(tokens), due_since is not None, replayed=True, ids=ids)
            return values.Appended(session_id, receipt, turned_due=False)
        seen_epoch = epoch
