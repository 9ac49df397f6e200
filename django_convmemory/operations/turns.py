"""Answering a question: the question is stored, the site's model is asked, and its reply is stored, each once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import inspect
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from django_convmemory import exceptions
from django_convmemory.context import assembly
from django_convmemory.context.assembly import Context
from django_convmemory.context.wire import forms, replies
from django_convmemory.context.wire.replies import Chunks, Reply
from django_convmemory.messages import ChatMessage, called
from django_convmemory.operations import arguments
from django_convmemory.operations.arguments import Named
from django_convmemory.operations.load import Load
from django_convmemory.operations.twins import asynchronous
from django_convmemory.rules import counters, turns, usage, values
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.strategies import View
from django_convmemory.rules.turns import Does, Step, new_token
from django_convmemory.rules.usage import MessageUsage
from django_convmemory.rules.values import Appended, SessionName, StoredMessage

# In seconds. How long a request waits before it looks again whether it may open its turn.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# How often a turn looks again at a session that changes while the turn is opened.
_TRIES = 5

P = ParamSpec("P")
T = TypeVar("T")

# What a site's function gets is the open turn. What it returns is described at ConversationMemory.answer.
Ask = Callable[["Turn"], Any]


class OpenCall(NamedTuple):
    """A call of a tool that has no result yet. ``arguments`` is JSON, or any text for a custom tool."""

    id: str
    name: str
    arguments: str

    def result(self, content: Any) -> ChatMessage:
        """Return the message that answers the call."""
        return ChatMessage.tool(content, self.id)


class Turn:
    """A question and its answer. While it is open, the site's function gets it; then it is the result.

    - ``session`` is a handle. ``question`` is the stored question.
    - ``messages`` are all of the turn: the question, calls, their results, and the reply.
    - ``replayed``: the reply was stored before, and the model was not asked.
    - ``result`` is what the site's function returned, or None.
    - ``request`` is the request of the API, or None.
    - ``reply_metadata`` is stored with the reply, also with one that is cut off. The site's function sets it.
    """

    def __init__(
        self, memory: Turns, name: SessionName, question: StoredMessage, following: Sequence[StoredMessage], step: Step
    ) -> None:
        self._memory = memory
        self._name = name
        self._step = step
        self._loading: dict[str, Any] = {}
        self._context: Context | None = None
        self._chunks: Chunks | None = None
        # The idempotency key, if it is stored with the reply, and what it stands for.
        self._key: str | None = None
        self._asked: Sequence[str] | None = None
        self._alive = time.monotonic()
        self.question = question
        self.messages = [question, *following]
        self.replayed = False
        self.result: Any = None
        # Whether another request answers the question now.
        self.is_open = False
        self.request: Any = None
        # A page may want to know it before the reply is there.
        self._new_reply_id = counters.new_ids(1)[0]
        self.reply_metadata: Mapping[str, Any] = {}

    # What came of it.

    @property
    def session(self) -> Any:
        """A handle of the session."""
        return self._memory.session(self._name)

    @property
    def reply(self) -> StoredMessage | None:
        """The stored reply, or None as long as there is none."""
        return values.reply_in(self.messages[1:])

    @property
    def etag(self) -> str:
        """The entity tag of the session's messages, for the header ``If-Match`` of the API. It is read now."""
        content, details = self._memory.store.revisions(self._name)
        self._memory.store.give_back_connection()
        return f'"{content}-{details}-"'

    @property
    def reply_id(self) -> uuid.UUID:
        """The id of the reply, also before it is stored."""
        return self.reply.id if self.reply else self._new_reply_id

    @property
    def text(self) -> str:
        """The text of the reply, or ""."""
        return self.reply.message.text if self.reply else ""

    @property
    def refusal(self) -> str:
        """Why the model refuses to answer, or ""."""
        return str(self.reply.message.extra.get("refusal") or "") if self.reply else ""

    @property
    def cut_off(self) -> str:
        """How the reply was cut off: "length", "stopped" or "lost". "" if it is whole."""
        return (self.reply.cut_off or "") if self.reply else ""

    @property
    def usage(self) -> MessageUsage | None:
        """The tokens of those calls of the model for which the provider reported them. None: it reported nothing."""
        reported = [tokens for stored in self.messages if (tokens := usage.read(stored.usage))]
        return MessageUsage(*map(sum, zip(*reported, strict=True))) if reported else None

    def reread(self) -> None:
        """Read the messages again. What the turn has stored itself has the time of this process, not the database's."""
        after, limit = self.question.position - 1, len(self.messages)
        rows = self._memory.store.history(self._name, after=after, before=None, limit=limit)
        self._memory.store.give_back_connection()
        read = {row.id: row for row in rows}
        self.messages = [read.get(stored.id, stored) for stored in self.messages]
        self.question = self.messages[0]

    # While it is open.

    @property
    def context(self) -> Context:
        """What to send to the model now. It is loaded anew after :meth:`append`."""
        if self._context is None:
            self._context = self.load()
        return self._context

    def load(self, /, **options: Any) -> Context:
        """Load the context with other arguments: see :meth:`.ConversationMemory.load`."""
        context = self._memory.load_turn(
            self._name, question=self.question, at=self._step.after, **(self._loading | options)
        )
        # The model is asked next.
        self._memory.store.give_back_connection()
        return context

    aload = asynchronous(load)

    @property
    def open_calls(self) -> list[OpenCall]:
        """The calls of this turn that have no result yet, also those that an earlier try has left."""
        self._flush()
        messages = [stored.message for stored in self.messages]
        if self._chunks is not None and self._chunks.ended:
            messages += [reply.message for reply in self._chunks.replies()]
        calls: list[OpenCall] = []
        for message in messages:
            # Some servers give each call of a function the same id.
            answered = next((call for call in calls if call.id == message.tool_call_id), None)
            if answered is not None:
                calls.remove(answered)
            calls += [OpenCall(call["id"], *called(call)) for call in message.tool_calls]
        return calls

    def append(self, *messages: Any) -> None:
        """Store messages of the turn at once: a reply with calls, or the results of calls.

        They may have the forms that ``ask`` may return. Raises ``TurnLost``, ``QuestionChanged`` and the errors of
        ``append``.
        """
        self._flush()
        self._store(replies.read(messages), Does.GOES_ON)

    async def aappend(self, *messages: Any) -> None:
        """The asynchronous twin of :meth:`append`. It loads the context anew, too."""

        def append() -> None:
            self.append(*messages)
            self._context = self.load()

        await sync_to_async(append)()

    # What the operations do.

    @staticmethod
    def calls_in(said: Sequence[Reply]) -> bool:
        """Whether the last one makes calls."""
        return bool(said) and bool(said[-1].message.tool_calls)

    def _store(self, said: Sequence[Reply], does: Does, cut_off: str | None = None) -> None:
        """Store ``said``. ``cut_off`` is not None if the last one is the reply."""
        memory, step = self._memory, self._step._replace(does=does)
        if cut_off is not None and self.reply_metadata:
            *before, reply = said
            metadata: Any = {**reply.message.metadata, **self.reply_metadata}
            said = [*before, reply._replace(message=dataclasses.replace(reply.message, metadata=metadata))]
        entries = [
            memory.entries([reply.message], usage=reply.usage)[0]._replace(reply_to=self.question.position)
            for reply in said
        ]
        ids = list(counters.new_ids(len(entries)))
        if cut_off is not None:
            entries[-1] = entries[-1]._replace(cut_off=cut_off)
            ids[-1] = self._new_reply_id
        # With the first message that is stored, so that a retry goes on after it.
        key = self._key

        def store(step: Step) -> Appended:
            batch = Batch(entries, idempotency_key=key, ids=ids, step=step, asked=self._asked if key else None)
            return memory.store.step_turn(self._name, batch, memory.threshold, counter=memory.counter_name)

        try:
            try:
                appended = store(step)
            except exceptions.QuestionChanged:
                last, question = self.messages[-1].id, self.question.id
                state = None if step.after is not None else memory.store.moved(self._name, step, last, question)
                if state is None:
                    raise
                appended = store(step._replace(epoch=state.epoch))
        except exceptions.TurnError as error:
            error.reply = [reply.message for reply in said]
            raise
        receipt = appended.receipt
        self._key = None
        if step.after is not None:
            self.messages = [stored for stored in self.messages if stored.position <= step.after]
        now = dt.datetime.now(dt.UTC)
        for number, (entry, message_id) in enumerate(zip(entries, receipt.ids, strict=True)):
            place = (receipt.first_position + number, now, entry.message, entry.tokens, False, message_id)
            self.messages.append(StoredMessage(*place, entry.reply_to, entry.cut_off, entry.usage))
        self._step = step._replace(epoch=appended.epoch, last_position=receipt.last_position, after=None)
        self._context, self._alive = None, time.monotonic()
        memory._tell(self._name, appended)

    def _flush(self) -> None:
        """Store a streamed message that has ended with calls, before its calls are run.

        On an event loop, that waits for :meth:`aappend`.
        """
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            return
        if self._chunks is not None and self._chunks.ended and self._chunks.has_calls:
            self._store(self._taken(), Does.GOES_ON)

    def _taken(self) -> list[Reply]:
        """Return the messages of the chunks, and begin the next message."""
        chunks, self._chunks = self._chunks, Chunks()
        return [] if chunks is None or chunks.is_empty else chunks.replies()

    def _finish(self, said: Sequence[Reply]) -> None:
        """Store the reply and end the turn. A message with calls is no reply: the turn can go on later."""
        if not said or all(reply.is_blank for reply in said):
            raise exceptions.EmptyReply(
                "The reply of the model has no text, call, refusal, transcript or file. Nothing was stored. Ask again."
            )
        self._store(said, Does.ENDS, None if self.calls_in(said) else said[-1].cut_off)

    def _finish_early(self, said: list[Reply], cut_off: str) -> None:
        """Store what was said of a reply that was cut off, or nothing if nothing was, and end the turn."""
        text = self._chunks.text if self._chunks is not None else ""
        said = [reply for reply in said if not reply.message.tool_calls]
        if text.strip():
            said.append(Reply(ChatMessage.ai(text)))
        if said:
            self._store(said, Does.ENDS, cut_off)
        else:
            self._end()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End the turn if the block raises."""
        try:
            yield
        except BaseException:
            self._end()
            raise

    def _prepare(self) -> None:
        """Load the context before the model is asked."""
        self.context  # noqa: B018

    def _end(self) -> None:
        """End the turn without a reply. What was appended stays."""
        with contextlib.suppress(exceptions.ConvMemoryError):
            self._memory.store.end_turn(self._name, self._step)


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


class Turns(Load):
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
            if Reply(message).is_blank:
                raise exceptions.InvalidMessage("The question is empty. Pass what the user wants to know.")
        key = arguments.check_idempotency_key(key, "key")
        arguments.check_whole_number(revision, "revision", optional=True)
        self.check_loading(system=system, max_tokens=max_tokens, recall=recall)
        loading = {"system": assembly.system_message(system), "max_tokens": max_tokens, "recall": recall}
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

    def _opening(self, asked: Question) -> Generator[float, None, Turn]:
        """Open the turn, or find the reply of an earlier request. Yields for how many seconds to wait before a try."""
        ends = time.monotonic() + (asked.wait if self.store.waits() else 0.0)
        pause = _FIRST_PAUSE
        while True:
            try:
                turn = self._open(asked)
                turn._loading = asked.loading
                return turn
            except exceptions.TurnInProgress:
                left = ends - time.monotonic()
                if left <= 0:
                    raise
            self.store.give_back_connection()
            yield min(pause, left)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _open(self, asked: Question) -> Turn:
        """Open the turn, or return the stored reply. Raises TurnInProgress if another turn is open."""
        name, store = asked.name, self.store
        step = Step(new_token(), self.options.turn_timeout, Does.BEGINS)
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

    def _open_new(self, asked: Question, message: ChatMessage, step: Step) -> Turn:
        name, store = asked.name, self.store
        replaced = store.question(name, asked.edit) if asked.edit else None
        entry = self.entries([message])[0]
        rest = (self.threshold,)
        after = None if replaced is None else replaced.position - 1
        # By the id, because a retry does not find the position of the question that was edited.
        words = None if asked.edit is None else ("edit", str(asked.edit), Batch([entry]).payload_hash)
        batch = Batch([entry], idempotency_key=asked.key, step=step, asked=words, replaces=after)
        try:
            self._check_fits(asked, entry.tokens)
            if asked.edit and replaced is None:
                raise unknown_question()
            if after is None:
                appended = store.append(name, batch, *rest, counter=self.counter_name)
            else:
                appended = store.replace(name, after, batch, *rest, counter=self.counter_name, revision=asked.revision)
        except (
            *(exceptions.IdempotencyConflict, exceptions.MessageTooLong),
            *(exceptions.UnknownMessage, exceptions.StaleRevision),
        ):
            position = store.keyed_question(name, batch) if asked.key is not None else None
            if position is None:
                raise
            return self._resume(name, self._at(name, position), step)
        receipt = appended.receipt
        if receipt.replayed:
            return self._resume(name, self._at(name, receipt.first_position), step)
        self._tell(name, appended)
        stored = (receipt.first_position, dt.datetime.now(dt.UTC), message, entry.tokens, False, receipt.ids[0])
        position = receipt.last_position
        step = step._replace(question=position, epoch=appended.epoch, last_position=position)
        return Turn(self, name, StoredMessage(*stored), [], step)

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
        step: Step,
        *,
        anew: bool = False,
        revision: int | None = None,
    ) -> Turn:
        """Return the stored reply, or open a turn that goes on after what an earlier try has stored.

        ``anew``: a reply that is stored is replaced.
        """
        for _ in range(_TRIES):
            state, following = self.store.after_question(name, question.position)
            state.require(revision)
            reply = values.reply_in(following)
            turn = Turn(self, name, question, following, step)
            if reply is not None and reply.cut_off != "lost" and not anew:
                turn.replayed = True
                return turn
            if question.redacted:
                raise turns.changed()
            after: int | None = None
            if reply is not None or state.last_position != question.position + len(following):
                if not anew and (reply is None or state.last_position != question.position + len(following)):
                    raise turns.changed()
                # A reply that was lost is replaced, and the calls before it stay. Otherwise all is made anew.
                kept = following.index(reply) if reply is not None and reply.cut_off == "lost" and not anew else 0
                after = question.position + kept
                turn.messages = [question, *following[:kept]]
            turn._step = step._replace(
                question=question.position, epoch=state.epoch, last_position=state.last_position, after=after
            )
            try:
                self.store.begin_turn(name, turn._step)
            except exceptions.QuestionChanged:
                continue  # For example, the turn that was open has stored its reply.
            return turn
        raise turns.changed()

    def _check_fits(self, asked: Question, tokens: int) -> None:
        """Raise MessageTooLong if the question cannot fit into the context."""
        limit = asked.loading["max_tokens"]
        system = asked.loading["system"]
        if limit is None:
            limit = self.options.max_context_tokens
            if limit is None:
                return
        elif system is not None:
            limit -= self.counter.count(system)
        if tokens <= limit - self.options.pinned_tokens:
            return
        snapshot = self.store.load(asked.name, View(messages=0), self.options.pinned_tokens)
        room = limit - sum(row.tokens for row in snapshot.pinned) if snapshot else limit
        if tokens > room:
            raise exceptions.MessageTooLong(
                f"The question has about {tokens} tokens, and there is room for {max(0, room)}. Shorten it.",
                tokens=tokens,
                limit=max(0, room),
            )


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


def waited(opening: Generator[float, None, Turn]) -> Turn:
    """Wait until the turn is open, and return it."""
    try:
        while True:
            time.sleep(next(opening))
    except StopIteration as stop:
        turn: Turn = stop.value
        return turn


async def awaited(opening: Generator[float, None, Turn]) -> Turn:
    """Do the same as :func:`waited` without blocking the event loop."""

    def advance() -> float | Turn:
        try:
            return next(opening)
        except StopIteration as stop:  # A future cannot carry it.
            turn: Turn = stop.value
            return turn

    def undo(step: float | Turn) -> None:
        if isinstance(step, Turn):
            step._end()

    waited = await uncancelled(advance, undo)
    while not isinstance(waited, Turn):
        await asyncio.sleep(waited)
        waited = await uncancelled(advance, undo)
    return waited


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
