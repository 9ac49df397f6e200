"""Answering a question in pieces, as the model says them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, StreamingHttpResponse

from django_convmemory.context.wire.replies import Chunks, Reply
from django_convmemory.exceptions import TurnError
from django_convmemory.operations import events
from django_convmemory.operations.turns import Turn, Turns, arguments_of, awaited, uncancelled, waited
from django_convmemory.rules.turns import Does

logger = logging.getLogger(__name__)

# A stream gives a sign of life as often as this, in seconds, and looks whether somebody has stopped it.
_SIGN_OF_LIFE = 5.0
# What the steps of a stream ask for, besides handing out a text: to call the site's function, or its next chunk.
_CALL, _CHUNK = object(), object()
# The source has no more chunks.
_END = object()


class TurnStream:
    """The pieces of a reply, as texts. Iterate over it once, synchronously or not, whatever the site's function is.

    ``turn`` is the open turn, and has the reply when the pieces are at their end: it is stored by then. If the reader
    goes away, ``close()`` stores what was said as a reply that was cut off.
    """

    def __init__(self, turn: Turn, ask: Callable[[Turn], Any]) -> None:
        self.turn = turn
        self._ask = ask
        self._steps = self._answering()
        self._source = _Source()

    def __iter__(self) -> Iterator[str]:
        value: Any = None
        error: Exception | None = None
        try:
            while True:
                wanted = self._advance(value, error)
                value = error = None
                if wanted is _END:
                    return
                if isinstance(wanted, str):
                    yield wanted
                    continue
                try:
                    if wanted is _CALL:
                        self._source.open(self._ask, self.turn)
                    else:
                        value = self._source.next()
                except Exception as raised:  # noqa: BLE001  the turn ends, and raises it again
                    error = raised
        finally:
            self.close()

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        if not (iscoroutinefunction(self._ask) or inspect.isasyncgenfunction(self._ask)):
            pieces = iter(self)
            following = sync_to_async(lambda: next(pieces, None))
            try:
                while (piece := await following()) is not None:
                    yield piece
            finally:
                await asyncio.shield(sync_to_async(self.close)())
            return
        value: Any = None
        error: Exception | None = None
        advance = sync_to_async(self._advance)
        try:
            while True:
                wanted = await advance(value, error)
                value = error = None
                if wanted is _END:
                    return
                if isinstance(wanted, str):
                    yield wanted
                    continue
                try:
                    if wanted is _CALL:
                        await self._source.aopen(self._ask, self.turn)
                    else:
                        value = await self._source.anext()
                except Exception as raised:  # noqa: BLE001  the turn ends, and raises it again
                    error = raised
        finally:
            await asyncio.shield(self._source.aclose())
            await asyncio.shield(sync_to_async(self.close)())

    def response(self, request: HttpRequest) -> StreamingHttpResponse:
        """Return the response of a view: server-sent events, sent as the model speaks. See :mod:`.events`."""
        return events.response(self, request)

    def close(self) -> None:
        """End the stream, and close the model's. What was said so far is stored, unless the reply is stored already."""
        if inspect.getgeneratorstate(self._steps) == inspect.GEN_CREATED and not self.turn.replayed:
            self.turn._end()
        self._steps.close()
        self._source.close()

    def _advance(self, value: Any, error: Exception | None) -> Any:
        try:
            return self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration:
            return _END

    def _answering(self) -> Generator[Any, Any, None]:
        """Yield texts, and what is wanted of the source."""
        turn = self.turn
        if turn.replayed:
            if turn.text:
                yield turn.text
            return
        said: list[Reply] = []
        try:
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
                    stopped = turn._memory.store.renew_turn(turn._name, turn._step)
                    turn._finish_early(said, "stopped" if stopped else "lost")
            except TurnError as error:
                logger.warning("A reply that was cut off was not stored in session %.300r: %s", turn._name.key, error)
            raise
        except BaseException:
            turn._end()
            raise

    def _round(self, said: list[Reply]) -> Generator[Any, Any, str]:
        """Read what one call of the site's function says, and return how it was cut off, or ""."""
        turn = self.turn
        chunks = turn._chunks = Chunks()
        yield _CALL
        while (chunk := (yield _CHUNK)) is not _END:
            if turn._chunks is not chunks or chunks.begins_another(chunk):
                said += turn._taken()
                chunks = turn._chunks = Chunks()
            text = chunks.add(chunk)
            if text:
                yield text
            if self._is_stopped():
                return "stopped"
        if chunks.needs_end and not chunks.ended:
            return "lost"
        said += turn._taken()
        return ""

    def _is_stopped(self) -> bool:
        turn = self.turn
        if time.monotonic() - turn._alive < _SIGN_OF_LIFE:
            return False
        turn._alive = time.monotonic()
        stopped = turn._memory.store.renew_turn(turn._name, turn._step)
        turn._memory.store.give_back_connection()
        return stopped


class _Source:
    """What the site's function yields or returns: entered, read and closed, from code that is synchronous or not."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._chunks: Any = iter(())
        self._runner: asyncio.Runner | None = None
        self._exits: list[Callable[[], Any]] = []

    def _await(self, waits: Any) -> Any:
        """Run a coroutine on the one event loop of this source: the connections of a client belong to a loop."""

        async def run() -> Any:
            return await waits

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(run())

    def open(self, ask: Callable[[Turn], Any], turn: Turn) -> None:
        self._leave()
        result = ask(turn)
        if inspect.isawaitable(result):
            result = self._await(result)
        if hasattr(result, "__aenter__"):
            self._exits.append(functools.partial(result.__aexit__, None, None, None))
            result = self._await(result.__aenter__())
        elif hasattr(result, "__enter__"):
            result = self._stack.enter_context(result)
        self._take(result)

    async def aopen(self, ask: Callable[[Turn], Any], turn: Turn) -> None:
        await self.aclose()
        result = ask(turn)
        if inspect.isawaitable(result):
            result = await result
        if hasattr(result, "__aenter__"):
            self._exits.append(functools.partial(result.__aexit__, None, None, None))
            result = await result.__aenter__()
        self._take(result)

    def _take(self, result: Any) -> None:
        if hasattr(result, "__aiter__"):
            self._chunks = aiter(result)
            if hasattr(self._chunks, "aclose"):
                self._exits.append(self._chunks.aclose)
        elif hasattr(result, "__next__"):
            self._chunks = result
            if hasattr(result, "close"):
                self._stack.callback(result.close)
        else:  # A whole reply.
            self._chunks = iter([result])

    def next(self) -> Any:
        if hasattr(self._chunks, "__anext__"):
            return self._await(anext(self._chunks, _END))
        return next(self._chunks, _END)

    async def anext(self) -> Any:
        return await anext(self._chunks, _END) if hasattr(self._chunks, "__anext__") else next(self._chunks, _END)

    def _leave(self) -> None:
        while self._exits:
            self._await(self._exits.pop()())
        self._stack.close()

    def close(self) -> None:
        try:
            self._leave()
        finally:
            if self._runner is not None:
                self._runner.close()

    async def aclose(self) -> None:
        while self._exits:
            await self._exits.pop()()
        self._stack.close()


class Streams(Turns):
    """Answers questions in pieces."""

    @arguments_of(Turns.asked)
    def stream_answer(self, *asked: Any, **options: Any) -> TurnStream:
        """Store ``question``, and return the pieces of the reply, which is stored at their end.

        The arguments and errors are those of :meth:`answer`. This call checks, waits and stores the question. The model
        is asked at the first piece. ``ask`` yields texts or the chunks of a client, or returns the client's stream,
        which is entered and closed. After a message with calls it is called again, to run ``turn.open_calls``.
        """
        question = self.asked(*asked, **options)
        return self._stream(waited(self._opening(question)), question.ask)

    @arguments_of(Turns.asked)
    async def astream_answer(self, *asked: Any, **options: Any) -> TurnStream:
        """The asynchronous twin of :meth:`stream_answer`."""
        question = self.asked(*asked, **options)
        turn = await awaited(self._opening(question))
        return await uncancelled(lambda: self._stream(turn, question.ask), TurnStream.close)

    def _stream(self, turn: Turn, ask: Any) -> TurnStream:
        if not turn.replayed:
            with turn._ending():
                turn._prepare()
        return TurnStream(turn, ask)
