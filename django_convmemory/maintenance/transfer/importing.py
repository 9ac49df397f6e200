"""Stores records as sessions."""

from __future__ import annotations

import copy
import math
import uuid
from collections.abc import Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import DatabaseError

from django_convmemory import clock, models
from django_convmemory.exceptions import InvalidMessage, InvalidSession, SessionContended
from django_convmemory.maintenance.transfer.records import BadRecord, Record, RecordedMessage
from django_convmemory.messages import check_text
from django_convmemory.operations.arguments import NOT_GIVEN
from django_convmemory.operations.handles import ConversationMemory, SessionHandle
from django_convmemory.rules import strategies
from django_convmemory.rules.counters import Batch, Counters, Previous
from django_convmemory.rules.values import Receipt, SessionName
from django_convmemory.scheduling import NullScheduler
from django_convmemory.search import indexing
from django_convmemory.store import transactions
from django_convmemory.store.orm import ORMStore

# The number of messages that are appended at once.
_BATCH = 1000
SAME_NAME = "an earlier record has the same key and owner. Give one of them another key."


def find_owner(name: str, using: str) -> Any:
    """Return the user who logs in as ``name``. Raises :class:`~django_convmemory.exceptions.InvalidSession`."""
    user_model = get_user_model()
    condition = {user_model.USERNAME_FIELD: check_text(name, "The owner")}
    try:
        users = list(user_model._default_manager.using(using).filter(**condition))
    except (ValidationError, ValueError):
        users = []
    # MariaDB finds "anna" for "änna". An owner must be named exactly, on every database.
    for user in users:
        if str(user.get_username()) == name:
            return user
    raise InvalidSession(
        f"There is no user {name!r:.100} in the database {using!r}. An owner is named by what the user logs in with. "
        "Correct the name, or create the user first."
    )


class Importer:
    """Stores records as sessions of a memory, in the database ``using``.

    It sends no tasks. A session that is long enough is marked due in its row, and the sweep sends it to the workers.
    Without ``compact`` it is not marked, and stays as it is until its next append.
    """

    def __init__(self, memory: ConversationMemory, using: str, *, compact: bool = True) -> None:
        self.using = using
        self.memory = copy.copy(memory)
        self.memory.store = ORMStore(using)
        self.memory.scheduler = NullScheduler()
        if not compact:
            # Nothing exceeds the threshold of this strategy.
            self.memory.strategy = strategies.Buffer()
        # A session is indexed after its import, so no append marks it due for that.
        self.memory.threshold = self.memory.strategy.threshold
        # The primary keys of the sessions of the records so far.
        self._known: set[int] = set()

    def add(self, record: Record) -> int:
        """Store the whole session, and return the number of its messages.

        If the session exists already and has messages, nothing is stored, and 0 is returned. A second run therefore
        continues where the first one ended. Raises :class:`BadRecord`.
        """
        session = self._session(record)
        if not record.messages:
            return 0
        existing = self._find(session)
        if existing is not None:
            # Also if an earlier run made the session: otherwise a second run would leave this record out in silence.
            if existing in self._known:
                raise BadRecord(record.place, SAME_NAME)
            self._known.add(existing)
            return 0
        try:
            return self._add(session, record)
        except InvalidMessage as error:
            self._tokens(record)  # It says which message is invalid.
            raise BadRecord(record.place, str(error)) from None

    def _add(self, session: SessionHandle, record: Record) -> int:
        def work() -> int:
            for start in range(0, len(record.messages), _BATCH):
                ids = None if record.ids is None else record.ids[start : start + _BATCH]
                receipt = self._append(session.session_name, record.messages[start : start + _BATCH], ids)
                if receipt.first_position != start + 1:
                    # Another process has made the session since this one looked for it.
                    raise _Exists
            return self._complete(session, record)

        try:
            # Tokens are counted between the statements. Nobody waits for a session that is not there yet.
            pk = transactions.run(self.using, work, savepoint=True, idle=transactions.LONG_IDLE_SECONDS)
            self._known.add(pk)
            if self.memory.options.index:
                indexing.catch_up(self.memory.store, pk, longest=math.inf)
            return len(record.messages)
        except _Exists:
            return 0
        except (InvalidSession, SessionContended) as error:
            raise BadRecord(record.place, str(error)) from None
        except DatabaseError as error:
            raise BadRecord(
                record.place, f"the database refused it ({type(error).__name__}: {error}). Remove the cause."
            ) from error

    def _append(
        self, name: SessionName, messages: Sequence[RecordedMessage], ids: Sequence[uuid.UUID] | None
    ) -> Receipt:
        """Append messages as the memory does, with what the record says of them."""
        times = [recorded.created_at for recorded in messages]
        entries = self.memory.entries([recorded.message for recorded in messages], created_at=times)
        pairs = zip(entries, messages, strict=True)
        entries = [entry._replace(reply_to=said.reply_to, cut_off=said.cut_off) for entry, said in pairs]
        return self.memory.append_batch(name, Batch(entries, ids=ids))

    def _complete(self, session: SessionHandle, record: Record) -> int:
        """Write the fields of a record besides the messages, and return the session's primary key."""
        rows = models.Session.objects.using(self.using).named(session.session_name)
        times = {
            "archived_at": record.archived_at,
            "starred_at": record.starred_at,
            # The times of the conversation, so that lists are in order and old sessions can be pruned.
            "created_at": record.messages[0].created_at,
            "updated_at": record.messages[-1].created_at,
        }
        columns = {
            "title": record.title,
            "metadata": record.metadata,
            **{column: time and clock.storable(time, self.using) for column, time in times.items()},
        }
        if changes := {column: value for column, value in columns.items() if value is not None}:
            rows.update(**changes)
        pk = rows.values_list("pk", flat=True).get()
        redacted = [position for position, message in enumerate(record.messages, 1) if message.redacted]
        messages = models.Message.objects.using(self.using).filter(session_id=pk, position__in=redacted)
        messages.update(redacted_at=clock.Clock())
        used_keys = models.UsedKey.objects.using(self.using)
        gone = [key.gone_at and clock.storable(key.gone_at, self.using) for key in record.used_keys]
        keys = [key._replace(gone_at=gone_at) for key, gone_at in zip(record.used_keys, gone, strict=True)]
        # A session that was cleared before its import still has the keys. Their messages are back.
        used_keys.filter(session_id=pk, key_hash__in=[key.key_hash for key in keys]).delete()
        used_keys.bulk_create([models.UsedKey(session_id=pk, **key._asdict()) for key in keys])
        return pk

    def expect(self, record: Record) -> tuple[int, int] | None:
        """Return the model calls that folding the session will take after the import, and the tokens that they fold.

        None: the session exists already, so that nothing is imported. Raises :class:`BadRecord`.
        """
        tokens, memory = self._tokens(record), self.memory
        if self._find(self._session(record)) is not None:
            return None
        threshold, number = memory.threshold, len(tokens)
        if not (memory.summarizes and threshold.exceeded(tokens=sum(tokens), messages=number, settled=number > 1)):
            return 0, 0
        # As if every message were an exchange. The exchanges of tool calls change the result little.
        folded = sum(tokens[: memory.strategy.plan(tokens, range(len(tokens)))])
        chunk = memory.options.chunk_tokens(threshold.tokens)
        return -(-folded // chunk), folded

    def _tokens(self, record: Record) -> list[int]:
        """Return the tokens of the messages that can be folded. Raises :class:`BadRecord` for an invalid message."""
        counters, previous, tokens = Counters(), None, []
        for number, recorded in enumerate(record.messages, 1):
            message = recorded.message
            try:
                [entry] = self.memory.entries([message])
                counters, row = counters.append_one(message, entry.tokens, previous)
            except InvalidMessage as error:
                raise BadRecord(record.place, f"message {number}: {error}") from None
            previous = Previous.of(message, row.position, row.answers)
            tokens += [] if message.pinned else [entry.tokens]
        return tokens

    def _session(self, record: Record) -> SessionHandle:
        try:
            owner = NOT_GIVEN if record.owner is None else find_owner(record.owner, self.using)
            visitor = NOT_GIVEN if record.visitor is None else record.visitor
            return self.memory.session(record.key, owner=owner, visitor=visitor)
        except InvalidSession as error:
            raise BadRecord(record.place, str(error)) from None

    def _find(self, session: SessionHandle) -> int | None:
        """Return the primary key of the session, or None if it does not exist or has no messages."""
        rows = models.Session.objects.using(self.using).named(session.session_name)
        return rows.filter(last_position__gt=0).values_list("pk", flat=True).first()


class _Exists(Exception):
    """The session has messages already."""
