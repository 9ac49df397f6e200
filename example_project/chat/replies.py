"""Streams a reply to the browser and stores it, complete or in part."""

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
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from chat import people, refusals, turns
from chat.responder import Reply, by_whom, reply_to
from chat.throttles import ReplyThrottle, seconds_to_wait
from django_convmemory.exceptions import ConvMemoryError, InvalidMessage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session
from django_convmemory.rules.values import StoredMessage

logger = logging.getLogger(__name__)

LINES = "application/x-ndjson"
# Characters of a reply. A longer reply is cut off here.
LONGEST = 50_000
BROKE_OFF = "The model broke off its answer. Your message is stored."


@require_POST
async def reply(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Stream the reply to the conversation's last message, as lines of JSON: ``text``, then ``done`` or ``error``."""
    await request.auser()  # Looks the user up without blocking the event loop.
    row = await sync_to_async(people.conversation)(request, public_id)
    if seconds := await sync_to_async(seconds_to_wait)(request, ReplyThrottle()):
        lines = lines_of(line(error=f"Too many requests. Please wait {seconds} seconds. Your message is stored."))
    else:
        session = memories[row.alias].session(row)
        [last] = await session.ahistory(limit=1) or [None]
        if last is None or last.message.role == "assistant":
            lines = lines_of(line(done=row.last_position))  # Another request has answered it.
        else:
            lines = stream(row, await reply_to(session), last)
    # Free the database connection while the model answers. The next query opens another.
    await sync_to_async(close_old_connections)()
    if request.get_preferred_type([LINES, "text/html"]) == "text/html":
        return await page_after(request, row, lines)
    response = StreamingHttpResponse(lines, content_type=LINES)
    # A proxy must not buffer the lines.
    response["X-Accel-Buffering"] = "no"
    return response


async def lines_of(*lines: str) -> AsyncIterator[str]:
    for each in lines:
        yield each


async def page_after(request: HttpRequest, row: Session, lines: AsyncIterator[str]) -> HttpResponseBase:
    """Return the page that a browser without scripts shows when the reply is there, or why there is none."""
    error = None
    async for text in lines:
        error = json.loads(text).get("error")
    if error is None:
        return redirect("chat:conversation", row.public_id)
    context = {"session": row, "error": error, "by_whom": by_whom()}
    return await sync_to_async(render)(request, "chat/no_reply.html", context, status=503)


async def stream(row: Session, reply: Reply, asked: StoredMessage) -> AsyncIterator[str]:
    """Yield the lines of a reply. If the browser disconnects, the part so far is stored and marked as partial."""
    received: list[str] = []
    try:
        async with contextlib.aclosing(storable(reply.pieces())) as pieces:
            async for piece in pieces:
                received.append(piece)
                yield line(text=piece)
        if not "".join(received).strip():
            yield line(error="The model sent an empty answer. Your message is stored.")
            return
        try:
            await keep(row, asked, message_of(reply, received), reply.usage)
        except InvalidMessage:
            if reply.usage is None:
                raise
            logger.warning("The usage of the reply to message %s is invalid and is not stored.", asked.position)
            await keep(row, asked, message_of(reply, received))
        # If the reply was not stored, the page shows the messages that are.
        yield line(done=asked.position + 1)
    except (asyncio.CancelledError, GeneratorExit):
        await asyncio.shield(keep_part(row, asked, reply, received))
        raise
    except openai.OpenAIError as error:
        logger.warning("No reply to message %s: %s", asked.position, type(error).__name__)
        yield line(error=BROKE_OFF if received else refusals.of_model(error))
    except ConvMemoryError:
        logger.exception("The reply to message %s could not be stored.", asked.position)
        yield line(error="The reply could not be stored. Your message is stored.")
    except Exception:
        # During a stream, older clients raise exceptions of their HTTP library.
        logger.exception("No reply to message %s.", asked.position)
        yield line(error=BROKE_OFF)


def message_of(reply: Reply, received: list[str], **metadata: Any) -> ChatMessage:
    """Return what was received of a reply. Its metadata names the messages that were recalled for it."""
    if reply.recalled:
        metadata["recalled"] = list(reply.recalled)
    return ChatMessage.ai("".join(received), metadata=metadata)


async def keep(row: Session, asked: StoredMessage, reply: ChatMessage, usage: Any = None) -> None:
    """Store a reply if it still answers the last message, and free the database connection."""
    try:
        await sync_to_async(turns.answer)(row, asked, reply, usage)
    finally:
        await sync_to_async(close_old_connections)()


async def keep_part(row: Session, asked: StoredMessage, reply: Reply, received: list[str]) -> None:
    """Store a partial reply. It raises nothing, because an exception here would stop Django's own clean-up."""
    try:
        if "".join(received).strip():
            await keep(row, asked, message_of(reply, received, partial=True))
    except Exception:
        logger.exception("The partial reply to message %s could not be stored.", asked.position)


async def storable(pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """Yield the pieces without characters that no database stores, up to :data:`LONGEST` characters.

    Some servers send the two halves of an emoji in two pieces. They are joined.
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
