"""The conversation memory, with all operations that a site calls.

Every operation is here once: views, commands and tasks call it, and the asynchronous twins run it in a thread.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.dispatch import Signal

from django_convmemory import observers, scheduling, signals
from django_convmemory.context import assembly, recalling
from django_convmemory.context.assembly import Context
from django_convmemory.exceptions import InvalidSession
from django_convmemory.fold import runs
from django_convmemory.fold.runs import Outcome
from django_convmemory.messages import freeze
from django_convmemory.operations import arguments, naming
from django_convmemory.operations.arguments import NOT_GIVEN
from django_convmemory.operations.folding import BaseMemory
from django_convmemory.operations.forwarding import asynchronous, for_session
from django_convmemory.operations.naming import Named
from django_convmemory.rules import creations
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.strategies import View
from django_convmemory.rules.values import Appended, Claim, Edited, SessionName, Snapshot, StoredMessage
from django_convmemory.search import indexing, searching
from django_convmemory.search.hits import Hits

# How often load() reads a session again because messages were removed while it searched.
_RECALL_TRIES = 3


class Receipt(NamedTuple):
    """The positions and the tokens of the messages that ``append`` stored.

    ``due``: a compaction of the session is due. ``replayed``: nothing was stored, because the idempotency key was used
    before for the same content. The positions and the ids are those of the first time. ``ids`` has the id of each row:
    a message keeps it, and no other message of the session ever has it.
    """

    first_position: int
    last_position: int
    tokens: int
    due: bool
    replayed: bool
    ids: tuple[uuid.UUID, ...]


class Redacted(NamedTuple):
    """The number of sessions in which ``redact`` emptied the message, and whether its text may still be on its way.

    ``in_flight``: a worker was folding one of the sessions. Each worker looks at the session as the last thing before
    it calls a model, so no later request has the text. But a request that had been sent by then may arrive after
    ``redact`` has returned. Its answer is not stored.
    """

    sessions: int
    in_flight: bool


class ConversationMemory(BaseMemory):
    """Keeps conversations in ``store``. The ``strategy`` decides which messages are shown and which are folded.

    Each class of :mod:`django_convmemory.memory` is this class with one strategy. A memory that is built in code folds
    inline, and counts tokens as the library it is named after. A memory that is built from the settings folds by Celery
    and uses the default counter. The prompts name the days of messages by the time zone ``zone``.

    Raises ValueError for an option that does not exist or has a wrong value.
    """

    # Sessions.

    def session(self, key: str | Named, *, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> SessionHandle:
        """Return a handle of the session ``key`` of a user, of a visitor, or of nobody. It costs no query.

        Without ``owner`` and ``visitor`` the session belongs to nobody, and all who use its key share it. If you pass
        ``owner`` or ``visitor``, it must not be None: a visitor whose id is not made yet would get a session that
        everybody shares.

        A ``Session`` row instead of the key gives a handle of that row. Once the row is deleted, no new session is
        made in its place, and an operation that would change it raises
        :class:`~django_convmemory.exceptions.UnknownSession`.

        Raises :class:`~django_convmemory.exceptions.InvalidSession`.
        """
        if not isinstance(key, str) and owner is NOT_GIVEN and visitor is NOT_GIVEN:
            return SessionHandle(self, self.resolve(key))
        return SessionHandle(self, naming.session_name(self.store, self.alias, key, owner, visitor))

    def resolve(self, session: str | Named) -> SessionName:
        """Return the name of the session that a key, a handle or a ``Session`` row stands for.

        Raises :class:`~django_convmemory.exceptions.InvalidSession` for a session of another alias.
        """
        return naming.resolve(self.alias, session)

    # The operations.

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
        creation = creations.creation(name.scope, key, "create", name.alias, name.key, description)
        return self.store.create(name, **description, creation=creation)

    acreate = asynchronous(create)

    def update(
        self,
        session: str | Named,
        *,
        title: Any = NOT_GIVEN,
        metadata: Any = NOT_GIVEN,
        archived: Any = NOT_GIVEN,
        starred: Any = NOT_GIVEN,
        revision: int | None = None,
    ) -> None:
        """Replace the title or the metadata of the session, archive it or star it. Without any, it stays as it is.

        ``archived`` and ``starred`` are for lists: they change nothing else, and not the time of the last change.

        Raises :class:`~django_convmemory.exceptions.StaleRevision` if ``revision`` is given and the session has another
        revision, ``UnknownSession`` if there is no such session, and ``InvalidArgument``.
        """
        arguments.check_revision(revision)
        self.store.update(
            self.resolve(session),
            {
                **arguments.description(title, metadata, self.options.max_message_bytes),
                **arguments.marks(archived=archived, starred=starred),
            },
            revision=revision,
        )

    aupdate = asynchronous(update)

    def update_message(
        self, session: str | Named, position: int, *, metadata: Mapping[str, Any], revision: int | None = None
    ) -> None:
        """Replace the metadata of the message at ``position``, for feedback or a tag.

        Raises :class:`~django_convmemory.exceptions.UnknownMessage`, ``RedactedMessage``, ``UnknownSession``,
        ``StaleRevision`` and ``InvalidArgument``.
        """
        arguments.check_whole_number(position, "position", minimum=1)
        arguments.check_revision(revision)
        checked = arguments.description(NOT_GIVEN, metadata, self.options.max_message_bytes)["metadata"]
        frozen: Mapping[str, Any] = freeze(checked, "metadata")
        self.store.update_message(self.resolve(session), position, frozen, revision=revision)

    aupdate_message = asynchronous(update_message)

    def delete(self, session: str | Named, revision: int | None = None) -> bool:
        """Delete the session with its messages and summaries. Return whether there was such a session.

        Raises :class:`~django_convmemory.exceptions.StaleRevision` if ``revision`` is given and the session has another
        revision, and ``InvalidArgument``.
        """
        arguments.check_revision(revision)
        return self.store.delete(self.resolve(session), revision=revision)

    adelete = asynchronous(delete)

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
        batch = arguments.batch(
            messages,
            self.counter,
            max_message_bytes=self.options.max_message_bytes,
            idempotency_key=idempotency_key,
            usage=usage,
            created_at=created_at,
        )
        return self.append_batch(name, batch)

    def append_batch(self, name: SessionName, batch: Batch) -> Receipt:
        """Do the same as :meth:`append` for checked messages. An import gives them their ids."""
        return self._appended(name, self.store.append(name, batch, self._due_rule, counter=self.counter_name))

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
        arguments.check_revision(revision)
        name = self.resolve(session)
        batch = arguments.batch(
            messages,
            self.counter,
            max_message_bytes=self.options.max_message_bytes,
            idempotency_key=idempotency_key,
            usage=usage,
            replaces=after,
        )
        appended = self.store.replace(name, after, batch, self._due_rule, counter=self.counter_name, revision=revision)
        return self._appended(name, appended)

    areplace = asynchronous(replace)

    def _appended(self, name: SessionName, appended: Appended) -> Receipt:
        receipt = Receipt(
            appended.first_position,
            appended.last_position,
            appended.tokens,
            appended.due,
            appended.replayed,
            appended.ids,
        )
        if not appended.replayed and signals.messages_appended.has_listeners(type(self)):
            self.store.on_commit(
                lambda: self._send(signals.messages_appended, name, appended.session_id, receipt=receipt)
            )
        if appended.turned_due:
            self._schedule(appended.session_id)
        return receipt

    def load(
        self,
        session: str | Named,
        *,
        system: Any = None,
        max_tokens: int | None = None,
        recall: bool | str | None = None,
    ) -> Context:
        """Return the messages to send to a model now: system prompt, pinned messages, summary, and the tail that fits.

        ``system`` is the site's own prompt, a text or a message. It is not stored. ``max_tokens`` bounds the whole
        context. The system prompt, pinned messages and the newest exchange are never left out: if they exceed the
        bound, ``over_budget`` is true. A session that does not exist gives an empty context.

        ``recall`` quotes messages that are not shown any more, in a user message before the newest one: those that
        match the newest user message (True) or another text. They take at most ``recall_tokens`` and displace nothing.
        None: as the option ``recall`` says.

        Raises :class:`~django_convmemory.exceptions.InvalidArgument`.
        """
        _check_max_tokens(max_tokens)
        view = self.strategy.view()
        budget = self.max_context_tokens if max_tokens is None else max_tokens
        if budget is not None:
            view = View(view.messages, budget if view.tokens is None else min(view.tokens, budget), view.summary)
        recall = self.options.recall if recall is None else recall
        name = self.resolve(session)
        for _ in range(_RECALL_TRIES):
            snapshot = self.store.load(name, view, self.options.max_pinned_tokens)
            loaded = assembly.assemble(
                snapshot,
                self.strategy,
                self.options,
                self.counter,
                system=system,
                max_tokens=max_tokens,
                max_context_tokens=self.max_context_tokens,
            )
            if recall is False or snapshot is None:
                break
            recalling = self._recalling(loaded, snapshot, name, recall)
            if recalling is not None:
                loaded = recalling
                break
        observers.loaded(self.alias, loaded.omitted)
        return loaded

    def _recalling(self, loaded: Context, snapshot: Snapshot, name: SessionName, recall: bool | str) -> Context | None:
        return recalling.with_quotes(
            loaded,
            snapshot,
            name,
            recall,
            store=self.store,
            options=self.options,
            counter=self.counter,
            zone=self.requests.zone,
        )

    aload = asynchronous(load)

    def append_and_load(
        self,
        session: str | Named,
        *messages: Any,
        idempotency_key: str | None = None,
        usage: Any = None,
        system: Any = None,
        max_tokens: int | None = None,
        recall: bool | str | None = None,
    ) -> tuple[Receipt, Context]:
        """Store messages and return the messages to send to a model now: :meth:`append`, and then :meth:`load`.

        The parameters are theirs. An asynchronous view waits for a thread once instead of twice. Wrong arguments are
        found before anything is written. Raises the errors of both operations.
        """
        _check_max_tokens(max_tokens)
        if recall is not None and not isinstance(recall, bool):
            searching.query_of(recall)
        message = assembly.system_message(system)
        receipt = self.append(session, *messages, idempotency_key=idempotency_key, usage=usage)
        return receipt, self.load(session, system=message, max_tokens=max_tokens, recall=recall)

    aappend_and_load = asynchronous(append_and_load)

    def history(
        self,
        session: str | Named,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        items: bool = False,
    ) -> list[StoredMessage]:
        """Return stored messages for people to read, in order, also those that were folded: at most ``limit``.

        They are the last messages, or those before the position ``before``, or those after the position ``after``.
        With ``items`` the messages have the items of other frameworks for which they stand.
        """
        arguments.check_whole_number(limit, "limit", minimum=1)
        arguments.check_position(before, "before")
        arguments.check_position(after, "after")
        return self.store.history(self.resolve(session), before=before, after=after, limit=limit, items=items)

    ahistory = asynchronous(history)

    def search(
        self,
        query: str,
        *,
        session: str | Named | None = None,
        owner: Any = None,
        visitor: str | None = None,
        sessions: Any = None,
        limit: int = 10,
        offset: int = 0,
        before: int | None = None,
        after: int | None = None,
        neighbours: int = 0,
    ) -> Hits:
        """Return the messages that match ``query`` best, at most ``limit``, folded or not.

        The query is any text, for example a question. It has no syntax: its rarest words count most. Search one
        ``session``, or all sessions of an ``owner`` or a ``visitor`` in this memory, or those of ``sessions``, a query
        of ``Session`` rows: the newest first, as far as they have 100 000 messages. ``before`` and ``after`` are
        positions in the session. ``offset`` leaves out the best hits, for a next page. With ``neighbours`` each hit has
        so many messages on both sides, at most 10. If there are more than 512 messages that are not indexed yet, the
        older ones of these are not found, and the scheduler is told to have their sessions indexed.

        System messages, reasoning and redacted messages are not found. A session that does not exist has no hits.
        Raises :class:`~django_convmemory.exceptions.InvalidSession` and ``InvalidArgument``.
        """
        arguments.check_search(session, limit=limit, offset=offset, before=before, after=after, neighbours=neighbours)
        arguments.check_search_scopes(session, owner, visitor, sessions)
        parsed = searching.query_of(query)
        name = None if session is None else self.resolve(session)
        observed = observers.Search(alias=self.alias, query=query)
        with observers.searching(observed):
            if name is not None:
                searchable = indexing.searchable(self.store, name, before=before)
                searched = [] if searchable is None else [searchable]
            elif sessions is not None:
                searched = indexing.searchable_among(self.store, self.alias, sessions)
            else:
                owner, visitor = (NOT_GIVEN if person is None else person for person in (owner, visitor))
                scope = naming.scope(self.store, owner, visitor)._asdict()
                searched = indexing.searchable_of(self.store, self.alias, **scope)
            if self.options.index:
                for session_id in searching.to_index(searched):
                    self._schedule(session_id)
            observed.hits = hits = searching.search(
                self.store,
                searched,
                parsed,
                limit=limit,
                offset=offset,
                after=after,
                before=before,
                neighbours=neighbours,
            )
        return hits

    asearch = asynchronous(search)

    # Operations that change stored messages.

    def clear(self, session: str | Named) -> None:
        """Delete the messages and summaries of the session. The session stays, and begins again at position 1."""
        self.store.clear(self.resolve(session))

    aclear = asynchronous(clear)

    def truncate(self, session: str | Named, after: int, revision: int | None = None) -> int:
        """Delete the messages after the position ``after``, to edit or regenerate them. Return their number.

        Summaries that cover none of these messages stay. If ``revision`` is given and the session has another revision,
        nothing is deleted: so a retry cannot delete a newer reply.
        Raises :class:`~django_convmemory.exceptions.StaleRevision` then.
        """
        arguments.check_whole_number(after, "after")
        arguments.check_revision(revision)
        removed, edited = self.store.truncate(self.resolve(session), after, self._due_rule, revision=revision)
        self._edited([edited] if edited else [])
        return removed

    atruncate = asynchronous(truncate)

    def pop(self, session: str | Named) -> StoredMessage | None:
        """Delete the last message, and return it with its item. None: there is no message.

        A message that is appended at the same time is either the one that is deleted, or stays. If the connection to
        the database is lost during the COMMIT, ``django_convmemory.store.transactions.OutcomeUnknown`` is raised.
        """
        popped, edited = self.store.pop(self.resolve(session), self._due_rule)
        self._edited([edited] if edited else [])
        return popped

    apop = asynchronous(pop)

    def fork(
        self,
        session: str | Named,
        at: int,
        *,
        key: str,
        owner: Any = NOT_GIVEN,
        visitor: Any = NOT_GIVEN,
        title: Any = NOT_GIVEN,
        idempotency_key: str | None = None,
    ) -> Any:
        """Copy the session as it was at the position ``at`` to a new session ``key``. Return the copy's row.

        The copy belongs to ``owner`` or ``visitor``. Without both it has the owner of the original. Without ``title``
        it has the title of the original. It gets the summaries that cover only copied messages. Later changes of one
        session do not change the other. ``idempotency_key`` is as for :meth:`create`; the copy keeps it.
        Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``UnknownMessage`` and
        ``IdempotencyConflict``. Each is a ValueError.
        """
        arguments.check_whole_number(at, "at")
        description = arguments.description(title, NOT_GIVEN, self.options.max_message_bytes)
        idempotency_key = arguments.check_idempotency_key(idempotency_key)
        source = self.resolve(session)
        if owner is NOT_GIVEN and visitor is NOT_GIVEN:
            target = dataclasses.replace(source, key=naming.check_key(key), row_id=None)
        else:
            target = naming.session_name(self.store, self.alias, key, owner, visitor)
        request = ("fork", source.name_hash, at, target.alias, target.key, description)
        creation = creations.creation(target.scope, idempotency_key, *request)
        forked = self.store.fork(source, target, at, self._due_rule, **description, creation=creation)
        self._edited([forked.edited])
        return forked.session

    afork = asynchronous(fork)

    def redact(self, session: str | Named, position: int, forks: bool = True) -> Redacted:
        """Empty the message at ``position``, and every summary that covers it.

        Content, metadata and the arguments of tool calls are gone from the commit on. The role, the ids of the calls
        and the tokens stay, and a model sees a notice instead of the content. Later messages are folded again. With
        ``forks`` the copies of the message in forks are emptied, too. Raises
        :class:`~django_convmemory.exceptions.UnknownMessage`.
        """
        arguments.check_whole_number(position, "position", minimum=1)
        redaction = self.store.redact(self.resolve(session), position, self._due_rule, forks=forks)
        self._edited(redaction.edited)
        return Redacted(len(redaction.edited), redaction.in_flight)

    aredact = asynchronous(redact)

    def _edited(self, sessions: list[Edited]) -> None:
        for edited in sessions:
            if edited.turned_due:
                self._schedule(edited.session_id)

    # People.

    def erase(self, *, owner: Any = None, visitor: str | None = None) -> int:
        """Delete every session of a user or of a visitor in this memory. Return how many were deleted.

        ``memories.erase`` does it in all memories. Deleting a user also deletes the user's sessions.
        """
        if owner is None and visitor is None:
            raise InvalidSession("erase() needs an owner or a visitor: pass the one whose sessions are to be deleted.")
        scope = naming.scope(self.store, owner, visitor)
        return self.store.erase(self.alias, owner_id=scope.owner_id, visitor=scope.visitor)

    aerase = asynchronous(erase)

    def adopt(self, visitor: str, user: Any) -> list[SessionHandle]:
        """Let a user adopt the sessions of a visitor in this memory, as at login. Return the sessions.

        If the user has a session with the same key, the adopted session gets a number: ``main (2)``.
        """
        for scope, value in (("visitor", visitor), ("user", user)):
            if value is None:
                raise InvalidSession(f"The {scope} is None. Pass both: the visitor, and the user who has logged in.")
        source, target = naming.scope(self.store, visitor=visitor), naming.scope(self.store, owner=user)
        names = self.store.adopt(self.alias, source.visitor, target.owner_id)
        return [SessionHandle(self, name) for name in names]

    aadopt = asynchronous(adopt)

    # Compaction.

    def compact(self, session: str | Named, *, despite_pause: bool = False) -> Outcome:
        """Fold what is due in the session, now, in this process, even if the next attempt has to wait.

        While the alias is paused because its model does not answer, nothing is folded, unless ``despite_pause`` is
        true. Returns ``"published"``, ``"not_due"``, ``"busy"`` (another process folds it) or ``"stalled"`` (the model
        failed, or the alias is paused).
        """
        session_id = self.store.find(self.resolve(session))
        if session_id is None:
            return Outcome.NOT_DUE
        return self.compact_id(session_id, asked=True, despite_pause=despite_pause).outcome

    async def acompact(self, session: str | Named, *, despite_pause: bool = False) -> Outcome:
        """The asynchronous twin of :meth:`compact`. The model's call does not occupy a thread."""
        session_id = await sync_to_async(self.store.find)(self.resolve(session))
        if session_id is None:
            return Outcome.NOT_DUE
        if self.model is None:
            return (await sync_to_async(self.compact_id)(session_id, asked=True)).outcome
        fold = self._fold(session_id, "retry" if despite_pause else "compact")
        compactor = self._compactor(self.model, fold)
        run = compactor.run(self.alias, session_id, asked=True, despite_pause=despite_pause)
        return (await self._adrive(run, fold)).outcome

    async def _adrive(self, run: runs.Run, fold: observers.Fold) -> runs.Result:
        with observers.folding(fold):
            result = await runs.adrive(run)
            fold.outcome = result.outcome.value
            return await sync_to_async(self._finish)(fold.session_id, result)

    def rebuild(self, session: str | Named) -> Outcome:
        """Make the summary of the session again from its messages, now, in this process.

        The old summary is shown until the new one covers as much. Returns ``"published"``, ``"not_due"`` (there is no
        summary), ``"busy"`` or ``"stalled"``. If the process ends before, the next call continues.
        """
        session_id = self.store.find(self.resolve(session))
        return Outcome.NOT_DUE if session_id is None else self.carry_out(session_id, "rebuild").outcome

    async def arebuild(self, session: str | Named) -> Outcome:
        """The asynchronous twin of :meth:`rebuild`. The model's calls do not occupy a thread."""
        session_id = await sync_to_async(self.store.find)(self.resolve(session))
        if session_id is None or self.model is None:
            return Outcome.NOT_DUE
        fold = self._fold(session_id, "rebuild")
        run = self._compactor(self.model, fold).rebuild(self.alias, session_id)
        return (await self._adrive(run, fold)).outcome

    def request_compaction(self, session: str | Named, *, despite_pause: bool = False) -> bool:
        """Ask the scheduler to fold what is due in the session soon, even if the next attempt has to wait.

        This is for web requests, which must not wait for a model. ``despite_pause`` is as for :meth:`compact`. Returns
        False if nobody could be asked. The session then stays due, and a sweep finds it.
        """
        return self._request(session, "retry" if despite_pause else "compact")

    arequest_compaction = asynchronous(request_compaction)

    def request_rebuild(self, session: str | Named) -> bool:
        """Ask the scheduler to make the summary of the session again soon.

        Returns False if nobody could be asked. Then nothing happens.
        """
        return self._request(session, "rebuild")

    arequest_rebuild = asynchronous(request_rebuild)

    def _request(self, session: str | Named, work: scheduling.Work) -> bool:
        session_id = self.store.find(self.resolve(session))
        return session_id is not None and self.model is not None and self.scheduler.request(self, session_id, work)

    # Signals.

    def _published(self, claim: Claim) -> None:
        if claim.summary is not None:
            self._send(signals.summary_published, claim.name, claim.session_id, version=claim.summary.version)

    def _failed(self, claim: Claim, error: Exception) -> None:
        self._send(signals.compaction_failed, claim.name, claim.session_id, error=error)

    def _send(self, signal: Signal, name: SessionName, session_id: int, **arguments: Any) -> None:
        handle = SessionHandle(self, name)
        signal.send_robust(sender=type(self), memory=self, session=handle, session_id=session_id, **arguments)


def _check_max_tokens(max_tokens: int | None) -> None:
    if max_tokens is not None:
        arguments.check_whole_number(max_tokens, "max_tokens", maximum=None)


class SessionHandle:
    """A session of a memory, with the memory's operations. It holds no state and costs no query."""

    def __init__(self, memory: ConversationMemory, name: SessionName) -> None:
        self.memory = memory
        self.session_name = name

    def __repr__(self) -> str:
        return f"<SessionHandle: {self.session_name}>"

    @property
    def key(self) -> str:
        """The site's name for the session."""
        return self.session_name.key

    create = for_session(ConversationMemory.create)
    acreate = for_session(ConversationMemory.acreate)
    update = for_session(ConversationMemory.update)
    aupdate = for_session(ConversationMemory.aupdate)
    update_message = for_session(ConversationMemory.update_message)
    aupdate_message = for_session(ConversationMemory.aupdate_message)
    delete = for_session(ConversationMemory.delete)
    adelete = for_session(ConversationMemory.adelete)
    append = for_session(ConversationMemory.append)
    aappend = for_session(ConversationMemory.aappend)
    replace = for_session(ConversationMemory.replace)
    areplace = for_session(ConversationMemory.areplace)
    load = for_session(ConversationMemory.load)
    aload = for_session(ConversationMemory.aload)
    append_and_load = for_session(ConversationMemory.append_and_load)
    aappend_and_load = for_session(ConversationMemory.aappend_and_load)
    history = for_session(ConversationMemory.history)
    ahistory = for_session(ConversationMemory.ahistory)

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        before: int | None = None,
        after: int | None = None,
        neighbours: int = 0,
    ) -> Hits:
        """:meth:`ConversationMemory.search` in this session."""
        return self.memory.search(
            query, session=self, limit=limit, offset=offset, before=before, after=after, neighbours=neighbours
        )

    asearch = asynchronous(search)

    clear = for_session(ConversationMemory.clear)
    aclear = for_session(ConversationMemory.aclear)
    truncate = for_session(ConversationMemory.truncate)
    atruncate = for_session(ConversationMemory.atruncate)
    pop = for_session(ConversationMemory.pop)
    apop = for_session(ConversationMemory.apop)
    fork = for_session(ConversationMemory.fork)
    afork = for_session(ConversationMemory.afork)
    redact = for_session(ConversationMemory.redact)
    aredact = for_session(ConversationMemory.aredact)
    compact = for_session(ConversationMemory.compact)
    acompact = for_session(ConversationMemory.acompact)
    rebuild = for_session(ConversationMemory.rebuild)
    arebuild = for_session(ConversationMemory.arebuild)
    request_compaction = for_session(ConversationMemory.request_compaction)
    arequest_compaction = for_session(ConversationMemory.arequest_compaction)
    request_rebuild = for_session(ConversationMemory.request_rebuild)
    arequest_rebuild = for_session(ConversationMemory.arequest_rebuild)
