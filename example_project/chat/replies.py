"""Streams a reply to the browser."""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator

import openai
from asgiref.sync import sync_to_async
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from chat import people, questions, refusals, titles
from chat.responder import SYSTEM, ask, by_whom
from chat.throttles import ReplyThrottle, seconds_to_wait
from django_convmemory.exceptions import ConvMemoryError, EmptyReply, NothingToAnswer, QuestionChanged, TurnLost
from django_convmemory.memory import memories
from django_convmemory.models import Session
from django_convmemory.operations.streams import TurnStream

logger = logging.getLogger(__name__)

LINES = "application/x-ndjson"
# Characters of a reply. A longer reply is cut off here.
LONGEST = 50_000
BROKE_OFF = "The model broke off its answer. Your message is stored."
EMPTY = "The model sent an empty answer. Your message is stored."


@require_POST
async def reply(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Stream the reply to the newest question, as lines of JSON: ``text``, then ``done`` or ``error``.

    If ``again`` is the id of that question, it is answered anew. A ``text`` takes its place then.
    """
    await request.auser()  # Looks the user up without blocking the event loop.
    row = await sync_to_async(people.conversation)(request, public_id)
    try:
        lines, status = lines_of(await begin(request, row)), 200
    except NothingToAnswer:
        lines, status = one_line(done=True), 200  # Another request has answered the question.
    except refusals.Refused as refused:
        lines, status = one_line(error=str(refused)), refused.status
    if request.get_preferred_type([LINES, "text/html"]) == "text/html":
        return await page_after(request, row, lines)
    response = StreamingHttpResponse(lines, status=status, content_type=LINES)
    # A proxy must not buffer the lines.
    response["X-Accel-Buffering"] = "no"
    return response


async def begin(request: HttpRequest, row: Session) -> TurnStream:
    """Store the question if it is edited, and return the reply. Raises ``NothingToAnswer`` and ``Refused``."""
    if seconds := await sync_to_async(seconds_to_wait)(request, ReplyThrottle()):
        raise refusals.Refused(f"Too many requests. Please wait {seconds} seconds. Your message is stored.", 429)
    session = memories[row.alias].session(row)
    again = request.POST.get("again")
    text = questions.typed(request) if again else ""
    if again:
        if refusal := refusals.too_long(text):
            raise refusals.Refused(refusal)
        # In another window there may be a newer question, which this one does not show.
        newest = questions.newest(await session.ahistory(limit=questions.LONGEST_TURN))
        if newest is None or str(newest.id) != again:
            raise refusals.Refused(refusals.CHANGED, 409)
        # Another window may be showing the reply while it is written.
        await session.astop_answer(again)
    edit, again = (again, None) if text else (None, again)
    try:
        stream = await session.astream_answer(text or None, ask, again=again, edit=edit, system=SYSTEM, recall=True)
    except NothingToAnswer:
        raise
    except ConvMemoryError as error:
        raise refusals.of_question(error) from error
    if edit and stream.turn.question.position == 1:
        await sync_to_async(titles.rename)(row, text)
    return stream


async def lines_of(stream: TurnStream) -> AsyncIterator[str]:
    """Yield the lines of a reply. If the browser disconnects, what was said so far is stored."""
    length = 0
    try:
        async with contextlib.aclosing(aiter(stream)) as pieces:
            async for piece in pieces:
                yield line(text=piece)
                length += len(piece)
                if length >= LONGEST:
                    break
        yield line(done=True) if stream.turn.reply else line(error=EMPTY)
    except EmptyReply:
        yield line(error=EMPTY)
    except (QuestionChanged, TurnLost):
        yield line(done=True)  # The page shows the messages that are stored.
    except ConvMemoryError:
        logger.exception("The reply to message %s could not be stored.", stream.turn.question.position)
        yield line(error="The reply could not be stored. Your message is stored.")
    except openai.OpenAIError as error:
        logger.warning("No reply to message %s: %s", stream.turn.question.position, type(error).__name__)
        yield line(error=BROKE_OFF if length else refusals.of_model(error))
    except Exception:
        # During a stream, older clients raise exceptions of their HTTP library.
        logger.exception("No reply to message %s.", stream.turn.question.position)
        yield line(error=BROKE_OFF)


async def page_after(request: HttpRequest, row: Session, lines: AsyncIterator[str]) -> HttpResponseBase:
    """Return the page that a browser without scripts shows when the reply is there, or why there is none."""
    error = None
    async for text in lines:
        error = json.loads(text).get("error")
    if error is None:
        return redirect("chat:conversation", row.public_id)
    context = {"session": row, "error": error, "by_whom": by_whom()}
    return await sync_to_async(render)(request, "chat/no_reply.html", context, status=503)


async def one_line(**values: object) -> AsyncIterator[str]:
    yield line(**values)


def line(**values: object) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"
