"""Answers: from the model endpoint that the environment names, or from an offline responder without a model."""

from __future__ import annotations

import asyncio
import functools
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import openai
from asgiref.sync import sync_to_async
from django.db import close_old_connections

from chat import quotes
from chat.families import relatives
from django_convmemory.context.assembly import Context
from django_convmemory.operations.turns import Turn

SYSTEM = "You are a helpful assistant. Be brief and concrete."

# Seconds between two words of the offline responder.
PACE = float(os.environ.get("EXAMPLE_PACE") or 0.03)


async def ask(turn: Turn) -> Any:
    """Return the stream of the reply to the question of ``turn``. The reply's metadata names what was recalled for it.

    Raises ``openai.OpenAIError`` if the model's endpoint fails.
    """
    if os.environ.get("OPENAI_MODEL"):
        context = await recalling(turn)
        stream, recalled = asked(context), [hit.position for hit in context.recalled]
    else:
        text, recalled = await quoting(turn)
        stream = spoken(text)
    if recalled:
        turn.reply_metadata = {"recalled": recalled}
    # Free the database connection while the model answers. The next query opens another.
    await sync_to_async(close_old_connections)()
    return stream


def by_whom() -> str:
    """Return the name of the model or responder that answers."""
    return os.environ.get("OPENAI_MODEL") or "the offline responder"


async def recalling(turn: Turn) -> Context:
    """Return the context with quotes of what matches the question, or else other forms of its words."""
    question = turn.question
    forms = "" if turn.context.recalled else relatives(question.message.text)
    hits = await turn.session.asearch(forms, before=question.position, limit=3) if forms else []
    # Of all the forms, only those that occur: a context quotes nothing that has too little of a query.
    said = dict.fromkeys(piece.text for hit in hits for piece in hit.pieces if piece.marked)
    return await turn.aload(recall=" ".join(said)) if said else turn.context


@functools.cache
def _client() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(timeout=60, max_retries=1)


async def asked(context: Context) -> AsyncIterator[Any]:
    """Yield what an OpenAI-compatible endpoint streams: ``OPENAI_BASE_URL``, ``OPENAI_API_KEY``, ``OPENAI_MODEL``."""
    messages: Any = context.to_openai()
    stream = await _client().chat.completions.create(
        model=os.environ["OPENAI_MODEL"], messages=messages, stream=True, stream_options={"include_usage": True}
    )
    async with stream:
        async for chunk in stream:
            yield chunk


async def spoken(text: str) -> AsyncIterator[str]:
    """Yield a text word by word."""
    for word in re.findall(r"\s*\S+|\s+", text):
        await asyncio.sleep(PACE)
        yield word


async def quoting(turn: Turn) -> tuple[str, list[int]]:
    """Return the answer of the offline responder, and the positions that a search has found for it.

    It quotes what a search finds, or else what the context has.
    """
    question, context = turn.question, turn.context
    # The introduction appears once, so that it does not fill the summary.
    introduced = any(message.role == "assistant" and quotes.OFFLINE in message.text for message in context)
    first = quotes.AGAIN if introduced else quotes.OFFLINE
    if quotes.is_statement(question.message.text):
        return f"{first}\nI have stored it. Ask me about it later.", []
    found = await quotes.found(turn.session, question.message.text, question.position)
    said = found or quotes.of_context(question.message.text, context)
    if not said:
        return f"{first}\nThe conversation's memory has nothing about your message yet.", []
    quoted = [sentence.quoted() for sentence in said]
    lines = [first, "The conversation's memory has this about your message:", *quoted]
    return "\n".join(lines), [sentence.position for sentence in found if sentence.position]
