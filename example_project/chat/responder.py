"""Answers: from the model endpoint that the environment names, or from an offline responder without a model."""

from __future__ import annotations

import abc
import asyncio
import functools
import os
import re
from collections.abc import AsyncGenerator
from typing import Any

import openai

from chat import quotes
from django_convmemory.conversation import SessionHandle
from django_convmemory.core.context import Context

SYSTEM = "You are a helpful assistant. Be brief and concrete."

# Seconds between two words of the offline responder.
PACE = float(os.environ.get("EXAMPLE_PACE") or 0.03)


class Reply(abc.ABC):
    """A reply: ``pieces`` of text, and afterwards ``usage``, the tokens it took, or None if they are unknown."""

    usage: Any = None

    @abc.abstractmethod
    def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text, piece by piece."""


async def reply_to(session: SessionHandle) -> Reply:
    """Return the reply to the newest question of a session. The model is called when the pieces are iterated."""
    context = await session.aload(system=SYSTEM)
    if os.environ.get("OPENAI_MODEL"):
        return ModelReply(context)
    return OfflineReply(await answer(session, context))


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

    def __init__(self, text: str) -> None:
        self.text = text

    async def pieces(self) -> AsyncGenerator[str, None]:
        for piece in re.findall(r"\s*\S+|\s+", self.text):
            await asyncio.sleep(PACE)
            yield piece


async def answer(session: SessionHandle, context: Context) -> str:
    """Return the text of the offline responder: what a search finds, or else what the context has."""
    asked = [part for part in context.parts if part.message.role == "user" and part.position]
    # The introduction appears once, so that it does not fill the summary.
    introduced = any(message.role == "assistant" and quotes.OFFLINE in message.text for message in context)
    lines = [quotes.AGAIN if introduced else quotes.OFFLINE]
    quoted: list[str] = []
    if asked:
        question = asked[-1].message.text
        quoted = await quotes.found(session, question, asked[-1].position) or quotes.of_context(question, context)
    if quoted:
        lines += ["The conversation's memory has this about your message:", *quoted]
    else:
        lines.append("The conversation's memory has nothing about your message yet.")
    return "\n".join(lines)
