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

from chat import quotes, words
from django_convmemory.context.assembly import Context
from django_convmemory.operations.turns import Turn

SYSTEM = "You are a helpful assistant. Be brief and concrete."

# The offline responder says it once in a conversation.
INTRODUCTION = (
    "I am the built-in offline responder: no model is connected. I answer your questions with what was said here."
)
NOTED = "Noted."
NO_WORD = "Tell me something to remember, or ask about something that was said here."
# The most words of a question that an answer repeats.
_MOST_WORDS = 3
# A reply of the responder is looked for in so many messages.
_RECENT = 40

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
        turn.reply_metadata = quotes.OWN
    if recalled:
        turn.reply_metadata = {**turn.reply_metadata, "recalled": recalled}
    # Free the database connection while the model answers. The next query opens another.
    await sync_to_async(close_old_connections)()
    return stream


def by_whom() -> str:
    """Return the name of the model or responder that answers."""
    return os.environ.get("OPENAI_MODEL") or "the offline responder"


async def recalling(turn: Turn) -> Context:
    """Return the context with quotes of what matches the question, or else other forms of its words."""
    question = turn.question
    forms = "" if turn.context.recalled else words.relatives(question.message.text)
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
    question, text = turn.question, turn.question.message.text
    recent = await turn.session.ahistory(before=question.position, limit=_RECENT)
    introduction = "" if any(quotes.is_own(stored.message) for stored in recent) else f"{INTRODUCTION}\n\n"
    asked_for = words.telling(text)
    if quotes.is_statement(text):
        return f"{introduction}{NOTED}", []
    if not asked_for:
        return f"{introduction}{NO_WORD}", []
    found = await quotes.found(turn.session, text, question.position)
    sentences = found or quotes.of_context(text, turn.context)
    if not sentences:
        return f"{introduction}{nothing_about(asked_for)}", []
    quoted = " ".join(sentence.quoted(question.position) for sentence in sentences)
    return f"{introduction}{quoted}", [sentence.position for sentence in found if sentence.position]


def nothing_about(asked_for: list[str]) -> str:
    """Return the answer if no word of the question is in the conversation."""
    about = " or ".join(f"“{word}”" for word in asked_for) if len(asked_for) <= _MOST_WORDS else "that"
    return f"I have found nothing about {about} in this conversation."
