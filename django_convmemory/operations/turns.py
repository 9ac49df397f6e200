"""A question and its answer: what the site's function gets, and what an operation returns."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async

from django_convmemory import exceptions
from django_convmemory.context.assembly import Context
from django_convmemory.context.wire import replies
from django_convmemory.messages import ChatMessage, called
from django_convmemory.operations.folding import asynchronous
from django_convmemory.operations.load import Load
from django_convmemory.rules import counters, usage, values
from django_convmemory.rules.turns import Does, Step
from django_convmemory.rules.usage import MessageUsage
from django_convmemory.rules.values import Appended, SessionName, StoredMessage


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
        self, memory: Load, name: SessionName, question: StoredMessage, following: Sequence[StoredMessage], step: Step
    ) -> None:
        self._memory = memory
        self._name = name
        self._step = step
        self._loading: dict[str, Any] = {}
        self._context: Context | None = None
        self._chunks: replies.Chunks | None = None
        # The idempotency key, if it is stored with the next message, and what it stands for.
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
            self._prepare()

        await sync_to_async(append)()

    # What the operations do.

    @staticmethod
    def calls_in(said: Sequence[replies.Reply]) -> bool:
        """Whether the last one makes calls."""
        return bool(said) and bool(said[-1].message.tool_calls)

    def _store(self, said: Sequence[replies.Reply], does: Does, cut_off: str | None = None) -> None:
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
        appended = self._take(step, counters.Batch(entries, idempotency_key=self._key, ids=ids, asked=self._asked))
        # The key is stored with the first message, so that a retry goes on after it.
        self._key = None
        if step.after is not None:
            self.messages = [stored for stored in self.messages if stored.position <= step.after]
        receipt, now = appended.receipt, dt.datetime.now(dt.UTC)
        for position, (entry, message_id) in enumerate(zip(entries, receipt.ids, strict=True), receipt.first_position):
            self.messages.append(StoredMessage.of(entry, position, now, message_id))
        self._step = step._replace(epoch=appended.epoch, last_position=receipt.last_position, after=None)
        self._context, self._alive = None, time.monotonic()
        memory._tell(self._name, appended)

    def _take(self, step: Step, batch: counters.Batch) -> Appended:
        """Take a step of the turn, with what it stores. Errors have the reply."""
        memory = self._memory

        def take(step: Step) -> Appended:
            taken = batch.with_step(step)
            return memory.store.step_turn(self._name, taken, memory.threshold, counter=memory.counter_name)

        try:
            try:
                return take(step)
            except exceptions.QuestionChanged:
                last, question = self.messages[-1].id, self.question.id
                epoch = None if step.after is not None else memory.store.moved(self._name, step, last, question)
                if epoch is None:
                    raise
                return take(step._replace(epoch=epoch))
        except exceptions.TurnError as error:
            error.reply = [entry.message for entry in batch.entries]
            raise

    def _flush(self) -> None:
        """Store a streamed message that has ended with calls, before its calls are run.

        On an event loop, that waits for :meth:`aappend`.
        """
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            return
        if self._chunks is not None and self._chunks.ended and self._chunks.has_calls:
            self._store(self._taken(), Does.GOES_ON)

    def _taken(self) -> list[replies.Reply]:
        """Return the messages of the chunks, and begin the next message."""
        chunks, self._chunks = self._chunks, replies.Chunks()
        return [] if chunks is None or chunks.is_empty else chunks.replies()

    def _finish(self, said: Sequence[replies.Reply]) -> None:
        """Store the reply and end the turn. A message with calls is no reply: the turn can go on later."""
        if not said or all(reply.is_blank for reply in said):
            raise exceptions.EmptyReply(
                "The reply of the model has no text, call, refusal, transcript or file. Nothing was stored. Ask again."
            )
        self._store(said, Does.ENDS, None if self.calls_in(said) else said[-1].cut_off)

    def _finish_early(self, said: list[replies.Reply], cut_off: str) -> None:
        """Store what was said of a reply that was cut off, or nothing if nothing was, and end the turn."""
        text = self._chunks.text if self._chunks is not None else ""
        said = [reply for reply in said if not reply.message.tool_calls]
        if text.strip():
            said.append(replies.Reply(ChatMessage.ai(text)))
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
        self._context = self.load()

    def _renew(self) -> bool:
        """Let the turn last longer, and return whether somebody has stopped it. Raises TurnLost."""
        self._alive = time.monotonic()
        stopped = self._memory.store.renew_turn(self._name, self._step)
        self._memory.store.give_back_connection()
        return stopped

    def _end(self) -> None:
        """End the turn without a reply. What was appended stays."""
        with contextlib.suppress(exceptions.ConvMemoryError):
            self._memory.store.end_turn(self._name, self._step)
