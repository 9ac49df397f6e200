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

from django_convmemory.core.context import Context

SYSTEM = "You are a helpful assistant. Be brief and concrete."

OFFLINE = "I am the built-in offline responder. No model is connected, so I can only quote this conversation."
# Seconds between two words of the offline responder.
PACE = float(os.environ.get("EXAMPLE_PACE") or 0.03)
# The beginnings of its own sentences, which it does not quote.
OWN = (OFFLINE[:20], "No model is connected", "(The offline", "The conversation's", "“")
_SPEAKER = re.compile(r"(?:User|Assistant): ?")
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]?")
_WORD = re.compile(r"[^\W_]{4,}|[\u3400-\u9fff]{2}")


class Reply(abc.ABC):
    """A reply: ``pieces`` of text, and afterwards ``usage``, the tokens it took, or None if they are unknown."""

    usage: Any = None

    @abc.abstractmethod
    def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text, piece by piece."""


def reply_to(context: Context) -> Reply:
    """Return the reply to a context. The model is called when the pieces are iterated."""
    return ModelReply(context) if os.environ.get("OPENAI_MODEL") else OfflineReply(context)


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
    """A reply that quotes the sentences of the context with the most words in common with the question."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def pieces(self) -> AsyncGenerator[str, None]:
        for piece in re.findall(r"\s*\S+|\s+", answer(self.context)):
            await asyncio.sleep(PACE)
            yield piece


def answer(context: Context) -> str:
    """Return the text of the offline responder."""
    question = next((message.text for message in reversed(context) if message.role == "user"), "")
    # The introduction appears once, so that it does not fill the summary.
    introduced = any(message.role == "assistant" and OFFLINE in message.text for message in context)
    lines = ["(The offline responder:)" if introduced else OFFLINE]
    if quoted := quotes(question, context):
        lines += ["The conversation's memory has this about your message:", *quoted]
    else:
        lines.append("The conversation's memory has nothing about your message yet.")
    return "\n".join(lines)


def quotes(question: str, context: Context, limit: int = 3) -> list[str]:
    """Return at most ``limit`` sentences of the context, those with the most words in common with the question."""
    wanted = {word.lower() for word in _WORD.findall(question)}
    last = max((part.position or 0 for part in context.parts if part.message.role == "user"), default=0)
    scored: list[tuple[int, int, str]] = []
    for part in context.parts:
        if part.name == "system" or part.position == last or part.message.role == "tool":
            continue
        source = "the summary" if part.name == "summary" else f"message {part.position}"
        for sentence in _sentences(part.message.text):
            common = len(wanted & {word.lower() for word in _WORD.findall(sentence)})
            if common and not sentence.startswith(OWN):
                scored.append((common, -len(scored), f"“{sentence}” ({source})"))
    return [text for _, _, text in sorted(scored, reverse=True)[:limit]]


def _sentences(text: str) -> Sequence[str]:
    # The lines of a summary begin with the speaker.
    sentences = (_SPEAKER.sub("", sentence.strip()) for sentence in _SENTENCE.findall(text))
    return [sentence for sentence in sentences if sentence]
