"""Answering a question in pieces, as the model says them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from typing import Any, TypeVar

from asgiref.sync import SyncToAsync, async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest, StreamingHttpResponse

from django_convmemory.context.wire.replies import Chunks, Reply
from django_convmemory.exceptions import TurnError
from django_convmemory.operations import events
from django_convmemory.operations.answer import Answer, arguments_of, awaited, uncancelled, waited
from django_convmemory.operations.turns import Turn
from django_convmemory.rules.turns import Does

logger = logging.getLogger(__name__)

# How long a turn lasts if nobody begins to read its stream: the browser may have left before the response began.
UNREAD_SECONDS = 5.0
# There are no more steps, or no more chunks.
_END = object()

# A step of a stream is a text for the reader, or a function that returns what has to be awaited.
_Wait = Callable[[], Awaitable[Any]]
T = TypeVar("T")
_Steps = Generator[str | _Wait, Any, T]
_Waits = Generator[_Wait, Any, T]


class TurnStream:
    """The pieces of a reply, as texts. Iterate over it once, synchronously or not, whatever the site's function is.

    ``turn`` is the open turn, and has the reply when the pieces are at their end: it is stored by then. If the reader
    goes away, ``close()`` or ``aclose()`` stores what was said as a reply that was cut off.
    """

    # In seconds: how often it lets its turn last longer, and looks whether somebody has stopped it.
    sign_of_life = 5.0
    # Whether an event loop waits for the model now.
    is_waiting = False

    def __init__(self, turn: Turn, ask: Callable[[Turn], Any]) -> None:
        self.turn = turn
        turn._step = turn._step._replace(seconds=turn._memory.options.turn_timeout)
        self._source = _Source(turn, ask)
        self._steps: _Steps[None] | None = None  # Until somebody asks for a piece.
        self._runner: asyncio.Runner | None = None
        # Also of a turn that is short.
        self.sign_of_life = min(self.sign_of_life, turn._step.seconds / 3)

    def __iter__(self) -> Iterator[str]:
        value: Any = None
        error: Exception | None = None
        try:
            while (step := self._advance(value, error)) is not _END:
                value = error = None
                if isinstance(step, str):
                    yield step
                    continue
                try:
                    value = self._run(step)
                except Exception as raised:  # noqa: BLE001  the turn ends, and raises it again
                    error = raised
        finally:
            self.close()

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        advance = sync_to_async(self._advance)
        value: Any = None
        error: Exception | None = None
        try:
            while (step := await advance(value, error)) is not _END:
                value = error = None
                if isinstance(step, str):
                    yield step
                    continue
                try:
                    self.is_waiting = True
                    value = await step()
                except Exception as raised:  # noqa: BLE001  the turn ends, and raises it again
                    error = raised
                finally:
                    self.is_waiting = False
        finally:
            await asyncio.shield(self.aclose())

    def response(self, request: HttpRequest) -> StreamingHttpResponse:
        """Return the response of a view: server-sent events, sent as the model speaks. See :mod:`.events`."""
        return events.response(self, request)

    def close(self) -> None:
        """End the stream, and close the model's. What was said so far is stored, unless the reply is stored already."""
        try:
            self._end()
        finally:
            for step in self._source.close():
                self._run(step)
            if self._runner is not None:
                self._runner.close()

    async def aclose(self) -> None:
        """The asynchronous twin of :meth:`close`."""
        try:
            await sync_to_async(self._end)()
        finally:
            closing = self._source.close()
            following = sync_to_async(lambda: next(closing, None))
            while (step := await following()) is not None:
                await step()

    def _end(self) -> None:
        if self._steps is not None:
            self._steps.close()
        elif not self.turn.replayed:
            self.turn._end()

    def _advance(self, value: Any, error: Exception | None) -> Any:
        """Return the next step, or _END. ``value`` is what the last one returned, and ``error`` what it raised."""
        self._steps = self._steps or self._answering()
        try:
            return self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration:
            return _END

    def _run(self, step: _Wait) -> Any:
        """Run a step on the one event loop of this stream: the connections of a client belong to a loop.

        In a thread of an event loop, that loop runs it. What it does in a thread is done in this one then, which waits.
        """

        async def run() -> Any:
            return await step()

        loop = getattr(SyncToAsync.threadlocal, "main_event_loop", None)
        if loop is not None and loop.is_running():  # A thread may have that of an earlier request, which has ended.
            return async_to_sync(run)()
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(run())

    def is_stopped(self) -> bool:
        """Let the turn last longer, if it is time for that, and return whether somebody has stopped it.

        Raises TurnLost.
        """
        return time.monotonic() - self.turn._alive >= self.sign_of_life and self.turn._renew()

    def _answering(self) -> _Steps[None]:
        turn = self.turn
        if turn.replayed:
            if turn.text:
                yield turn.text
            return
        said: list[Reply] = []
        try:
            if turn._renew():
                turn._end()  # Somebody has stopped it before it began.
                return
            while True:
                open_before = {call.id for call in turn.open_calls}
                cut_off = yield from self._round(said)
                if cut_off:
                    turn._finish_early(said, cut_off)
                    return
                # The site's function is called again to run the calls, unless it has not run those before.
                if not turn.calls_in(said) or open_before & {call.id for call in turn.open_calls}:
                    break
                turn._store(said, Does.GOES_ON)
                said.clear()
            turn._finish(said)
        except GeneratorExit:
            # The reader has gone, or the page that asked for the stop. Nobody is there for an error of the turn.
            try:
                with turn._ending():
                    turn._finish_early(said, "stopped" if turn._renew() else "lost")
            except TurnError as error:
                logger.warning("A reply that was cut off was not stored in session %.300r: %s", turn._name.key, error)
            raise
        except BaseException:
            turn._end()
            raise

    def _round(self, said: list[Reply]) -> _Steps[str]:
        """Read what one call of the site's function says, and return how it was cut off, or ""."""
        turn = self.turn
        chunks = turn._chunks = Chunks()
        yield from self._source.open()
        while (chunk := (yield from self._source.read())) is not _END:
            if turn._chunks is not chunks or chunks.begins_another(chunk):
                said += turn._taken()
                chunks = turn._chunks = Chunks()
            text = chunks.add(chunk)
            if text:
                yield text
            if self.is_stopped():
                return "stopped"
        if chunks.needs_end and not chunks.ended:
            return "lost"
        said += turn._taken()
        return ""


class _Source:
    """What the site's function yields or returns: entered, read and closed."""

    def __init__(self, turn: Turn, ask: Callable[[Turn], Any]) -> None:
        self._turn = turn
        self._ask = ask
        self._chunks: Any = iter(())
        # What closes it, and whether that has to be awaited.
        self._exits: list[tuple[Callable[[], Any], bool]] = []

    def open(self) -> _Waits[None]:
        """Call the site's function, and enter what it returns."""
        yield from self.close()
        if iscoroutinefunction(self._ask):
            source = yield functools.partial(self._ask, self._turn)
        else:
            source = self._ask(self._turn)
            if inspect.isawaitable(source):
                source = yield lambda: source
        for enter, leave, waits in (("__aenter__", "__aexit__", True), ("__enter__", "__exit__", False)):
            if hasattr(source, enter):
                leaves = functools.partial(getattr(source, leave), None, None, None)
                source = (yield source.__aenter__) if waits else source.__enter__()
                self._exits.append((leaves, waits))
                break
        if hasattr(source, "__aiter__"):
            self._chunks = aiter(source)
        else:
            self._chunks = source if hasattr(source, "__next__") else iter([source])  # A whole reply.
        for close, waits in (("aclose", True), ("close", False)):
            if hasattr(self._chunks, close):
                self._exits.append((getattr(self._chunks, close), waits))
                break

    def read(self) -> _Waits[Any]:
        """Return the next chunk, or _END."""
        if hasattr(self._chunks, "__anext__"):
            return (yield functools.partial(anext, self._chunks, _END))
        return next(self._chunks, _END)

    def close(self) -> _Waits[None]:
        """Leave and close what was opened."""
        while self._exits:
            # It stays in the list until it is done: the reader may go away meanwhile.
            close, waits = self._exits[-1]
            if waits:
                yield close
            else:
                close()
            self._exits.pop()


class Streams(Answer):
    """Answers questions in pieces."""

    @arguments_of(Answer.asked)
    def stream_answer(self, *asked: Any, **options: Any) -> TurnStream:
        """Store ``question``, and return the pieces of the reply, which is stored at their end.

        The arguments and errors are those of :meth:`answer`. This call checks, waits and stores the question. The model
        is asked at the first piece. ``ask`` yields texts or the chunks of a client, or returns the client's stream,
        which is entered and closed. After a message with calls it is called again, to run ``turn.open_calls``.
        """
        question = self.asked(*asked, **options)
        return self._stream(waited(self._opening(question, UNREAD_SECONDS)), question.ask)

    @arguments_of(Answer.asked)
    async def astream_answer(self, *asked: Any, **options: Any) -> TurnStream:
        """The asynchronous twin of :meth:`stream_answer`."""
        question = self.asked(*asked, **options)
        turn = await awaited(self._opening(question, UNREAD_SECONDS))
        return await uncancelled(lambda: self._stream(turn, question.ask), TurnStream.close)

    def _stream(self, turn: Turn, ask: Any) -> TurnStream:
        if not turn.replayed:
            with turn._ending():
                turn._prepare()
        return TurnStream(turn, ask)
