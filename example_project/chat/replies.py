"""Streaming a reply to the browser, and storing it, whole or as far as it came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator

import openai
from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_POST

from chat import people
from chat.responder import SYSTEM, Reply, reply_to
from chat.throttles import ReplyThrottle, seconds_to_wait
from django_convmemory.exceptions import ConvMemoryError, IdempotencyConflict
from django_convmemory.handles import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage

logger = logging.getLogger(__name__)

LINES = "application/x-ndjson"


@require_POST
async def reply(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Stream the reply to the conversation's last message, as lines of JSON: ``text``, then ``done`` or ``error``."""
    await request.auser()  # looked up here, where it may be awaited
    row = await sync_to_async(people.conversation)(request, public_id)
    if seconds := await sync_to_async(seconds_to_wait)(request, ReplyThrottle()):
        return lines_of(line(error=f"That was a lot. Please wait {seconds} seconds. Your message is kept."))
    session = memories[row.alias].session(row)
    [last] = await session.ahistory(limit=1) or [None]
    if last is None or last.message.role == "assistant":
        return lines_of(line(done=row.last_position))  # It was answered meanwhile.
    context = await session.aload(system=SYSTEM)
    # Others have the connection while the model talks; the next statement gets another.
    await sync_to_async(close_old_connections)()
    answer = StreamingHttpResponse(stream(session, reply_to(context), last.position), content_type=LINES)
    # A proxy that collected the lines would show them all at once.
    answer["X-Accel-Buffering"] = "no"
    return answer


def lines_of(text: str) -> HttpResponse:
    return HttpResponse(text, content_type=LINES)


async def stream(session: SessionHandle, reply: Reply, answered: int) -> AsyncIterator[str]:
    """Yield the lines. What was said when the browser goes away is stored, and marked as partial."""
    said: list[str] = []
    # One reply to a message is stored, however often it is asked for.
    key = f"reply-to-{answered}"
    try:
        async for piece in reply.pieces():
            said.append(piece)
            yield line(text=piece)
        if not "".join(said).strip():
            yield line(error="The model answered nothing. Your message is kept.")
            return
        message = ChatMessage.ai("".join(said))
        receipt = await session.aappend(message, idempotency_key=key, usage=reply.usage)
    except (asyncio.CancelledError, GeneratorExit):
        if said:
            partial = ChatMessage.ai("".join(said), metadata={"partial": True})
            with contextlib.suppress(IdempotencyConflict):  # Another window has the reply to it.
                await asyncio.shield(session.aappend(partial, idempotency_key=key))
        raise
    except openai.OpenAIError as error:
        logger.warning("No reply to message %s: %s", answered, type(error).__name__)
        yield line(error="The model broke off. Your message is kept." if said else explained(error))
    except ConvMemoryError as error:
        yield line(error=str(error))
    except Exception:
        # In the middle of a stream, older clients raise what their HTTP library raises.
        logger.exception("No reply to message %s.", answered)
        yield line(error="The model broke off. Your message is kept.")
    else:
        yield line(done=receipt.last_position)


def line(**values: object) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"


def explained(error: openai.OpenAIError) -> str:
    """Say what happened, without what providers quote: keys, organizations, prompts."""
    if isinstance(error, openai.RateLimitError):
        what = "The model has too much to do at the moment (429)."
    elif isinstance(error, openai.AuthenticationError):
        what = "The model refused the site's key."
    elif isinstance(error, openai.APITimeoutError):
        what = "The model took too long."
    elif isinstance(error, openai.APIStatusError):
        what = f"The model failed ({error.status_code})."
    else:
        what = "The model cannot be reached."
    return f"{what} Your message is kept."
