"""Answers: from the model endpoint that the environment names, or from an offline responder without a model."""

from __future__ import annotations

import abc
import asyncio
import functools
import os
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import openai

from chat import quotes
from chat.families import relatives
from django_convmemory.context.assembly import Context, Part
from django_convmemory.operations.handles import SessionHandle

SYSTEM = "You are a helpful assistant. Be brief and concrete."

# Seconds between two words of the offline responder.
PACE = float(os.environ.get("EXAMPLE_PACE") or 0.03)


class Reply(abc.ABC):
    """A reply: ``pieces`` of text, and afterwards ``usage``, the tokens it took, or None if they are unknown.

    ``recalled`` has the positions of the earlier messages that the memory found for it.
    """

    usage: Any = None
    recalled: Sequence[int] = ()

    @abc.abstractmethod
    def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text, piece by piece."""


async def reply_to(session: SessionHandle) -> Reply:
    """Return the reply to the newest question of a session. The model is called when the pieces are iterated."""
    if os.environ.get("OPENAI_MODEL"):
        return ModelReply(await recalling(session))
    return await answer(session, await session.aload(system=SYSTEM))


async def recalling(session: SessionHandle) -> Context:
    """Return the context with quotes of what matches the newest question, or else other forms of its words."""
    context = await session.aload(system=SYSTEM, recall=True)
    asked = newest_question(context)
    forms = "" if context.recalled or asked is None else relatives(asked.message.text)
    if not forms or asked is None:
        return context
    hits = await session.asearch(forms, before=asked.position, limit=3)
    # Of all the forms, only those that occur: a context quotes nothing that has too little of a query.
    said = dict.fromkeys(piece.text for hit in hits for piece in hit.pieces if piece.marked)
    return await session.aload(system=SYSTEM, recall=" ".join(said)) if said else context


def by_whom() -> str:
    """Return the name of the model or responder that answers."""
    return os.environ.get("OPENAI_MODEL") or "the offline responder"


@functools.cache
def _client() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(timeout=60, max_retries=1)


class ModelReply(Reply):
    """A reply of an OpenAI-compatible endpoint: ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``OPENAI_MODEL``."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.recalled = [hit.position for hit in context.recalled]

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text. Raises ``openai.OpenAIError`` if the endpoint fails, also during the stream."""
        messages: Any = self.context.to_openai()
        stream = await _client().chat.completions.create(
            model=os.environ["OPENAI_MODEL"],
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
        )
        async with stream:
            async for chunk in stream:
                if chunk.usage is not None:
                    self.usage = chunk.usage
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content


class OfflineReply(Reply):
    """A reply whose text is known."""

    def __init__(self, text: str, recalled: Sequence[int] = ()) -> None:
        self.text, self.recalled = text, recalled

    async def pieces(self) -> AsyncGenerator[str, None]:
        for piece in re.findall(r"\s*\S+|\s+", self.text):
            await asyncio.sleep(PACE)
            yield piece


async def answer(session: SessionHandle, context: Context) -> OfflineReply:
    """Return the answer of the offline responder: what a search finds, or else what the context has."""
    # The introduction appears once, so that it does not fill the summary.
    introduced = any(message.role == "assistant" and quotes.OFFLINE in message.text for message in context)
    first = quotes.AGAIN if introduced else quotes.OFFLINE
    asked = newest_question(context)
    if asked is not None and quotes.is_statement(asked.message.text):
        return OfflineReply(f"{first}\nI have stored it. Ask me about it later.")
    found: list[quotes.Sentence] = []
    said: list[quotes.Sentence] = []
    if asked is not None and asked.position is not None:
        found = await quotes.found(session, asked.message.text, asked.position)
        said = found or quotes.of_context(asked.message.text, context)
    if not said:
        return OfflineReply(f"{first}\nThe conversation's memory has nothing about your message yet.")
    quoted = [sentence.quoted() for sentence in said]
    lines = [first, "The conversation's memory has this about your message:", *quoted]
    return OfflineReply("\n".join(lines), [sentence.position for sentence in found if sentence.position])


def newest_question(context: Context) -> Part | None:
    """Return the newest message of the user, or None if the context shows none."""
    return next((part for part in reversed(context.parts) if part.message.role == "user" and part.position), None)
