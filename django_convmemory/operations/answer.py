"""Answering a question: the question is stored, the site's model is asked, and its reply is stored, each once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import inspect
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from django_convmemory import exceptions
from django_convmemory.context.wire import forms, replies
from django_convmemory.messages import ChatMessage
from django_convmemory.operations import arguments
from django_convmemory.operations.arguments import Named
from django_convmemory.operations.folding import P, T, asynchronous
from django_convmemory.operations.load import Load
from django_convmemory.operations.turns import Turn
from django_convmemory.rules import turns, values
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.strategies import View
from django_convmemory.rules.values import SessionName, StoredMessage

# In seconds. How long a request waits before it looks again whether it may open its turn.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# How often a turn looks again at a session that changes while the turn is opened.
_TRIES = 5
# What a question may raise that was stored before. A retry with its key goes on instead.
_NOT_IF_REPEATED = (
    exceptions.IdempotencyConflict,
    exceptions.MessageTooLong,
    exceptions.StaleRevision,
    exceptions.UnknownMessage,
)

# What a site's function gets is the open turn. What it returns is described at ConversationMemory.answer.
Ask = Callable[[Turn], Any]
# It yields for how many seconds to wait before another try, and at last the open turn.
Opening = Iterator[float | Turn]


class Question(NamedTuple):
    """What a turn is asked to answer: the arguments of ``answer``, checked."""

    name: SessionName
    message: ChatMessage | None
    ask: Ask
    key: str | None
    again: uuid.UUID | None
    edit: uuid.UUID | None
    revision: int | None
    loading: dict[str, Any]
    wait: float


def arguments_of(operation: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Say that a method takes the arguments of ``operation``."""

    def decorate(method: Callable[..., T]) -> Callable[P, T]:
        method.__dict__["__signature__"] = inspect.signature(operation)
        return method

    return decorate


class Answer(Load):
    """Answers questions."""

    def asked(
        self,
        session: str | Named,
        question: Any = None,
        ask: Ask | None = None,
        *,
        key: str | None = None,
        again: Any = None,
        edit: Any = None,
        revision: int | None = None,
        system: Any = None,
        max_tokens: int | None = None,
        recall: bool | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        wait: float = 20.0,
    ) -> Question:
        """Check the arguments of :meth:`answer`. Raises InvalidArgument and InvalidMessage."""
        if not callable(ask):
            raise exceptions.InvalidArgument(f"ask must be a function of the turn, not {ask!r:.100}.")
        if again is not None and (question is not None or edit is not None):
            raise exceptions.InvalidArgument("again names a stored question. Pass neither a question nor edit with it.")
        if edit is not None and question is None:
            raise exceptions.InvalidArgument("edit puts a new question in the place of another one. Pass the question.")
        if type(wait) not in (int, float) or not wait >= 0:
            raise exceptions.InvalidArgument(f"wait must be a number of seconds, 0 or more, not {wait!r:.100}.")
        message = None
        if question is not None:
            if isinstance(question, (str, list, tuple)):
                message = ChatMessage.human(question, metadata=metadata or {})
            else:
                message, *results = forms.chat_messages([question])
                if results:
                    raise exceptions.InvalidMessage("A question is one message. Store results of tools with append().")
                message = dataclasses.replace(message, metadata=metadata) if metadata else message  # type: ignore[arg-type]
            if message.role != "user":
                raise exceptions.InvalidMessage(f"A question is a message of the user, not of the {message.role}.")
            if replies.Reply(message).is_blank:
                raise exceptions.InvalidMessage("The question is empty. Pass what the user wants to know.")
        key = arguments.check_idempotency_key(key, "key")
        arguments.check_whole_number(revision, "revision", optional=True)
        prompt = self.check_loading(system=system, max_tokens=max_tokens, recall=recall)
        loading = {"system": prompt, "max_tokens": max_tokens, "recall": recall}
        name = self.resolve(session)
        stored = _id_of(again, "again"), _id_of(edit, "edit")
        return Question(name, message, ask, key, *stored, revision, loading, wait)

    @arguments_of(asked)
    def answer(self, *asked: Any, **options: Any) -> Turn:
        """Store ``question``, ask the model, and store its reply. Return the turn.

        - ``question``: a text, a message, or a list of content parts. None: the newest question, if it has no reply or
          one that was lost, which the new one replaces.
        - ``ask``: a function of the open :class:`Turn`, which asks the model with ``turn.context``. It returns a reply
          of the ``openai`` or ``anthropic`` client, a text, a message, or a list of these.
        - ``key``: a retry with the same key and question returns the stored reply. The model is not asked again.
        - ``again``: a question to answer anew. What follows it stays until the new reply replaces it. ``edit``: a
          question that the new one replaces at once, with what follows. Each is a stored message or its id.
        - ``revision``: the revision of the session that ``again`` or ``edit`` is meant for. None: any.
        - ``metadata`` are stored with the question. ``system``, ``max_tokens`` and ``recall`` are those of ``load``.
        - ``wait``: for how many seconds to wait while another request answers in the session.

        No transaction is open while the model is asked. If ``ask`` raises, the error passes through, and the question
        stays, with what ``turn.append`` has stored: the same key goes on from there.

        Raises :class:`~django_convmemory.exceptions.TurnInProgress`, ``TurnLost``, ``QuestionChanged``,
        ``UnknownMessage``, ``NothingToAnswer``, ``EmptyReply``, ``MessageTooLong``, ``StaleRevision``, the errors of
        ``append`` and ``load``, and RuntimeError inside a transaction.
        """
        question = self.asked(*asked, **options)
        turn, ask = waited(self._opening(question)), question.ask
        if not turn.replayed:
            with turn._ending():
                turn._prepare()
                turn.result = async_to_sync(ask)(turn) if iscoroutinefunction(ask) else ask(turn)
                turn._finish(replies.read(turn.result))
        return turn

    @arguments_of(asked)
    async def aanswer(self, *asked: Any, **options: Any) -> Turn:
        """The asynchronous twin of :meth:`answer`. ``ask`` may be synchronous or not."""
        question = self.asked(*asked, **options)
        turn, ask = await awaited(self._opening(question)), question.ask
        if not turn.replayed:
            try:
                await sync_to_async(turn._prepare)()
                turn.result = await (ask if iscoroutinefunction(ask) else sync_to_async(ask))(turn)
                await sync_to_async(turn._finish)(replies.read(turn.result))
            except BaseException:
                await asyncio.shield(sync_to_async(turn._end)())
                raise
        return turn

    def stop_answer(self, session: str | Named, question: Any) -> bool:
        """Stop the reply to ``question``, a stored message or its id, and return whether a request was answering it.

        That request sees it within five seconds, or when its reader leaves. It stores what the model has said, as a
        reply with ``cut_off="stopped"``. Raises InvalidArgument.
        """
        name = self.resolve(session)
        stored = self.store.question(name, _id_of(question, "question")) if question is not None else None
        return stored is not None and self.store.stop_turn(name, stored.position)

    astop_answer = asynchronous(stop_answer)

    def _opening(self, asked: Question, seconds: float = math.inf) -> Opening:
        """Open the turn, for so many seconds at most, or find the reply of an earlier request."""
        ends = time.monotonic() + (asked.wait if self.store.waits() else 0.0)
        pause = _FIRST_PAUSE
        while True:
            try:
                turn = self._open(asked, min(seconds, self.options.turn_timeout))
                break
            except exceptions.TurnInProgress:
                left = ends - time.monotonic()
                if left <= 0:
                    raise
            self.store.give_back_connection()
            yield min(pause, left)
            pause = min(2 * pause, _LONGEST_PAUSE)
        turn._loading = asked.loading
        yield turn

    def _open(self, asked: Question, seconds: float) -> Turn:
        """Open the turn, or return the stored reply. Raises TurnInProgress if another turn is open."""
        name, store = asked.name, self.store
        step = turns.Step(uuid.uuid4().hex, seconds, turns.Does.BEGINS)
        if asked.message is not None:
            return self._open_new(asked, asked.message, step)
        question = store.question(name, asked.again)
        if question is None and asked.again:
            raise unknown_question()
        if question is None:
            raise exceptions.NothingToAnswer("The session has no question. Ask one.")
        words = ("again" if asked.again else "answer", str(question.id))
        batch = Batch((), idempotency_key=asked.key, step=step, asked=words)

        def is_stored() -> bool:
            return asked.key is not None and store.keyed_question(name, batch) is not None

        if is_stored():
            return self._resume(name, question, step)
        try:
            turn = self._resume(name, question, step, anew=asked.again is not None, revision=asked.revision)
        except (exceptions.QuestionChanged, exceptions.StaleRevision):
            if is_stored():
                return self._resume(name, question, step)
            raise
        # Another request with the key may have stored its reply since the first look.
        if is_stored():
            turn._end()
            return self._resume(name, question, step)
        if turn.replayed:
            raise exceptions.NothingToAnswer(
                "The newest question has a reply. Ask another one, or give the id of a question to answer again."
            )
        turn._key, turn._asked = asked.key, words
        return turn

    def _open_new(self, asked: Question, message: ChatMessage, step: turns.Step) -> Turn:
        name, store = asked.name, self.store
        replaced = store.question(name, asked.edit) if asked.edit else None
        entry = self.entries([message])[0]
        after = None if replaced is None else replaced.position - 1
        # By the id, because a retry does not find the position of the question that was edited.
        words = None if asked.edit is None else ("edit", str(asked.edit), Batch([entry]).payload_hash)
        batch = Batch([entry], idempotency_key=asked.key, step=step, asked=words, replaces=after)
        counter, revision = self.counter_name, asked.revision
        try:
            self._check_fits(asked, entry.tokens)
            if asked.edit and replaced is None:
                raise unknown_question()
            if after is None:
                appended = store.append(name, batch, self.threshold, counter=counter)
            else:
                appended = store.replace(name, after, batch, self.threshold, counter=counter, revision=revision)
        except _NOT_IF_REPEATED:
            position = store.keyed_question(name, batch) if asked.key is not None else None
            if position is None:
                raise
            return self._resume(name, self._at(name, position), step)
        receipt = appended.receipt
        position = receipt.first_position
        if receipt.replayed:
            return self._resume(name, self._at(name, position), step)
        self._tell(name, appended)
        question = StoredMessage.of(entry, position, dt.datetime.now(dt.UTC), receipt.ids[0])
        step = step._replace(question=position, epoch=appended.epoch, last_position=position)
        return Turn(self, name, question, [], step)

    def _at(self, name: SessionName, position: int) -> StoredMessage:
        """Return the stored question at this position. Raises QuestionChanged if there is none."""
        found = self.store.history(name, after=position - 1, before=None, limit=1)
        if not found or found[0].position != position:
            raise turns.changed()
        return found[0]

    def _resume(
        self,
        name: SessionName,
        question: StoredMessage,
        step: turns.Step,
        *,
        anew: bool = False,
        revision: int | None = None,
    ) -> Turn:
        """Return the stored reply, or open a turn that goes on after what an earlier try has stored.

        ``anew``: a reply that is stored is replaced.
        """
        position = question.position
        for _ in range(_TRIES):
            state, following = self.store.after_question(name, position)
            if revision not in (None, state.revision):
                raise values.stale(revision, state.revision)
            reply = values.reply_in(following)
            if reply is not None and reply.cut_off != "lost" and not anew:
                turn = Turn(self, name, question, following, step)
                turn.replayed = True
                return turn
            ends_here = state.last_position == position + len(following)
            if question.redacted or not (ends_here or anew):
                raise turns.changed()
            after: int | None = None
            if reply is not None or not ends_here:
                # A reply that was lost is replaced, and the calls before it stay. Otherwise all is made anew.
                following = [] if anew or reply is None else following[: following.index(reply)]
                after = position + len(following)
            begun = step._replace(question=position, epoch=state.epoch, last_position=state.last_position, after=after)
            try:
                self.store.begin_turn(name, begun)
            except exceptions.QuestionChanged:
                continue  # For example, the turn that was open has stored its reply.
            return Turn(self, name, question, following, begun)
        raise turns.changed()

    def _check_fits(self, asked: Question, tokens: int) -> None:
        """Raise MessageTooLong if the question cannot fit into the context."""
        limit, system = asked.loading["max_tokens"], asked.loading["system"]
        if limit is None:
            limit = self.options.max_context_tokens
        elif system is not None:
            limit -= self.counter.count(system)
        if limit is None or tokens <= limit - self.options.pinned_tokens:
            return
        snapshot = self.store.load(asked.name, View(messages=0), self.options.pinned_tokens)
        pinned = sum(row.tokens for row in snapshot.pinned) if snapshot else 0
        room = max(0, limit - pinned)
        if tokens > room:
            text = f"The question has about {tokens} tokens, and there is room for {room}. Shorten it."
            raise exceptions.MessageTooLong(text, tokens=tokens, limit=room)


def unknown_question() -> exceptions.UnknownMessage:
    """Return the error for the id of a question that the session does not have."""
    return exceptions.UnknownMessage("The session has no question with this id. Read the session again.")


def _id_of(message: Any, name: str) -> uuid.UUID | None:
    """Return the id of a message: the argument ``name`` is a stored message, a row or an id. Raises InvalidArgument."""
    if message is None or isinstance(message, uuid.UUID):
        return message
    message_id = message if isinstance(message, str) else getattr(message, "public_id", getattr(message, "id", None))
    try:
        return uuid.UUID(str(message_id))
    except ValueError:
        raise exceptions.InvalidArgument(f"{name} takes a stored message or its id, not {message!r:.100}.") from None


def waited(opening: Opening) -> Turn:
    """Wait until the turn is open, and return it."""
    while not isinstance(step := next(opening), Turn):
        time.sleep(step)
    return step


async def awaited(opening: Opening) -> Turn:
    """Do the same as :func:`waited` without blocking the event loop."""

    def undo(step: float | Turn) -> None:
        if isinstance(step, Turn):
            step._end()

    while not isinstance(step := await uncancelled(lambda: next(opening), undo), Turn):  # noqa: ASYNC110  nobody tells
        await asyncio.sleep(step)
    return step


async def uncancelled(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Do ``work`` in a thread. If the request is cancelled meanwhile, ``undo`` what it did: a thread goes on."""
    working = asyncio.ensure_future(sync_to_async(work)())

    async def undone() -> None:
        with contextlib.suppress(exceptions.ConvMemoryError):  # Nobody is there for it.
            await sync_to_async(undo)(await working)

    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.shield(undone())
        raise
