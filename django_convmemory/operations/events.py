"""The response that streams a turn: server-sent events (the HTML standard, section 9.2), with JSON as their data.

| event     | data                                                                                    |
| --------- | --------------------------------------------------------------------------------------- |
| `start`   | `question` and `reply`: the ids of the two messages; `etag`; `replayed`                 |
| `delta`   | `text`: a piece of the reply                                                            |
| `message` | `message`: a call of tools, or the result of a call, that is stored                     |
| `done`    | `question` and `reply`: both messages, which are stored; `usage`; `etag`                |
| `error`   | the problem, as the HTTP API has it; `retryable`: whether the same request may be sent again |
"""

from __future__ import annotations

import asyncio
import contextvars
import http.client
import json
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from django_convmemory import exceptions

logger = logging.getLogger(__name__)

MEDIA_TYPE = "text/event-stream"
HEADERS = {
    "Cache-Control": "no-store, no-transform",
    # Neither nginx nor GZipMiddleware may hold back an event to join it with others.
    "X-Accel-Buffering": "no",
    "Content-Encoding": "identity",
}
# In seconds. Proxies close connections that are silent for a minute. Only an event loop can send something meanwhile.
_SILENCE = 15.0
_COMMENT = ": the model is silent\n\n"
# After these, the same request would not be answered in another way.
_FINAL = (exceptions.QuestionChanged, exceptions.UnknownSession)


# A stream is a TurnStream, which imports this module.


def response(stream: Any, request: HttpRequest) -> StreamingHttpResponse:
    """Return the response with the events of ``stream``. It streams under WSGI and under ASGI."""
    # Django would collect a synchronous iterator under ASGI, and an asynchronous one under WSGI.
    events = _AsynchronousEvents if isinstance(getattr(request, "_request", request), ASGIRequest) else _Events
    return StreamingHttpResponse(events(stream), content_type=MEDIA_TYPE, headers=HEADERS)


def event(name: str, data: Any) -> str:
    """Return an event. Its data is JSON in ASCII, so a text may end in the middle of a character."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def problem(status: int, code: str, detail: str) -> dict[str, Any]:
    """Return the problem details (RFC 9457) of an error."""
    return {
        "type": f"urn:problem-type:convmemory:{code}",
        "title": http.client.responses.get(status, "Error"),
        "status": status,
        "detail": detail,
        "code": code,
    }


class _Events:
    """The events of a stream, for a server with WSGI."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._sent: set[uuid.UUID] = set()

    def __iter__(self) -> Iterator[str]:
        try:
            yield self._start()
            for text in self._stream:
                yield self._new_messages() + event("delta", {"text": text})
            yield self._done()
        except Exception as error:  # noqa: BLE001  it is logged
            yield self._error(error)

    def close(self) -> None:
        """Close the stream. Django calls it at the end, also if the reader has gone."""
        self._stream.close()

    def _start(self) -> str:
        turn = self._stream.turn
        ids = {"question": str(turn.question.id), "reply": str(turn.reply_id)}
        return event("start", ids | {"etag": turn.etag, "replayed": turn.replayed})

    def _new_messages(self) -> str:
        """Return the events of the messages that were stored since the last call, without the question and reply."""
        turn = self._stream.turn
        known = self._sent | {turn.question.id, turn.reply_id}
        if not {stored.id for stored in turn.messages} - known:
            return ""
        turn.reread()
        new = [stored for stored in turn.messages if stored.id not in known]
        self._sent |= {stored.id for stored in new}
        return "".join(event("message", {"message": stored.to_json()}) for stored in new)

    def _done(self) -> str:
        turn, messages = self._stream.turn, self._new_messages()
        turn.reread()
        pair = {"question": turn.question.to_json(), "reply": turn.reply and turn.reply.to_json()}
        return messages + event("done", pair | {"usage": turn.usage and turn.usage._asdict(), "etag": turn.etag})

    def _error(self, error: Exception) -> str:
        # The question is stored. So a message that cannot be stored is the model's, or one of the site's function.
        if isinstance(error, exceptions.ConvMemoryError) and not isinstance(error, exceptions.InvalidMessage):
            document = problem(error.status, error.code, str(error))
        else:
            # What an exception of the site says may be secret.
            logger.error("The site's function failed to answer.", exc_info=error)
            document = problem(502, "responder_failed", "The model did not reply. Send the same request again.")
        return event("error", document | {"retryable": not isinstance(error, _FINAL)})


class _AsynchronousEvents(_Events):
    """The events of a stream, for a server with ASGI."""

    __iter__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[str]:
        stream, pieces = self._stream, aiter(self._stream)
        waiting: asyncio.Future[str | None] | None = None
        # One for all pieces, as if there were one task: a tracer of the site enters a span before a piece, and leaves
        # it after another one.
        context = contextvars.copy_context()

        async def next_piece() -> str | None:
            return await anext(pieces, None)

        try:
            yield await sync_to_async(self._start)()
            while True:
                waiting = asyncio.get_running_loop().create_task(next_piece(), context=context)
                stopped, silent = False, 0.0
                while not (stopped or (await asyncio.wait([waiting], timeout=stream.sign_of_life))[0]):
                    silent += stream.sign_of_life
                    if silent >= _SILENCE:
                        yield _COMMENT
                        silent = 0.0
                    stopped = stream.is_waiting and await sync_to_async(stream.is_stopped)()
                if stopped:
                    waiting.cancel()
                    await asyncio.wait([waiting])
                    break
                if (text := await waiting) is None:
                    break
                yield await sync_to_async(self._new_messages)() + event("delta", {"text": text})
            yield await sync_to_async(self._done)()
        except Exception as error:  # noqa: BLE001  it is logged
            yield self._error(error)
        finally:
            # The reader has gone, perhaps while the model is silent.
            if waiting is not None and not waiting.done():
                waiting.cancel()
                await asyncio.wait([waiting])
            await asyncio.shield(pieces.aclose())
