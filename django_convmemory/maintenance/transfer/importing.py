"""Storing records as sessions."""

from __future__ import annotations

import copy
from typing import NamedTuple

from django.db import DatabaseError

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.conversation import ConversationMemory, SessionHandle
from django_convmemory.core import strategies
from django_convmemory.core.counters import Counters
from django_convmemory.exceptions import InvalidMessage, InvalidSession, SessionContended
from django_convmemory.maintenance.transfer import owners
from django_convmemory.maintenance.transfer.records import BadRecord, Record
from django_convmemory.schedulers import NullScheduler
from django_convmemory.stores import transactions
from django_convmemory.stores.orm import ORMStore

# Messages that are stored together.
_BATCH = 1000
SAME_NAME = "a record before it has the same key and owner. Give one of them another key."


class Folding(NamedTuple):
    """What is expected of a model: calls, and the tokens that are folded by them. ``there``: nothing is imported."""

    calls: int
    tokens: int
    there: bool = False


class Importer:
    """Stores records as sessions of a memory, on the database ``using``.

    No task is sent: a session is marked due in its row, and the sweep feeds it to the workers. Without ``compact`` it
    is not even marked, and stays as it is until its next append.
    """

    def __init__(self, memory: ConversationMemory, using: str, *, compact: bool = True) -> None:
        self.using = using
        self.memory = copy.copy(memory)
        self.memory.store = ORMStore(using)
        self.memory.scheduler = NullScheduler()
        if not compact:
            # The strategy with a threshold that nothing exceeds.
            self.memory.strategy = strategies.Buffer()
        # The primary keys of the sessions that were made here. They follow one another, but for those that somebody
        # else makes meanwhile.
        self._made: list[range] = []

    def add(self, record: Record) -> int:
        """Store the session whole, and return how many messages it has; 0 where one is there already.

        That is one with messages. So a second run goes on where the first one ended. Raises :class:`BadRecord`.
        """
        session = self._session(record)
        if not record.said:
            return 0
        there = self._find(session)
        if there is not None:
            if any(there in made for made in self._made):
                raise BadRecord(record.place, SAME_NAME)
            return 0
        try:
            return self._add(session, record, _BATCH)
        except InvalidMessage:
            # Again, one after the other, to find out which one it is.
            return self._add(session, record, 1)

    def _add(self, session: SessionHandle, record: Record, size: int) -> int:
        def work() -> int:
            for start in range(0, len(record.said), size):
                said = record.said[start : start + size]
                try:
                    receipt = self.memory.append(
                        session, *[one.message for one in said], created_at=[one.created_at for one in said]
                    )
                except InvalidMessage as error:
                    if size > 1:
                        raise
                    raise BadRecord(record.place, f"message {start + 1}: {error}") from None
                if receipt.first_position != start + 1:
                    # Somebody else has made the session since it was looked for.
                    raise _IsThere
            return self._complete(session, record)

        try:
            self._note(transactions.run(self.using, work, savepoint=True))
            return len(record.said)
        except _IsThere:
            return 0
        except (InvalidSession, SessionContended) as error:
            raise BadRecord(record.place, str(error)) from None
        except DatabaseError as error:
            raise BadRecord(
                record.place, f"the database failed it ({type(error).__name__}: {error}). See to what that names."
            ) from error

    def _complete(self, session: SessionHandle, record: Record) -> int:
        """Write what a record says beside the messages, and return the session's primary key."""
        rows = models.Session.objects.using(self.using).named(session.session_name)
        given = {
            "title": record.title,
            "metadata": record.metadata,
            # As if it had been talked in here: lists are in its order, and what is old can be pruned.
            "created_at": record.said[0].created_at,
            "updated_at": record.said[-1].created_at,
        }
        if changes := {column: value for column, value in given.items() if value is not None}:
            rows.update(**changes)
        pk = rows.values_list("pk", flat=True).get()
        redacted = [position for position, said in enumerate(record.said, 1) if said.redacted]
        if redacted:
            messages = models.Message.objects.using(self.using).filter(session_id=pk)
            messages.filter(position__in=redacted).update(redacted_at=Clock())
        return pk

    def _note(self, pk: int) -> None:
        if self._made and self._made[-1].stop == pk:
            self._made[-1] = range(self._made[-1].start, pk + 1)
        else:
            self._made.append(range(pk, pk + 1))

    def expect(self, record: Record) -> Folding:
        """Return what folding the session will take once it is stored. Raises :class:`BadRecord`."""
        self._check(record)
        memory = self.memory
        if self._find(self._session(record)) is not None:
            return Folding(0, 0, there=True)
        if not memory.summarizes:
            return Folding(0, 0)
        messages = [said.message for said in record.said if not said.message.pinned]
        tokens = [max(1, memory.counter.count(message)) for message in messages]
        threshold = memory.strategy.threshold
        if not threshold.exceeded(tokens=sum(tokens), messages=len(tokens), settled=len(tokens) > 1):
            return Folding(0, 0)
        # As if every message were an exchange: those of tool calls move it by little.
        folded = sum(tokens[: memory.strategy.plan(tokens, range(len(tokens)))])
        chunk = memory.options.chunk_tokens(threshold.tokens)
        return Folding(-(-folded // chunk), folded)

    def _check(self, record: Record) -> None:
        """Raise :class:`BadRecord` where a message cannot follow those before it."""
        counters = Counters()
        for number, said in enumerate(record.said, 1):
            try:
                counters, _ = counters.append_one(said.message, 1)
            except InvalidMessage as error:
                raise BadRecord(record.place, f"message {number}: {error}") from None

    def _session(self, record: Record) -> SessionHandle:
        try:
            if record.owner is not None:
                return self.memory.session(record.key, owner=owners.find(record.owner, self.using))
            if record.visitor is not None:
                return self.memory.session(record.key, visitor=record.visitor)
            return self.memory.session(record.key)
        except InvalidSession as error:
            raise BadRecord(record.place, str(error)) from None

    def _find(self, session: SessionHandle) -> int | None:
        """Return the primary key of the session, if there is one with messages."""
        rows = models.Session.objects.using(self.using).named(session.session_name)
        return rows.filter(last_position__gt=0).values_list("pk", flat=True).first()


class _IsThere(Exception):
    pass
