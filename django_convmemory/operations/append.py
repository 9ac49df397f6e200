"""Storing messages: ``append``, ``replace``, and ``create`` for a session without messages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from django_convmemory import signals
from django_convmemory.context.wire import forms
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage
from django_convmemory.operations import arguments
from django_convmemory.operations.arguments import Named
from django_convmemory.operations.folding import BaseMemory, asynchronous
from django_convmemory.rules.counters import Batch, Entry
from django_convmemory.rules.keys import Creation
from django_convmemory.rules.values import Appended, Receipt, SessionName


class Append(BaseMemory):
    """Stores messages."""

    def create(
        self,
        session: str | Named,
        *,
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Create an empty session with a title and metadata, and return its ``Session`` row.

        ``append`` creates the session that it needs. This operation is for sites that list a conversation before its
        first message. ``metadata`` is a JSON object of the site's own. A retry with the same ``idempotency_key`` and
        the same arguments returns the session that the first try created, with ``replayed`` set. The owner of the
        session has its own keys, and the session keeps its key as long as it exists.

        Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``InvalidArgument``,
        ``InvalidMessage``, ``IdempotencyConflict``, and ``UnknownSession`` for a row that was deleted. Each is a
        ValueError.
        """
        description = arguments.description(title, {} if metadata is None else metadata, self.options.max_message_bytes)
        name, key = self.resolve(session), arguments.check_idempotency_key(idempotency_key)
        creation = Creation.of(name.scope, key, "create", name.alias, name.key, description)
        return self.store.create(name, **description, creation=creation)

    acreate = asynchronous(create)

    def append(
        self,
        session: str | Named,
        *messages: Any,
        idempotency_key: str | None = None,
        usage: Any = None,
        created_at: dt.datetime | Sequence[dt.datetime | None] | None = None,
    ) -> Receipt:
        """Store messages at the end of the session: all of them, or none.

        - ``messages``: each is a :class:`~.messages.ChatMessage`, a chat-completions dict, or the message of the
          ``openai`` client.
        - ``idempotency_key``: a retry with the same key and content stores nothing and returns the first receipt.
        - ``usage``: the usage that the provider reported for the reply. It is stored with the last assistant message.
        - ``created_at``: the time of messages from another system, or a sequence with the time of each. None: now.

        It never waits for a model: if the session becomes due, it tells the scheduler. It joins the caller's
        transaction, if there is one. Raises :class:`~django_convmemory.exceptions.InvalidMessage` (with its subclasses
        ``ToolResultRefused`` and ``TooManyPinned``), ``IdempotencyConflict`` and ``InvalidSession``. Each is a
        ValueError, and nothing was written.
        """
        name = self.resolve(session)
        batch = self.batch(messages, idempotency_key=idempotency_key, usage=usage, created_at=created_at)
        return self.append_batch(name, batch)

    def append_batch(self, name: SessionName, batch: Batch) -> Receipt:
        """Do the same as :meth:`append` for the messages of :meth:`batch`."""
        appended = self.store.append(name, batch, self.threshold, counter=self.counter_name)
        if appended.turned_due or signals.messages_appended.receivers:
            self._tell(name, appended)
        return appended.receipt

    aappend = asynchronous(append)

    def replace(
        self,
        session: str | Named,
        after: int,
        *messages: Any,
        revision: int | None = None,
        idempotency_key: str | None = None,
        usage: Any = None,
    ) -> Receipt:
        """Delete the messages after the position ``after``, and store ``messages`` in their place: all of it, or none.

        It is ``truncate`` and ``append`` in one transaction, to edit the last question or to store another reply. A
        retry with the same ``idempotency_key`` and content returns the first receipt, whatever the ``revision``.
        Raises the errors of both operations, and :class:`~django_convmemory.exceptions.UnknownMessage` if the session
        has no message at ``after``.
        """
        arguments.check_whole_number(after, "after")
        arguments.check_whole_number(revision, "revision", optional=True)
        name = self.resolve(session)
        batch = self.batch(messages, idempotency_key=idempotency_key, usage=usage, replaces=after)
        appended = self.store.replace(name, after, batch, self.threshold, counter=self.counter_name, revision=revision)
        self._tell(name, appended)
        return appended.receipt

    areplace = asynchronous(replace)

    def batch(
        self,
        messages: Sequence[Any],
        *,
        idempotency_key: object = None,
        usage: Any = None,
        created_at: Any = None,
        replaces: int | None = None,
    ) -> Batch:
        """Return the messages of one append, checked and counted. Raises InvalidMessage.

        They take the place of those after the position ``replaces``.
        """
        if not messages:
            raise InvalidMessage(f"{'append' if replaces is None else 'replace'}() needs at least one message.")
        key = None if idempotency_key is None else arguments.check_idempotency_key(idempotency_key)
        entries = self.entries(messages, usage=usage, created_at=created_at)
        return Batch(entries, idempotency_key=key, replaces=replaces)

    def entries(self, messages: Sequence[Any], *, usage: Any = None, created_at: Any = None) -> list[Entry]:
        """Return the messages, checked and counted. Raises InvalidMessage."""
        # Usually each message is a text.
        is_plain = not [each for each in messages if type(each) is not ChatMessage or type(each.content) is not str]
        values = list(messages) if is_plain else forms.chat_messages(messages)
        limit, count = self.options.max_message_bytes, self.counter.count
        for value in values:
            if (size := value.size(limit)) > limit:
                arguments.check_size("message", size, limit)
        if usage is None and created_at is None:
            return [Entry(value, max(1, count(value))) for value in values]
        usages, times = arguments.usages(usage, values, limit), arguments.times(created_at, len(values))
        return [
            Entry(value, max(1, count(value)), reported, time)
            for value, reported, time in zip(values, usages, times, strict=True)
        ]

    def _tell(self, name: SessionName, appended: Appended) -> None:
        """Send the signal to its receivers, and a session that turned due to the scheduler."""
        receipt = appended.receipt
        if not receipt.replayed and signals.messages_appended.has_listeners(type(self)):
            self.store.on_commit(
                lambda: self._send(signals.messages_appended, name, appended.session_id, receipt=receipt)
            )
        if appended.turned_due:
            self.schedule(appended.session_id)
