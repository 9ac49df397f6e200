"""The conversation memory, with all operations that a site calls.

Every operation is here once: views, commands and tasks call it, and the asynchronous twins run it in a thread.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import heapq
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.dispatch import Signal

from django_convmemory import schedulers, signals, tokens
from django_convmemory.chat_models.base import ChatModel
from django_convmemory.core import arguments, compaction, context, indexing, recalling, runs, search
from django_convmemory.core.arguments import NOT_GIVEN
from django_convmemory.core.attempts import Price
from django_convmemory.core.breaker import Breaker, Reason
from django_convmemory.core.context import Context
from django_convmemory.core.hits import Hits
from django_convmemory.core.options import Options
from django_convmemory.core.requests import Requests
from django_convmemory.core.runs import Outcome, Result
from django_convmemory.core.store import Store
from django_convmemory.core.strategies import Strategy, Threshold, View
from django_convmemory.core.values import (
    MAX_ALIAS_LENGTH,
    MAX_COUNTER_NAME,
    MAX_KEY_LENGTH,
    Claim,
    DueRule,
    Edited,
    SessionName,
    Snapshot,
    StoredMessage,
)
from django_convmemory.exceptions import InvalidArgument, InvalidMessage, InvalidSession
from django_convmemory.messages import check_text
from django_convmemory.prompts import DefaultPrompts, Prompts

MAX_VISITOR_LENGTH = 64
# A sweep compares so many sessions with a new threshold.
_COMPARED_BY_SWEEP = 5000
# Seconds. If no worker has begun a rebuild by then, its task counts as lost.
_REBUILD_WAIT = 300.0

# A session of a memory that folds nothing is due when it has more messages that are not indexed.
MAX_UNINDEXED = 256
# So many sessions are indexed at most because a search has found them not indexed.
_INDEXED_FOR_SEARCH = 100
# How often load() reads a session again because messages were removed while it searched.
_RECALL_TRIES = 3

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


def asynchronous(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous twin of a method. It runs the method in a thread. Cancelling it does not undo it."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name, so that the twin calls the method of a subclass that overrides it.
        call: Callable[..., T] = getattr(self, method.__name__)
        return await sync_to_async(call)(*args, **kwargs)

    functools.update_wrapper(twin, method)
    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = method.__qualname__.removesuffix(method.__name__) + twin.__name__
    twin.__doc__ = f"The asynchronous twin of :meth:`{method.__name__}`."
    return twin


@runtime_checkable
class Named(Protocol):
    """An object that names a session: a handle, or a ``Session`` row."""

    @property
    def session_name(self) -> SessionName: ...


class Receipt(NamedTuple):
    """The positions and the tokens of the messages that ``append`` stored.

    ``due``: a compaction of the session is due. ``replayed``: nothing was stored, because the idempotency key was used
    before for the same content. The positions are those of the first time.
    """

    first_position: int
    last_position: int
    tokens: int
    due: bool
    replayed: bool


class Redacted(NamedTuple):
    """The number of sessions in which ``redact`` emptied the message, and whether its text may still be on its way.

    ``in_flight``: a worker was folding one of the sessions. Each worker looks at the session as the last thing before
    it calls a model, so no later request has the text. But a request that had been sent by then may arrive after
    ``redact`` has returned. Its answer is not stored.
    """

    sessions: int
    in_flight: bool


class ConversationMemory:
    """Keeps conversations in ``store``. The ``strategy`` decides which messages are shown and which are folded.

    Each class of :mod:`django_convmemory.memory` is this class with one strategy. A memory that is built in code folds
    inline, and counts tokens as the library it is named after. A memory that is built from the settings folds by Celery
    and uses the default counter. The prompts name the days of messages by the time zone ``zone``.

    Raises ValueError for an option that does not exist or has a wrong value.
    """

    strategy_class: type[Strategy]
    summarizes = False

    def __init__(
        self,
        store: Store,
        strategy: Strategy,
        *,
        model: ChatModel | None = None,
        fallback: ChatModel | None = None,
        counter: tokens.TokenCounter | None = None,
        scheduler: schedulers.Scheduler | None = None,
        alias: str = "default",
        price: Price | None = None,
        prompts: Prompts | None = None,
        zone: dt.tzinfo = dt.UTC,
        **options: Any,
    ) -> None:
        self.store = store
        self.strategy = strategy
        self.model = model
        self.fallback = fallback
        self.counter = counter or tokens.Utf8TokenCounter()
        self.scheduler = scheduler or schedulers.InlineScheduler()
        self.alias = check_text(alias, "alias")
        if not 0 < len(alias) <= MAX_ALIAS_LENGTH:
            raise ValueError(f"alias must be a text of 1 to {MAX_ALIAS_LENGTH} characters, not {alias!r:.120}.")
        self.price = price
        unknown = sorted(set(options) - {field.name for field in dataclasses.fields(Options)})
        if unknown:
            known = ", ".join(sorted(field.name for field in dataclasses.fields(Options)))
            raise ValueError(f"Unknown option {unknown[0]!r}. Choose one of: {known}.")
        self.options = Options(**options)
        self.requests = Requests(prompts or DefaultPrompts(), self.options, self.counter, zone)
        limit = strategy.threshold.tokens
        self.max_context_tokens = self.options.max_context_tokens
        if limit is not None:
            minimum = self.options.max_summary_tokens + limit
            if self.max_context_tokens is None:
                self.max_context_tokens = minimum + limit
            elif self.max_context_tokens < minimum:
                raise ValueError(
                    f"option max_context_tokens is {self.max_context_tokens}, but max_summary_tokens and "
                    f"max_token_limit together are {minimum}: even a folded conversation would not fit. Raise "
                    "max_context_tokens, or lower the other two."
                )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias!r}: {self.strategy}>"

    # Sessions.

    def session(self, key: str | Named, *, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> SessionHandle:
        """Return a handle of the session ``key`` of a user, of a visitor, or of nobody. It costs no query.

        Without ``owner`` and ``visitor`` the session belongs to nobody, and all who use its key share it. If you pass
        ``owner`` or ``visitor``, it must not be None: a visitor whose id is not made yet would get a session that
        everybody shares.

        A ``Session`` row in place of the key gives a handle of that row. Once the row is deleted, no new session is
        made in its place, and an operation that would change it raises
        :class:`~django_convmemory.exceptions.UnknownSession`.

        Raises :class:`~django_convmemory.exceptions.InvalidSession`.
        """
        if not isinstance(key, str) and owner is NOT_GIVEN and visitor is NOT_GIVEN:
            return SessionHandle(self, self.resolve(key))
        return SessionHandle(self, self._name(key, owner, visitor))

    def _name(self, key: object, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> SessionName:
        if not isinstance(key, str) or not key or len(key) > MAX_KEY_LENGTH:
            raise InvalidSession(
                f"A session's key must be a text of 1 to {MAX_KEY_LENGTH} characters, not {key!r:.100}."
            )
        scopes = [scope for scope in (owner, visitor) if scope is not NOT_GIVEN]
        if scopes and all(scope is None for scope in scopes):
            raise InvalidSession(
                "The session needs an owner or a visitor, but what was passed is None. For a visitor, save "
                "request.session before you read its key. For a session that everybody shares, pass neither."
            )
        owner = None if owner is NOT_GIVEN else owner
        visitor = None if visitor is NOT_GIVEN else visitor
        owner_id = None
        if owner is not None:
            owner_id = self.store.owner_id(owner)
            if visitor:
                raise InvalidSession(
                    "A session belongs to an owner or to a visitor, not to both. Pass only one of them."
                )
        if visitor is not None and (not isinstance(visitor, str) or not 0 < len(visitor) <= MAX_VISITOR_LENGTH):
            raise InvalidSession(
                f"A visitor must be a text of 1 to {MAX_VISITOR_LENGTH} characters, not {visitor!r:.100}."
            )
        try:
            key, visitor = check_text(key, "The key"), check_text(visitor or "", "The visitor")
        except InvalidMessage as error:
            raise InvalidSession(str(error)) from None
        return SessionName(self.alias, key, owner_id, visitor)

    def resolve(self, session: str | Named) -> SessionName:
        """Return the name of the session that a key, a handle or a ``Session`` row stands for.

        Raises :class:`~django_convmemory.exceptions.InvalidSession` for a session of another alias.
        """
        if isinstance(session, str):
            return self._name(session)
        # isinstance() with a protocol would take longer than the rest of this method.
        name = getattr(session, "session_name", None)
        if not isinstance(name, SessionName):
            raise InvalidSession(
                f"Pass the session as a key, a handle or a Session row, not as {type(session).__name__}."
            )
        if name.alias != self.alias:
            raise InvalidSession(
                f"The session {name.key!r} belongs to memories[{name.alias!r}], not to memories[{self.alias!r}]."
            )
        return name

    # The operations.

    def create(self, session: str | Named, *, title: str = "", metadata: Mapping[str, Any] | None = None) -> Any:
        """Create an empty session with a title and metadata, and return its ``Session`` row.

        ``append`` creates the session that it needs. This operation is for sites that list a conversation before its
        first message. ``metadata`` is a JSON object of the site's own.

        Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``InvalidArgument``, and
        ``UnknownSession`` for a row that was deleted. Each is a ValueError.
        """
        description = arguments.description(title, {} if metadata is None else metadata, self.options.max_message_bytes)
        return self.store.create(self.resolve(session), **description)

    acreate = asynchronous(create)

    def update(
        self, session: str | Named, *, title: Any = NOT_GIVEN, metadata: Any = NOT_GIVEN, revision: int | None = None
    ) -> None:
        """Replace the title or the metadata of the session, or both.

        Raises :class:`~django_convmemory.exceptions.StaleRevision` if ``revision`` is given and the session has another
        revision, ``UnknownSession`` if there is no such session, and ``InvalidArgument``.
        """
        arguments.check_revision(revision)
        self.store.update(
            self.resolve(session),
            arguments.description(title, metadata, self.options.max_message_bytes),
            revision=revision,
        )

    aupdate = asynchronous(update)

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
        appended = self.store.append(name, batch, self._due_rule, counter=self.counter_name)
        receipt = Receipt(
            appended.first_position, appended.last_position, appended.tokens, appended.due, appended.replayed
        )
        if not appended.replayed and signals.messages_appended.has_listeners(type(self)):
            self.store.on_commit(
                lambda: self._send(signals.messages_appended, name, appended.session_id, receipt=receipt)
            )
        if appended.turned_due:
            self._schedule(appended.session_id)
        return receipt

    aappend = asynchronous(append)

    @property
    def _due_rule(self) -> DueRule:
        return DueRule(self.threshold, self.scheduler.hints, self.options.reanchor_every)

    @property
    def needs_worker(self) -> bool:
        """Whether a worker has something to do for this memory: to fold, or to index for :meth:`search`."""
        return self.summarizes or self.options.index

    @property
    def threshold(self) -> Threshold:
        """When a session is due: to be folded, or to be indexed for :meth:`search` if the memory folds nothing."""
        threshold = self.strategy.threshold
        if self.options.index and threshold == Threshold():
            return Threshold(unindexed=MAX_UNINDEXED)
        return threshold

    @property
    def counter_name(self) -> str:
        """The name of the token counter, as a session stores it."""
        return self.counter.name[:MAX_COUNTER_NAME]

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
        if max_tokens is not None:
            arguments.check_whole_number(max_tokens, "max_tokens", maximum=None)
        view = self.strategy.view()
        budget = self.max_context_tokens if max_tokens is None else max_tokens
        if budget is not None:
            view = View(view.messages, budget if view.tokens is None else min(view.tokens, budget), view.summary)
        recall = self.options.recall if recall is None else recall
        name = self.resolve(session)
        for _ in range(_RECALL_TRIES):
            snapshot = self.store.load(name, view, self.options.max_pinned_tokens)
            loaded = context.assemble(
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
                return recalling
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

    def history(
        self, session: str | Named, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[StoredMessage]:
        """Return stored messages for people to read, in order, also those that were folded: at most ``limit``.

        They are the last messages, or those before the position ``before``, or those after the position ``after``.
        """
        arguments.check_whole_number(limit, "limit", minimum=1)
        for name, position in (("before", before), ("after", after)):
            if position is not None:
                arguments.check_whole_number(position, name)
        return self.store.history(self.resolve(session), before=before, after=after, limit=limit)

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
        arguments.check_whole_number(limit, "limit", minimum=1, maximum=search.MAX_HITS)
        arguments.check_whole_number(offset, "offset", maximum=search.MAX_HITS)
        arguments.check_whole_number(neighbours, "neighbours", maximum=search.MAX_NEIGHBOURS)
        for position_name, position in (("before", before), ("after", after)):
            if position is not None:
                arguments.check_whole_number(position, position_name)
                if session is None:
                    raise InvalidArgument(f"{position_name} is a position in a session: pass the session too.")
        given = [scope for scope in (session, owner, visitor, sessions) if scope is not None]
        if len(given) != 1:
            raise InvalidSession(
                "search() looks into one session, or into all sessions of an owner, of a visitor or of a query: pass "
                f"exactly one of session, owner, visitor and sessions, not {len(given)}."
            )
        parsed = search.query_of(query)
        if session is not None:
            found = self.store.searchable(self.resolve(session), before=before)
            searched = [] if found is None else [found]
        elif sessions is not None:
            searched = self.store.searchable_among(self.alias, sessions)
        else:
            name = self._name("all", NOT_GIVEN if owner is None else owner, NOT_GIVEN if visitor is None else visitor)
            searched = self.store.searchable_of(self.alias, owner_id=name.owner_id, visitor=name.visitor)
        if self.options.index and any(found.unindexed and not found.complete for found in searched):
            # Sessions that are not due were not indexed yet.
            behind = [found for found in searched if found.unindexed]
            for found in heapq.nlargest(_INDEXED_FOR_SEARCH, behind, key=lambda found: found.unindexed):
                self._schedule(found.session_id)
        return search.search(
            self.store,
            searched,
            parsed,
            limit=limit,
            offset=offset,
            after=after,
            before=before,
            neighbours=neighbours,
        )

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

    def fork(self, session: str | Named, at: int, *, key: str, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> Any:
        """Copy the session as it was at the position ``at`` to a new session ``key``. Return the copy's row.

        The copy belongs to ``owner`` or ``visitor``. Without both it has the owner of the original. It gets the
        summaries that cover only copied messages. Later changes of one session do not change the other.
        Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession`` and ``UnknownMessage``. Each is
        a ValueError.
        """
        arguments.check_whole_number(at, "at")
        source = self.resolve(session)
        if owner is NOT_GIVEN and visitor is NOT_GIVEN:
            target = dataclasses.replace(source, key=self._name(key).key, row_id=None)
        else:
            target = self._name(key, owner, visitor)
        forked = self.store.fork(source, target, at, self._due_rule)
        self._edited([forked.edited])
        return forked.session

    afork = asynchronous(fork)

    def redact(self, session: str | Named, position: int, forks: bool = True) -> Redacted:
        """Empty the message at ``position``, and every summary that covers it.

        Content, metadata and the arguments of tool calls are gone from the commit on. The role, the ids of the calls
        and the tokens stay, and a model sees a notice in place of the content. Later messages are folded again. With
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
        name = self._name("all", owner, visitor)
        return self.store.erase(self.alias, owner_id=name.owner_id, visitor=name.visitor)

    aerase = asynchronous(erase)

    def adopt(self, visitor: str, user: Any) -> list[SessionHandle]:
        """Let a user adopt the sessions of a visitor in this memory, as at login. Return the sessions.

        If the user has a session with the same key, the adopted session gets a number: ``main (2)``.
        """
        for scope, value in (("visitor", visitor), ("user", user)):
            if value is None:
                raise InvalidSession(f"The {scope} is None. Pass both: the visitor, and the user who has logged in.")
        source, target = self._name("all", visitor=visitor), self._name("all", owner=user)
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
        run = self._compactor(self.model).run(self.alias, session_id, asked=True, despite_pause=despite_pause)
        result = await runs.adrive(run)
        return (await sync_to_async(self._finish)(session_id, result)).outcome

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
        result = await runs.adrive(self._compactor(self.model).rebuild(self.alias, session_id))
        return (await sync_to_async(self._finish)(session_id, result)).outcome

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

    def _request(self, session: str | Named, work: schedulers.Work) -> bool:
        session_id = self.store.find(self.resolve(session))
        return session_id is not None and self.model is not None and self.scheduler.request(self, session_id, work)

    def carry_out(self, session_id: int, work: schedulers.Work) -> Result:
        """Do ``work`` for the session with this id, now, in this process. For schedulers and tasks."""
        if work in ("compact", "retry"):
            return self.compact_id(session_id, asked=True, despite_pause=work == "retry")
        if self.model is None:
            return Result(Outcome.NOT_DUE)
        run = self._compactor(self.model).rebuild(self.alias, session_id, stand_ins=work == "replace_stand_ins")
        return self._finish(session_id, runs.drive(run))

    def _finish(self, session_id: int, result: Result) -> Result:
        if result.again:
            self._schedule(session_id, result.delay)
        return result

    def compact_id(self, session_id: int, *, asked: bool = False, despite_pause: bool = False) -> Result:
        """Fold what is due in the session with this id. If it is still due then, tell the scheduler.

        For schedulers, tasks and the sweep. ``asked`` ignores that the next attempt has to wait, and ``despite_pause``
        that the alias is paused. A memory without summaries only indexes the session.
        """
        if self.model is None:
            return self._finish(session_id, indexing.run(self.store, session_id, self._due_rule, asked=asked))
        run = self._compactor(self.model).run(self.alias, session_id, asked=asked, despite_pause=despite_pause)
        return self._finish(session_id, runs.drive(run))

    @property
    def lease_seconds(self) -> float:
        """How many seconds a process may fold a session before another one may take over."""
        return indexing.LEASE if self.model is None else self._compactor(self.model).lease

    @property
    def breaker(self) -> Breaker:
        """The state of the alias's breaker: how often the model has failed, and until when nobody calls it."""
        return self.store.breaker(self.alias)

    @property
    def paused(self) -> bool:
        """Whether nobody calls the model now, because it does not answer, is misconfigured, or its rate is limited."""
        return self.breaker.paused

    @property
    def misconfigured(self) -> bool:
        """Whether the model's newest answer, however old, says that the configuration is wrong."""
        return self.breaker.reason == Reason.MISCONFIGURED

    def sweep(self, *, limit: int = 1000, hint_age: float = 300.0, fewest_attempts: bool = False) -> list[int]:
        """Return the ids of due sessions that nobody folds and for which no task was sent in ``hint_age`` seconds.

        The longest due come first, or with ``fewest_attempts`` those that have failed less often. There are none while
        the alias is paused, and one after a pause, until the model answers; besides these, there are sessions that have
        to be indexed, which needs no model. If the model has not answered for ``fallback_after`` seconds and there is a
        fallback, there are all.
        """
        state = self.breaker
        stands_in = self.fallback is not None and state.silent_for(self.options.fallback_after)
        if not stands_in and (state.open or state.paused):
            probes: list[int] = []
            if not state.paused:
                probes = self.store.sweep(self.alias, limit=min(limit, 1), hint_age=hint_age, fewest_attempts=True)
            if not self.options.index or len(probes) == limit:
                return probes
            left = limit - len(probes)
            return probes + self.store.sweep(self.alias, limit=left, hint_age=hint_age, unindexed=MAX_UNINDEXED)
        session_ids = self.store.sweep(self.alias, limit=limit, hint_age=hint_age, fewest_attempts=fewest_attempts)
        if len(session_ids) < limit and self.model is not None:
            self.store.mark_unmarked(self.alias, self._due_rule, limit=_COMPARED_BY_SWEEP)
        return session_ids

    def sweep_rebuilds(self, *, limit: int = 10) -> list[int]:
        """Return the ids of sessions whose summary is to be made again: see ``rebuild_stand_ins``, ``reanchor_every``.

        None of them is due. There are none while the alias is paused, and one after a pause, until the model answers.
        Those that were returned in the last five minutes, and that no worker has begun, count towards ``limit``. So
        slow workers do not leave a queue of rebuilds in front of a session that becomes due.
        """
        state = self.breaker
        wanted = self.options.rebuild_stand_ins or self.options.reanchor_every is not None
        if self.model is None or not wanted or state.paused:
            return []
        if state.open:
            limit = min(limit, 1)
        else:
            limit -= self.store.waiting_rebuilds(self.alias, within=_REBUILD_WAIT, limit=limit)
        return self.store.sweep_rebuilds(self.alias, limit=limit, wait=_REBUILD_WAIT) if limit > 0 else []

    def _compactor(self, model: ChatModel) -> compaction.Compactor:
        return compaction.Compactor(
            store=self.store,
            strategy=self.strategy,
            options=self.options,
            counter=self.counter,
            model=model,
            fallback=self.fallback,
            requests=self.requests,
            price=self.price,
            on_published=self._published,
            on_failed=self._failed,
            hints=self.scheduler.hints,
        )

    def _published(self, claim: Claim) -> None:
        if claim.summary is not None:
            self._send(signals.summary_published, claim.name, claim.session_id, version=claim.summary.version)

    def _failed(self, claim: Claim, error: Exception) -> None:
        self._send(signals.compaction_failed, claim.name, claim.session_id, error=error)

    def _send(self, signal: Signal, name: SessionName, session_id: int, **arguments: Any) -> None:
        handle = SessionHandle(self, name)
        signal.send_robust(sender=type(self), memory=self, session=handle, session_id=session_id, **arguments)

    def _schedule(self, session_id: int, delay: float = 0.0) -> None:
        if not self.summarizes and getattr(self.scheduler, "problem", None):
            return  # A site without summaries needs no broker. The sweep indexes, and a search reads what is new.
        schedule = functools.partial(self.scheduler.schedule, self, session_id, delay=delay)
        if self.scheduler.after_commit:
            self.store.on_commit(schedule)
        else:
            schedule()

    @classmethod
    def strategy_options(cls) -> frozenset[str]:
        """The names of the options that are the strategy's."""
        return frozenset(field.name for field in dataclasses.fields(cls.strategy_class))


def _for_session(
    operation: Callable[Concatenate[ConversationMemory, str | Named, P], T],
) -> Callable[Concatenate[SessionHandle, P], T]:
    """Return the method of a handle that calls ``operation`` of the handle's memory for its session."""

    def method(handle: SessionHandle, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name, so that it calls the operation of a subclass that overrides it.
        call: Callable[..., T] = getattr(handle.memory, operation.__name__)
        return call(handle, *args, **kwargs)

    signature = inspect.signature(operation)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "session"]
    method.__dict__["__signature__"] = signature.replace(parameters=parameters)
    method.__name__ = operation.__name__
    method.__qualname__ = f"SessionHandle.{operation.__name__}"
    method.__doc__ = f":meth:`ConversationMemory.{operation.__name__}` for this session."
    return markcoroutinefunction(method) if iscoroutinefunction(operation) else method


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

    create = _for_session(ConversationMemory.create)
    acreate = _for_session(ConversationMemory.acreate)
    update = _for_session(ConversationMemory.update)
    aupdate = _for_session(ConversationMemory.aupdate)
    delete = _for_session(ConversationMemory.delete)
    adelete = _for_session(ConversationMemory.adelete)
    append = _for_session(ConversationMemory.append)
    aappend = _for_session(ConversationMemory.aappend)
    load = _for_session(ConversationMemory.load)
    aload = _for_session(ConversationMemory.aload)
    history = _for_session(ConversationMemory.history)
    ahistory = _for_session(ConversationMemory.ahistory)

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

    clear = _for_session(ConversationMemory.clear)
    aclear = _for_session(ConversationMemory.aclear)
    truncate = _for_session(ConversationMemory.truncate)
    atruncate = _for_session(ConversationMemory.atruncate)
    fork = _for_session(ConversationMemory.fork)
    afork = _for_session(ConversationMemory.afork)
    redact = _for_session(ConversationMemory.redact)
    aredact = _for_session(ConversationMemory.aredact)
    compact = _for_session(ConversationMemory.compact)
    acompact = _for_session(ConversationMemory.acompact)
    rebuild = _for_session(ConversationMemory.rebuild)
    arebuild = _for_session(ConversationMemory.arebuild)
    request_compaction = _for_session(ConversationMemory.request_compaction)
    arequest_compaction = _for_session(ConversationMemory.arequest_compaction)
    request_rebuild = _for_session(ConversationMemory.request_rebuild)
    arequest_rebuild = _for_session(ConversationMemory.arequest_rebuild)
