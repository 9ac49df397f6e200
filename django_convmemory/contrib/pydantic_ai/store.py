"""The conversations of pydantic-ai in a memory.

Each is a session: its messages are those of the history, in the core's tables. :mod:`.entries` has what leaves it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db.models import F
from django.db.models.functions import Coalesce
from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.exceptions import UserError

from django_convmemory.contrib import framework_messages
from django_convmemory.contrib.pydantic_ai import entries, messages
from django_convmemory.contrib.pydantic_ai.entries import Item
from django_convmemory.contrib.pydantic_ai.models import Conversation, Entry
from django_convmemory.exceptions import InvalidArgument, InvalidSession, SessionExists, UnknownMessage
from django_convmemory.messages import dumps, storable
from django_convmemory.models import Session, SessionQuerySet
from django_convmemory.operations import arguments
from django_convmemory.operations.arguments import NOT_GIVEN
from django_convmemory.operations.handles import ConversationMemory, SessionHandle
from django_convmemory.store import transactions
from django_convmemory.store.orm import ORMStore

T = TypeVar("T")

_records = TypeAdapter(ConversationRecord)
# These fields of a record are columns, or follow from the messages.
_COLUMNS = {"conversation_id", "head_id", "revision", "updated_at"}


class _EntryId(str):  # noqa: SLOT000
    """The id of an entry that knows its session: a fork has the same ids."""

    session_id: int | None = None


def _known(entry_id: str, session_id: int) -> _EntryId:
    known = _EntryId(entry_id)
    known.session_id = session_id
    return known


class ConvMemoryConversationStore(ConversationStore):
    """A ``ConversationStore`` of pydantic-ai whose conversations are the sessions of one owner or visitor.

    ``owner`` and ``visitor`` are as for ``memory.session``. A conversation's id is the key of its session. A session
    that was made in another way is a conversation too. ``load`` returns the whole history, and
    :class:`.ConvMemoryContext` sends a model the context instead.

    If somebody else appends, removes or redacts messages, the conversation gets another revision. A removal and a
    redaction also delete the branches that it has left.

    Raises :class:`~django_convmemory.exceptions.InvalidSession`, and ``InvalidArgument`` for a memory that is not
    stored in a database. Its methods also raise pydantic-ai's ``UserError`` for an id that cannot be a key.
    """

    def __init__(self, memory: ConversationMemory, *, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> None:
        if not isinstance(memory.store, ORMStore):
            raise InvalidArgument("The conversations of pydantic-ai need a memory whose messages are in a database.")
        self.memory = memory
        self.using = memory.store.using
        self._scope = arguments.scope(memory.store, owner, visitor)
        self.whose = {name: whose for name, whose in (("owner", owner), ("visitor", visitor)) if whose is not NOT_GIVEN}

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None if this owner has none of this id."""

        def read() -> ConversationRecord | None:
            session = self.rows(conversation_id).first()
            return None if session is None else self._record(session)

        return await sync_to_async(read)()

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records of the owner, the one that was saved last first."""

        def read() -> list[ConversationRecord]:
            saved_at = Coalesce("convmemory_conversation__saved_at", F("updated_at"))
            records = map(self._record, self._sessions().order_by(saved_at.desc(), "-pk"))
            return list(itertools.islice((one for one in records if scope is None or one.scope == scope), limit))

        return await sync_to_async(read)()

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries through ``head_id``, or the last ``limit`` of them. Raises LookupError."""
        return [] if head_id is None else await sync_to_async(self._history)(head_id, limit)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return the entry with this id. Raises LookupError."""
        [entry] = await sync_to_async(self._history)(entry_id, 1)
        return entry

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record with its new entries: all of it, or nothing.

        Raises ``ConversationConflict``, and :class:`~django_convmemory.exceptions.InvalidMessage` for messages that
        cannot be stored.
        """
        made = messages.items([entry.message for entry in new_entries])
        new = [Item(entry.id, entry.parent_id, message) for entry, message in zip(new_entries, made, strict=True)]
        saved = Conversation.objects.using(self.using).filter(revision=record.revision)
        await sync_to_async(self._run)(
            lambda: self._write(record, new, expected_revision), record.conversation_id, happened=saved.exists
        )

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with all its messages. Raises ``ConversationConflict``."""

        def work() -> None:
            self.memory.delete(self._locked(conversation_id, expected_revision))

        # If it is gone, another try would be a conflict.
        await sync_to_async(self._run)(work, conversation_id, happened=lambda: not self.rows(conversation_id).exists())

    def _run(self, work: Callable[[], T], conversation_id: str, *, happened: Callable[[], bool]) -> T | None:
        """Run ``work`` in a transaction. What another request has changed meanwhile is a conflict."""
        try:
            return transactions.run(self.using, work, savepoint=True, happened=happened)
        except (LookupError, SessionExists, UnknownMessage):
            raise ConversationConflict(conversation_id) from None

    def _handle(self, conversation_id: str) -> SessionHandle:
        try:
            return self.memory.session(conversation_id, **self.whose)
        except InvalidSession as error:
            raise UserError(str(error)) from error

    def _sessions(self) -> SessionQuerySet:
        sessions = Session.objects.using(self.using).select_related("convmemory_conversation")
        return sessions.filter(alias=self.memory.alias, **self._scope)

    def rows(self, conversation_id: str) -> SessionQuerySet:
        """Return the session of a conversation, if there is one."""
        return self._sessions().named(self._handle(conversation_id).session_name)

    def _locked(self, conversation_id: str, *revisions: str) -> Session:
        """Return the session, whose row is locked. Raises LookupError if it is not there, at one of ``revisions``."""
        rows = Session.objects.using(self.using).named(self._handle(conversation_id).session_name)
        if not rows.lock():
            raise LookupError(conversation_id)
        session = transactions.latest(rows).get()
        if revisions and _revision(session) not in revisions:
            raise LookupError(revisions)
        return session

    def _record(self, session: Session) -> ConversationRecord:
        kept = _conversation(session)
        fields: dict[str, Any] = {} if kept is None else dict(kept.record)
        if branches := fields.get("branches"):
            stored = Entry.objects.using(self.using).filter(session=session, entry_id__in=branches)
            present = set(stored.values_list("entry_id", flat=True))
            fields["branches"] = [_known(tip, session.pk) for tip in branches if tip in present]
        head = entries.head(self.memory, session)
        fields |= {"conversation_id": session.key, "head_id": None, "revision": _revision(session)}
        record = _records.validate_json(dumps(fields))
        record.head_id = None if head is None else _known(head, session.pk)
        record.branches = fields.get("branches") or []
        record.updated_at = session.updated_at if kept is None else kept.saved_at
        return record

    def _history(self, head_id: str, limit: int | None) -> list[ConversationEntry]:
        session = self._session_of(head_id)
        position, left = entries.path(session, head_id)
        items: list[Item] = []
        if limit is None or limit > len(left):
            rest = None if limit is None else limit - len(left)
            items = entries.history(self.memory, session, through=position, limit=rest)
        items += left if limit is None else left[len(left) - min(limit, len(left)) :]
        made = messages.validated([item.message for item in items])
        return [
            ConversationEntry(
                id=_known(item.id, session.pk),
                parent_id=None if item.parent_id is None else _known(item.parent_id, session.pk),
                message=message,
            )
            for item, message in zip(items, made, strict=True)
        ]

    def _session_of(self, entry_id: str) -> Session:
        """Return the session that has an entry: the oldest, unless the id says which. Raises LookupError."""
        known = getattr(entry_id, "session_id", None)
        sessions = self._sessions().order_by("pk")
        found = sessions.filter(pk=known) if known else sessions.filter(convmemory_entries__entry_id=entry_id)
        session = found.first()
        if session is None:
            session = sessions.filter(convmemory_messages__public_id__in=entries.public_ids(entry_id)).first()
        if session is None:
            raise LookupError(entry_id)
        return session

    def _write(self, record: ConversationRecord, new: list[Item], expected_revision: str | None) -> None:
        """Store a record in a transaction that is open. Raises LookupError and SessionExists for a conflict."""
        base = new[0].parent_id if new else record.head_id
        with entries.saving():
            if expected_revision is not None:
                session = self._locked(record.conversation_id, expected_revision)
                path = self._branched(session, base)
            else:
                path = self._created(record, base)
            session = self._locked(record.conversation_id)
            self._append(session, [*path, *new])
            session.refresh_from_db(fields=["revision"])
        Conversation(
            session=session,
            revision=record.revision,
            session_revision=session.revision,
            record=storable(_records.dump_python(record, mode="json", exclude=_COLUMNS)),
            saved_at=record.updated_at,
        ).save(using=self.using)

    def _created(self, record: ConversationRecord, base: str | None) -> list[Item]:
        """Create the session of a record, or a fork. Return the messages that a fork has from a branch."""
        if base is None:
            self._handle(record.conversation_id).create()
            return []
        # Locked, so that it is forked as it is read here.
        source = self._locked(record.forked_from or record.conversation_id)
        position, left = entries.path(source, base)
        self.memory.fork(source, position, key=record.conversation_id)
        return left

    def _branched(self, session: Session, base: str | None) -> list[Item]:
        """Let the history end at the entry ``base``. Return the messages that come back from a branch."""
        if base == entries.head(self.memory, session):
            return []
        position, back = entries.path(session, base)
        leaving = entries.history(self.memory, session, through=session.last_position, after=position)
        kept = Entry.objects.using(self.using).filter(session=session)
        kept.filter(entry_id__in=[item.id for item in (*leaving, *back)]).delete()
        kept.bulk_create(
            Entry(session=session, entry_id=item.id, parent_id=item.parent_id, message=item.message) for item in leaving
        )
        self.memory.truncate(session, position)
        return back

    def _append(self, session: Session, items: list[Item]) -> None:
        rows = [list(messages.rows(item.message)) for item in items]
        framework_messages.store(self.memory.session(session), list(itertools.chain.from_iterable(rows)))
        positions = itertools.accumulate(map(len, rows), initial=session.last_position)
        Entry.objects.using(self.using).bulk_create(
            Entry(session=session, entry_id=item.id, position=position)
            for item, position in zip(items, itertools.islice(positions, 1, None), strict=True)
        )


def _conversation(session: Session) -> Conversation | None:
    kept: Conversation | None = getattr(session, "convmemory_conversation", None)
    return kept


def _revision(session: Session) -> str:
    """Return pydantic-ai's revision, or another one if somebody else has changed messages since the last save."""
    kept = _conversation(session)
    if kept is not None and kept.session_revision == session.revision:
        return kept.revision
    return f"{session.public_id}+{session.revision}"
