"""A conversation memory: what a site calls.

Every operation is here once. The asynchronous twins run it in a thread; views, commands and tasks call it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

from asgiref.sync import sync_to_async
from django.dispatch import Signal

from django_convmemory import schedulers, signals, tokens
from django_convmemory.chat_models.base import ChatModel
from django_convmemory.core import compaction, context
from django_convmemory.core.compaction import Outcome, Price, Result
from django_convmemory.core.context import Context
from django_convmemory.core.counters import Batch, Entry
from django_convmemory.core.options import Options
from django_convmemory.core.store import Store
from django_convmemory.core.strategies import Strategy, View
from django_convmemory.core.values import (
    MAX_ALIAS_LENGTH,
    MAX_KEY_LENGTH,
    MAX_TITLE_LENGTH,
    Claim,
    DueRule,
    Edited,
    SessionName,
    StoredMessage,
)
from django_convmemory.exceptions import InvalidArgument, InvalidMessage, InvalidSession
from django_convmemory.messages import ChatMessage, check_text, coerce, dumps, freeze, thaw

MAX_VISITOR_LENGTH = 64
# Seconds: ten years.
_EVER = 10 * 366 * 86400.0
# More than a session can hold, and no more than every database, and JSON, can tell.
_MOST = 2**53 - 1
# Stands for an argument that was not given, where None was.
NOT_GIVEN: Any = object()

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


def asynchronous(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous twin of a method: one hop to a thread. Cancelling it does not undo it."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name, so that the twin of an overridden method is the overriding one's.
        call: Callable[..., T] = getattr(self, method.__name__)
        return await sync_to_async(call)(*args, **kwargs)

    functools.update_wrapper(twin, method)
    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = method.__qualname__.removesuffix(method.__name__) + twin.__name__
    twin.__doc__ = f"The asynchronous twin of :meth:`{method.__name__}`."
    return twin


@runtime_checkable
class Named(Protocol):
    """What names a session: a handle, or a ``Session`` row."""

    @property
    def session_name(self) -> SessionName: ...


class Receipt(NamedTuple):
    """What ``append`` stored: its positions and its tokens.

    ``due``: a compaction of the session is due. ``replayed``: nothing was stored, for the idempotency key had been used
    for the same content, and this is what it stored then.
    """

    first_position: int
    last_position: int
    tokens: int
    due: bool
    replayed: bool


class ConversationMemory:
    """Keeps conversations in ``store``, and shows of each what ``strategy`` says.

    The classes of :mod:`django_convmemory.memory` are this one with a strategy each. Built in code, a memory folds
    inline and counts as the library it is named after; built from settings, by Celery and the default counter.

    Raises ValueError for an option that does not exist or has the wrong type.
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
            raise ValueError(f"Unknown option {unknown[0]!r}; there are {known}.")
        self.options = Options(**options)
        limit = strategy.threshold.tokens
        self.max_context_tokens = self.options.max_context_tokens
        if limit is not None:
            least = self.options.max_summary_tokens + limit
            if self.max_context_tokens is None:
                self.max_context_tokens = least + limit
            elif self.max_context_tokens < least:
                raise ValueError(
                    f"option max_context_tokens is {self.max_context_tokens}, less than max_summary_tokens and "
                    f"max_token_limit together ({least}): what is caught up would not fit. Raise it, or lower those."
                )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias!r}: {self.strategy}>"

    # Sessions.

    def session(self, key: str | Named, *, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> SessionHandle:
        """Return a handle of the session ``key`` of a user, of a visitor, or of nobody. It costs no query.

        Without ``owner`` and ``visitor`` it is nobody's, and all who name it share it. Where they are given, one of
        them must not be None: a visitor whose id is not made yet would get everybody's session.
        A ``Session`` row in place of the key gives the handle of that row: once it is gone, nothing is made in its
        place, and what would change it raises :class:`~django_convmemory.exceptions.UnknownSession`.
        Raises :class:`~django_convmemory.exceptions.InvalidSession`.
        """
        if not isinstance(key, str) and owner is NOT_GIVEN and visitor is NOT_GIVEN:
            return SessionHandle(self, self.resolve(key))
        return SessionHandle(self, self._name(key, owner, visitor))

    def _name(self, key: object, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> SessionName:
        if not isinstance(key, str) or not key or len(key) > MAX_KEY_LENGTH:
            raise InvalidSession(f"A session's key is a text of 1 to {MAX_KEY_LENGTH} characters, not {key!r:.100}.")
        given = [scope for scope in (owner, visitor) if scope is not NOT_GIVEN]
        if given and all(scope is None for scope in given):
            raise InvalidSession(
                "Whose session is meant? owner and visitor are None. Leave them out for a session of nobody, which all "
                "share. Of a visitor, save the site's own session before its key is read."
            )
        owner = None if owner is NOT_GIVEN else owner
        visitor = None if visitor is NOT_GIVEN else visitor
        owner_id = None
        if owner is not None:
            owner_id = self.store.owner_id(owner)
            if visitor:
                raise InvalidSession("A session belongs to an owner or to a visitor, not to both.")
        if visitor is not None and (not isinstance(visitor, str) or not 0 < len(visitor) <= MAX_VISITOR_LENGTH):
            raise InvalidSession(f"A visitor is a text of 1 to {MAX_VISITOR_LENGTH} characters, not {visitor!r:.100}.")
        try:
            key, visitor = check_text(key, "The key"), check_text(visitor or "", "The visitor")
        except InvalidMessage as error:
            raise InvalidSession(str(error)) from None
        return SessionName(self.alias, key, owner_id, visitor)

    def resolve(self, session: str | Named) -> SessionName:
        """Return the name of the session that a key, a handle or a ``Session`` row gives.

        Raises :class:`~django_convmemory.exceptions.InvalidSession` for one of another alias.
        """
        if isinstance(session, str):
            return self._name(session)
        # Not by isinstance: of a protocol it takes longer than all the rest of this.
        name = getattr(session, "session_name", None)
        if not isinstance(name, SessionName):
            raise InvalidSession(
                f"A session is given as a key, a handle or a Session row, not as a {type(session).__name__}."
            )
        if name.alias != self.alias:
            raise InvalidSession(
                f"The session {name.key!r} belongs to memories[{name.alias!r}], not to memories[{self.alias!r}]."
            )
        return name

    # The operations.

    def create(self, session: str | Named, *, title: str = "", metadata: Mapping[str, Any] | None = None) -> Any:
        """Create an empty session, with the site's own title and metadata, and return it.

        ``append`` creates the session that it needs: this is for sites that list a conversation before its first
        message. ``metadata`` is a JSON object. The ``Session`` row is returned, if the store has rows.
        Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``InvalidArgument`` and, for
        a row that is gone, ``UnknownSession``, each a ValueError.
        """
        described = _described(title, {} if metadata is None else metadata)
        return self.store.create(self.resolve(session), **described)

    acreate = asynchronous(create)

    def update(
        self, session: str | Named, *, title: Any = NOT_GIVEN, metadata: Any = NOT_GIVEN, revision: int | None = None
    ) -> None:
        """Replace the title or the metadata of the session, or both. What is not given stays as it is.

        With ``revision`` a session that has changed since that revision is left alone.
        Raises :class:`~django_convmemory.exceptions.StaleRevision` then, ``UnknownSession`` if there is no such
        session, and ``InvalidArgument``.
        """
        _check_revision(revision)
        self.store.update(self.resolve(session), _described(title, metadata), revision=revision)

    aupdate = asynchronous(update)

    def delete(self, session: str | Named, revision: int | None = None) -> bool:
        """Delete the session with everything in it, and return whether there was one.

        With ``revision`` a session that has changed since that revision is left alone.
        Raises :class:`~django_convmemory.exceptions.StaleRevision` then, and ``InvalidArgument``.
        """
        _check_revision(revision)
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
        """Store messages after what the session holds: all of them, or none.

        Each is a :class:`~.messages.ChatMessage`, a chat-completions dict, or the ``openai`` client's message. It
        never waits for a model: where the session becomes due, the scheduler is told. ``usage`` is what the provider
        reported for the reply; it is kept with the last assistant message. A retry with the same ``idempotency_key``
        and content stores nothing and returns the first receipt. ``created_at`` is for messages of another system,
        which were said earlier: the time of all of them, or a sequence with the time of each, None for now.

        Inside a transaction it joins it. Raises :class:`~django_convmemory.exceptions.InvalidMessage` (with its
        subclasses ``ToolResultRefused`` and ``TooManyPinned``), ``IdempotencyConflict`` and ``InvalidSession``, each a
        ValueError, before anything is written.
        """
        name = self.resolve(session)
        batch = self._batch(messages, idempotency_key, usage, created_at)
        appended = self.store.append(name, batch, self._due_rule, counter=self.counter.name[:100])
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
        return DueRule(self.strategy.threshold, self.scheduler.hints)

    def _batch(self, messages: tuple[Any, ...], idempotency_key: object, usage: Any, created_at: Any) -> Batch:
        if not messages:
            raise InvalidMessage("append() was given no message.")
        if idempotency_key is not None:
            if not isinstance(idempotency_key, str) or not idempotency_key:
                raise InvalidMessage(f"idempotency_key must be a text that is not empty, not {idempotency_key!r:.100}.")
            idempotency_key = check_text(idempotency_key, "idempotency_key")
        values = [coerce(message) for message in messages]
        for value in values:
            self._check_size(value)
        reported: list[Mapping[str, Any] | None] = [None] * len(values)
        if usage is not None:
            spoke = [index for index, value in enumerate(values) if value.role == "assistant"]
            if not spoke:
                raise InvalidMessage("usage is what a reply took: give it with the assistant's message.")
            reported[spoke[-1]] = self._usage(usage)
        times = _times(created_at, len(values))
        entries = [
            Entry(value, max(1, self.counter.count(value)), used, said)
            for value, used, said in zip(values, reported, times, strict=True)
        ]
        return Batch(entries, idempotency_key=idempotency_key)

    def _check_size(self, message: ChatMessage) -> None:
        most = self.options.max_message_bytes
        rest = (message.tool_calls, message.extra, message.metadata, message.name, message.tool_call_id)
        if isinstance(message.content, str) and not any(rest):
            size = len(message.content.encode()) if len(message.content) * 4 > most else 0
        else:
            size = len(dumps([message.to_openai(), message.metadata]).encode())
        self._refuse_above(size, "message")

    def _usage(self, usage: Any) -> Mapping[str, Any]:
        if hasattr(usage, "model_dump"):
            usage = usage.model_dump(mode="json", exclude_unset=True)
        if not isinstance(usage, Mapping):
            raise InvalidMessage(f"usage must be a dict or the openai client's usage, not {type(usage).__name__}.")
        frozen: Mapping[str, Any] = freeze(usage, "usage")
        self._refuse_above(len(dumps(frozen).encode()), "usage")
        return frozen

    def _refuse_above(self, size: int, what: str) -> None:
        most = self.options.max_message_bytes
        if size > most:
            raise InvalidMessage(
                f"The {what} is {size} bytes large, and {most} are allowed. Store large data elsewhere and a "
                "reference to it here, or raise the option max_message_bytes."
            )

    def load(self, session: str | Named, *, system: Any = None, max_tokens: int | None = None) -> Context:
        """Return what to send to a model now: system, pinned messages, the summary, and the tail or what of it fits.

        ``system`` is the site's own prompt, a text or a message, which is not stored. ``max_tokens`` bounds all that is
        returned; what may never be left out is returned all the same, and ``over_budget`` says so. An unknown session
        gives an empty context. Raises :class:`~django_convmemory.exceptions.InvalidArgument`.
        """
        most: object = max_tokens
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
            raise InvalidArgument(f"max_tokens must be a whole number of at least 0, or None, not {most!r:.100}.")
        view = self.strategy.view()
        budget = self.max_context_tokens if max_tokens is None else max_tokens
        if budget is not None:
            view = View(view.messages, budget if view.tokens is None else min(view.tokens, budget), view.summary)
        snapshot = self.store.load(self.resolve(session), view, self.options.max_pinned_tokens)
        return context.assemble(
            snapshot,
            self.strategy,
            self.options,
            self.counter,
            system=system,
            max_tokens=max_tokens,
            max_context_tokens=self.max_context_tokens,
        )

    aload = asynchronous(load)

    def history(
        self, session: str | Named, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[StoredMessage]:
        """Return the transcript as people see it, whatever was folded: at most ``limit`` messages, in order.

        The last ones, or those before the position ``before``, or those that follow the position ``after``.
        """
        _whole(limit, "limit", least=1)
        for name, position in (("before", before), ("after", after)):
            if position is not None:
                _whole(position, name)
        return self.store.history(self.resolve(session), before=before, after=after, limit=limit)

    ahistory = asynchronous(history)

    # Changes of what was said.

    def clear(self, session: str | Named) -> None:
        """Delete the messages and summaries of the session; it stays, and begins again at position 1."""
        self.store.clear(self.resolve(session))

    aclear = asynchronous(clear)

    def truncate(self, session: str | Named, after: int, revision: int | None = None) -> int:
        """Delete the messages after the position ``after``, to have them said anew; return how many there were.

        Of the summaries those stay that reach no further. With ``revision``, the one that a context showed, a session
        that was changed since is left alone, so that a retry cannot delete a newer reply.
        Raises :class:`~django_convmemory.exceptions.StaleRevision` then.
        """
        _whole(after, "after")
        _check_revision(revision)
        removed, edited = self.store.truncate(self.resolve(session), after, self._due_rule, revision=revision)
        self._edited([edited] if edited else [])
        return removed

    atruncate = asynchronous(truncate)

    def fork(self, session: str | Named, at: int, *, key: str, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> Any:
        """Copy the session as it was at the position ``at`` to a new one, ``key``, and return that.

        The copy belongs to ``owner`` or ``visitor``, or, where neither is given, to whom the original does. It has the
        summaries that stand for what it holds, and goes on by itself. Where the store has rows, the row is returned.
        Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession`` and ``UnknownMessage``, each a
        ValueError.
        """
        _whole(at, "at")
        source = self.resolve(session)
        if owner is NOT_GIVEN and visitor is NOT_GIVEN:
            target = dataclasses.replace(source, key=self._name(key).key, row_id=None)
        else:
            target = self._name(key, owner, visitor)
        forked = self.store.fork(source, target, at, self._due_rule)
        self._edited([forked.edited])
        return forked.session

    afork = asynchronous(fork)

    def redact(self, session: str | Named, position: int, forks: bool = True) -> int:
        """Empty the message at ``position``, and every summary that reaches it; return in how many sessions.

        What it said is gone from the commit on: content, metadata, the arguments of its calls. Its role, the ids of its
        calls and its tokens stay; a model is shown that something was removed. What came after it is folded again. With
        ``forks`` the same is done in the copies that were made of it.
        Raises :class:`~django_convmemory.exceptions.UnknownMessage`.
        """
        _whole(position, "position", least=1)
        edited = self.store.redact(self.resolve(session), position, self._due_rule, forks=forks)
        self._edited(edited)
        return len(edited)

    aredact = asynchronous(redact)

    def _edited(self, sessions: list[Edited]) -> None:
        for edited in sessions:
            if edited.turned_due:
                self._schedule(edited.session_id)

    # People.

    def erase(self, *, owner: Any = None, visitor: str | None = None) -> int:
        """Delete every session of a user or of a visitor, with all that is in them; return how many there were.

        Those of this memory: ``memories.erase`` does it in all. Deleting a user deletes the sessions as well.
        """
        if owner is None and visitor is None:
            raise InvalidSession("Whose sessions are to go? owner and visitor are None.")
        name = self._name("all", owner, visitor)
        return self.store.erase(self.alias, owner_id=name.owner_id, visitor=name.visitor)

    aerase = asynchronous(erase)

    def adopt(self, visitor: str, user: Any) -> list[SessionHandle]:
        """Give a visitor's sessions to a user, as at login, and return them: those of this memory.

        A key that the user has already gets a number: ``main (2)``.
        """
        for scope, given in (("visitor", visitor), ("user", user)):
            if given is None:
                raise InvalidSession(f"The {scope} is None: give both, the visitor and the user who has logged in.")
        source, target = self._name("all", visitor=visitor), self._name("all", owner=user)
        names = self.store.adopt(self.alias, source.visitor, target.owner_id)
        return [SessionHandle(self, name) for name in names]

    aadopt = asynchronous(adopt)

    # Compaction.

    def compact(self, session: str | Named) -> Outcome:
        """Fold what is due in the session, now, in this process, also where a run would still have to wait.

        Returns ``"published"``, ``"not_due"``, ``"busy"`` (another process is at it) or ``"stalled"`` (the model
        failed).
        """
        session_id = self.store.find(self.resolve(session))
        if session_id is None:
            return Outcome.NOT_DUE
        return self.compact_id(session_id, force=True).outcome

    async def acompact(self, session: str | Named) -> Outcome:
        """The asynchronous twin of :meth:`compact`; the model's call does not take a thread."""
        session_id = await sync_to_async(self.store.find)(self.resolve(session))
        if session_id is None or self.model is None:
            return Outcome.NOT_DUE
        result = await compaction.adrive(self._compactor(self.model).run(self.alias, session_id, force=True))
        return await sync_to_async(self._came_to)(session_id, result)

    def rebuild(self, session: str | Named) -> Outcome:
        """Make the summary of the session anew, from the messages themselves, now, in this process.

        The old one is shown until the new one stands for as much. Returns ``"published"``, ``"not_due"`` (there is no
        summary), ``"busy"`` or ``"stalled"``. What is built when the process ends is used by the next call.
        """
        session_id = self.store.find(self.resolve(session))
        return Outcome.NOT_DUE if session_id is None else self.carry_out(session_id, "rebuild")

    async def arebuild(self, session: str | Named) -> Outcome:
        """The asynchronous twin of :meth:`rebuild`; the model's calls do not take a thread."""
        session_id = await sync_to_async(self.store.find)(self.resolve(session))
        if session_id is None or self.model is None:
            return Outcome.NOT_DUE
        result = await compaction.adrive(self._compactor(self.model).rebuild(session_id))
        return await sync_to_async(self._came_to)(session_id, result)

    def request_compaction(self, session: str | Named) -> bool:
        """Have what is due in the session folded soon, also where a run would still have to wait.

        For web requests, which must not wait for a model: the scheduler is told. Returns whether somebody is there to
        do it; where not, what is due stays due, and the sweep finds it.
        """
        return self._request(session, "compact")

    arequest_compaction = asynchronous(request_compaction)

    def request_rebuild(self, session: str | Named) -> bool:
        """Have the summary of the session made anew soon, as :meth:`request_compaction` does.

        Returns whether somebody is there to do it; where not, nothing comes of it.
        """
        return self._request(session, "rebuild")

    arequest_rebuild = asynchronous(request_rebuild)

    def _request(self, session: str | Named, work: schedulers.Work) -> bool:
        session_id = self.store.find(self.resolve(session))
        return session_id is not None and self.model is not None and self.scheduler.request(self, session_id, work)

    def carry_out(self, session_id: int, work: schedulers.Work) -> Outcome:
        """Do what was requested for the session with this id, here and now. For schedulers and tasks."""
        if self.model is None:
            return Outcome.NOT_DUE
        if work == "compact":
            return self.compact_id(session_id, force=True).outcome
        return self._came_to(session_id, compaction.drive(self._compactor(self.model).rebuild(session_id)))

    def _came_to(self, session_id: int, result: Result) -> Outcome:
        if result.again:
            self._schedule(session_id, result.delay)
        return result.outcome

    def compact_id(self, session_id: int, *, force: bool = False) -> Result:
        """Fold what is due in the session with this id, and tell the scheduler where that leaves it due.

        For schedulers, tasks and the sweeper. A memory without summaries has nothing to fold.
        """
        if self.model is None:
            return Result(Outcome.NOT_DUE)
        result = compaction.drive(self._compactor(self.model).run(self.alias, session_id, force=force))
        self._came_to(session_id, result)
        return result

    @property
    def lease_seconds(self) -> float:
        """For how long a session is left to who began to fold it, and gave no sign of life since."""
        return 0.0 if self.model is None else self._compactor(self.model).lease

    @property
    def paused(self) -> bool:
        """Whether the model's newest answer, less than a minute ago, was that it is misconfigured."""
        return self.store.paused(self.alias, seconds=compaction.PAUSE_SECONDS)

    @property
    def misconfigured(self) -> bool:
        """Whether the model's newest answer, whenever that was, was that it is misconfigured."""
        return self.store.paused(self.alias, seconds=_EVER)

    def sweep(self, *, limit: int = 1000, hint_age: float = 300.0) -> list[int]:
        """Return the ids of due sessions that nobody works at and none was told of for ``hint_age`` seconds."""
        return self.store.sweep(self.alias, limit=limit, hint_age=hint_age)

    def _compactor(self, model: ChatModel) -> compaction.Compactor:
        return compaction.Compactor(
            store=self.store,
            strategy=self.strategy,
            options=self.options,
            counter=self.counter,
            model=model,
            fallback=self.fallback,
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
        schedule = functools.partial(self.scheduler.schedule, self, session_id, delay=delay)
        if self.scheduler.after_commit:
            self.store.on_commit(schedule)
        else:
            schedule()

    @classmethod
    def strategy_options(cls) -> frozenset[str]:
        """The names of the options that are the strategy's."""
        return frozenset(field.name for field in dataclasses.fields(cls.strategy_class))


class SessionHandle:
    """A session of a memory, with the memory's operations. It holds no state, and costs no query."""

    def __init__(self, memory: ConversationMemory, name: SessionName) -> None:
        self.memory = memory
        self.session_name = name

    def __repr__(self) -> str:
        return f"<SessionHandle: {self.session_name}>"

    @property
    def key(self) -> str:
        """The site's name for the session."""
        return self.session_name.key

    def create(self, *, title: str = "", metadata: Mapping[str, Any] | None = None) -> Any:
        """:meth:`ConversationMemory.create` this session."""
        return self.memory.create(self, title=title, metadata=metadata)

    def update(self, *, title: Any = NOT_GIVEN, metadata: Any = NOT_GIVEN, revision: int | None = None) -> None:
        """:meth:`ConversationMemory.update` this session."""
        self.memory.update(self, title=title, metadata=metadata, revision=revision)

    def delete(self, revision: int | None = None) -> bool:
        """:meth:`ConversationMemory.delete` this session."""
        return self.memory.delete(self, revision)

    def append(
        self,
        *messages: Any,
        idempotency_key: str | None = None,
        usage: Any = None,
        created_at: dt.datetime | Sequence[dt.datetime | None] | None = None,
    ) -> Receipt:
        """:meth:`ConversationMemory.append` to this session."""
        return self.memory.append(self, *messages, idempotency_key=idempotency_key, usage=usage, created_at=created_at)

    def load(self, *, system: Any = None, max_tokens: int | None = None) -> Context:
        """:meth:`ConversationMemory.load` of this session."""
        return self.memory.load(self, system=system, max_tokens=max_tokens)

    def history(self, *, before: int | None = None, after: int | None = None, limit: int = 50) -> list[StoredMessage]:
        """:meth:`ConversationMemory.history` of this session."""
        return self.memory.history(self, before=before, after=after, limit=limit)

    def clear(self) -> None:
        """:meth:`ConversationMemory.clear` for this session."""
        self.memory.clear(self)

    def truncate(self, after: int, revision: int | None = None) -> int:
        """:meth:`ConversationMemory.truncate` for this session."""
        return self.memory.truncate(self, after, revision)

    def fork(self, at: int, *, key: str, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> Any:
        """:meth:`ConversationMemory.fork` of this session."""
        return self.memory.fork(self, at, key=key, owner=owner, visitor=visitor)

    def redact(self, position: int, forks: bool = True) -> int:
        """:meth:`ConversationMemory.redact` for this session."""
        return self.memory.redact(self, position, forks)

    def compact(self) -> Outcome:
        """:meth:`ConversationMemory.compact` for this session."""
        return self.memory.compact(self)

    def rebuild(self) -> Outcome:
        """:meth:`ConversationMemory.rebuild` for this session."""
        return self.memory.rebuild(self)

    async def acompact(self) -> Outcome:
        """The asynchronous twin of :meth:`compact`."""
        return await self.memory.acompact(self)

    async def arebuild(self) -> Outcome:
        """The asynchronous twin of :meth:`rebuild`."""
        return await self.memory.arebuild(self)

    def request_compaction(self) -> bool:
        """:meth:`ConversationMemory.request_compaction` for this session."""
        return self.memory.request_compaction(self)

    def request_rebuild(self) -> bool:
        """:meth:`ConversationMemory.request_rebuild` for this session."""
        return self.memory.request_rebuild(self)

    acreate = asynchronous(create)
    aupdate = asynchronous(update)
    adelete = asynchronous(delete)
    aappend = asynchronous(append)
    aload = asynchronous(load)
    ahistory = asynchronous(history)
    aclear = asynchronous(clear)
    atruncate = asynchronous(truncate)
    afork = asynchronous(fork)
    aredact = asynchronous(redact)
    arequest_compaction = asynchronous(request_compaction)
    arequest_rebuild = asynchronous(request_rebuild)


def _times(created_at: object, count: int) -> list[dt.datetime | None]:
    """Return when each of ``count`` messages was said, in UTC, for MariaDB's driver leaves out the zone."""
    if not isinstance(created_at, Sequence) or isinstance(created_at, str):
        return [_utc(created_at)] * count
    if len(created_at) != count:
        raise InvalidMessage(f"created_at has {len(created_at)} times for {count} messages. Give one for each.")
    return [_utc(moment) for moment in created_at]


def _utc(moment: object) -> dt.datetime | None:
    if moment is None:
        return None
    if not isinstance(moment, dt.datetime) or moment.utcoffset() is None:
        raise InvalidMessage(f"created_at must be a datetime with a time zone, not {moment!r:.100}.")
    # What every database can store.
    if not 1000 < moment.year < 9999:
        raise InvalidMessage(f"created_at is in the year {moment.year}. Correct it, or leave it out.")
    return moment.astimezone(dt.UTC)


def _described(title: Any, metadata: Any) -> dict[str, Any]:
    """Return the title and the metadata that were given, checked. Metadata become plain dicts and lists."""
    described: dict[str, Any] = {}
    try:
        if title is not NOT_GIVEN:
            if not isinstance(title, str) or len(title) > MAX_TITLE_LENGTH:
                raise InvalidArgument(
                    f"title must be a text of at most {MAX_TITLE_LENGTH} characters, not {title!r:.300}."
                )
            described["title"] = check_text(title, "title")
        if metadata is not NOT_GIVEN:
            if not isinstance(metadata, Mapping):
                raise InvalidArgument(f"metadata must be a dict, not {metadata!r:.100}.")
            described["metadata"] = thaw(freeze(metadata, "metadata"))
    except InvalidMessage as error:
        raise InvalidArgument(str(error)) from None
    return described


def _check_revision(revision: object) -> None:
    if revision is not None:
        _whole(revision, "revision")


def _whole(value: object, name: str, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise InvalidArgument(f"{name} must be a whole number from {least} to {_MOST}, not {value!r:.100}.")
