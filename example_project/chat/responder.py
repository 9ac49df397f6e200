"""Who answers: the endpoint that the environment names, or a responder that says plainly that it is none."""

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

OFFLINE = "I am the built-in offline responder: no model is connected, and I only repeat what I am sent."
# Seconds between two words of the offline responder.
PACE = float(os.environ.get("EXAMPLE_PACE") or 0.03)
# How what it says itself begins, which is not worth quoting.
OWN = (OFFLINE[:20], "(The offline", "About this, the", "It has nothing", "“", "no model is connected")
_SPEAKER = re.compile(r"(?:User|Assistant): ?")
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]?")
_WORD = re.compile(r"[^\W_]{4,}|[\u3400-\u9fff]{2}")


class Reply(abc.ABC):
    """A reply on its way: ``pieces`` of text, and afterwards ``usage``, what it took, where that is known."""

    usage: Any = None

    @abc.abstractmethod
    def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text, piece by piece."""


def reply_to(context: Context) -> Reply:
    """Return the reply to a context. Nothing is asked before its pieces are."""
    return ModelReply(context) if os.environ.get("OPENAI_MODEL") else OfflineReply(context)


def by_whom() -> str:
    """Say who answers."""
    return os.environ.get("OPENAI_MODEL") or "the offline responder"


@functools.cache
def _client() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(timeout=60, max_retries=1)


class ModelReply(Reply):
    """Streamed from any OpenAI-compatible endpoint: ``OPENAI_BASE_URL``, ``OPENAI_API_KEY`` and ``OPENAI_MODEL``."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text. Raises ``openai.OpenAIError`` where the endpoint fails, also in the middle."""
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
    """Answers from the conversation's own memory, by quoting what has most words in common with the question."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def pieces(self) -> AsyncGenerator[str, None]:
        for piece in re.findall(r"\s*\S+|\s+", answer(self.context)):
            await asyncio.sleep(PACE)
            yield piece


def answer(context: Context) -> str:
    """Return what the offline responder says."""
    asked = next((one.text for one in reversed(context) if one.role == "user"), "")
    found = quotes(asked, context)
    # Said once, so that it does not fill the summary.
    told = any(one.role == "assistant" and OFFLINE in one.text for one in context)
    said = ["(The offline responder:)" if told else OFFLINE]
    if found:
        said += ["About this, the conversation's memory has:", *found]
    else:
        said.append("It has nothing about this yet.")
    return "\n".join(said)


def quotes(asked: str, context: Context, most: int = 3) -> list[str]:
    """Return the sentences of the context that have most words in common with what was asked."""
    wanted = {word.lower() for word in _WORD.findall(asked)}
    last = max((part.position or 0 for part in context.parts if part.message.role == "user"), default=0)
    scored: list[tuple[int, int, str]] = []
    for part in context.parts:
        if part.name == "system" or part.position == last or part.message.role == "tool":
            continue
        where = "the summary" if part.name == "summary" else f"message {part.position}"
        for sentence in _sentences(part.message.text):
            common = len(wanted & {word.lower() for word in _WORD.findall(sentence)})
            if common and not sentence.startswith(OWN):
                scored.append((common, -len(scored), f"“{sentence}” ({where})"))
    return [text for _, _, text in sorted(scored, reverse=True)[:most]]


def _sentences(text: str) -> Sequence[str]:
    # A summary says who said it.
    found = (_SPEAKER.sub("", one.strip()) for one in _SENTENCE.findall(text))
    return [one for one in found if one]
