"""Streaming a reply to the browser, and storing it, whole or as far as it came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import openai
from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_POST

from chat import people, turns
from chat.responder import SYSTEM, Reply, reply_to
from chat.throttles import ReplyThrottle, seconds_to_wait
from django_convmemory.core.values import StoredMessage
from django_convmemory.exceptions import ConvMemoryError, InvalidMessage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session

logger = logging.getLogger(__name__)

LINES = "application/x-ndjson"
# Characters of a reply. What goes on after that is not waited for.
LONGEST = 50_000


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
    answer = StreamingHttpResponse(stream(row, reply_to(context), last), content_type=LINES)
    # A proxy that collected the lines would show them all at once.
    answer["X-Accel-Buffering"] = "no"
    return answer


def lines_of(text: str) -> HttpResponse:
    return HttpResponse(text, content_type=LINES)


async def stream(row: Session, reply: Reply, asked: StoredMessage) -> AsyncIterator[str]:
    """Yield the lines. What was said when the browser goes away is stored, and marked as partial."""
    said: list[str] = []
    try:
        async with contextlib.aclosing(storable(reply.pieces())) as pieces:
            async for piece in pieces:
                said.append(piece)
                yield line(text=piece)
        if not "".join(said).strip():
            yield line(error="The model answered nothing. Your message is kept.")
            return
        try:
            await keep(row, asked, ChatMessage.ai("".join(said)), reply.usage)
        except InvalidMessage:
            if reply.usage is None:
                raise
            logger.warning("What the model says that the reply to message %s took is not kept.", asked.position)
            await keep(row, asked, ChatMessage.ai("".join(said)))
        # Also where it was not stored: the page then shows what was stored instead.
        yield line(done=asked.position + 1)
    except (asyncio.CancelledError, GeneratorExit):
        await asyncio.shield(keep_part(row, asked, said))
        raise
    except openai.OpenAIError as error:
        logger.warning("No reply to message %s: %s", asked.position, type(error).__name__)
        yield line(error="The model broke off. Your message is kept." if said else explained(error))
    except ConvMemoryError as error:
        yield line(error=str(error))
    except Exception:
        # In the middle of a stream, older clients raise what their HTTP library raises.
        logger.exception("No reply to message %s.", asked.position)
        yield line(error="The model broke off. Your message is kept.")


async def keep(row: Session, asked: StoredMessage, reply: ChatMessage, usage: Any = None) -> None:
    """Store a reply, where it still is one, and give the connection back."""
    try:
        await sync_to_async(turns.answer)(row, asked, reply, usage)
    finally:
        await sync_to_async(close_old_connections)()


async def keep_part(row: Session, asked: StoredMessage, said: list[str]) -> None:
    """Store what there is of a reply. Raises nothing: nobody is there to be told, and Django would not clean up."""
    try:
        if "".join(said).strip():
            await keep(row, asked, ChatMessage.ai("".join(said), metadata={"partial": True}))
    except Exception:
        logger.exception("What there was of the reply to message %s is lost.", asked.position)


async def storable(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """Yield the pieces without what no database stores, and no more of them than a reply may have.

    A character may be cut in half between two pieces, as some servers do with emoji.
    """
    rest, left = "", LONGEST
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            text = rest + piece
            whole = len(text) - ("\ud800" <= text[-1:] <= "\udbff")
            text, rest = text[:whole].replace("\0", ""), text[whole:]
            if text:
                yield text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")[:left]
            left -= len(text)
            if left <= 0:
                return


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
