"""The requests to the model that summarizes: a labelled transcript, a fence, and a length in words."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

from django_convmemory import messages
from django_convmemory.chat_models.base import ChatRequest, FoldData
from django_convmemory.messages import ChatMessage
from django_convmemory.prompts import FoldMaterial, Prompts, ShortenMaterial
from django_convmemory.rules import transcript
from django_convmemory.rules.exchanges import MessageRef
from django_convmemory.rules.options import Options
from django_convmemory.tokens import TokenCounter

# Models write more than they are asked for, so the prompt asks for this share of the limit.
AIM = 0.6
# So many characters of an answer that is no summary are shown to the model again.
_LONGEST_QUOTE = 1000
_SAMPLE = "The customer asked on Monday about order 4711; the agent promised a refund of 20 euros by Friday morning."


@dataclasses.dataclass(frozen=True)
class Requests:
    """Builds the requests of one memory. Days are those of the time zone ``zone``."""

    prompts: Prompts
    options: Options
    counter: TokenCounter
    zone: dt.tzinfo

    def fold(self, previous: str, rows: Sequence[MessageRef], *, part: int | None, max_tokens: int) -> ChatRequest:
        """Return the request for a summary of ``previous`` and ``rows`` with at most ``max_tokens`` tokens.

        ``part`` is the number of this part, from 1, if the rows are a part of an exchange.
        """
        days = [transcript.day(row.created_at, self.zone) for row in rows]
        turns = [row.message for row in rows]
        text = transcript.of(turns, days)
        words, instructions = self.words(max_tokens), self.options.instructions
        fence = transcript.fence(previous, text, instructions)
        material = FoldMaterial(
            previous=previous, transcript=text, part=part, words=words, fence=fence, instructions=instructions
        )
        fold = FoldData(previous=previous, turns=turns, days=days, max_tokens=max_tokens, count=self.count, fence=fence)
        return ChatRequest(_coerced(self.prompts.fold(material)), fold)

    def shorten(self, text: str, *, max_tokens: int) -> ChatRequest:
        """Return the request to shorten a summary that is too long."""
        words, instructions = self.words(max_tokens), self.options.instructions
        fence = transcript.fence(text, instructions)
        material = ShortenMaterial(summary=text, words=words, fence=fence, instructions=instructions)
        fold = FoldData(previous=text, turns=(), max_tokens=max_tokens, count=self.count, fence=fence)
        return ChatRequest(_coerced(self.prompts.shorten(material)), fold)

    def again(self, request: ChatRequest, answer: str, reason: str) -> ChatRequest:
        """Return ``request`` with an ``answer`` that is no summary, and the ``reason`` why it is none."""
        said = ChatMessage.ai(answer[:_LONGEST_QUOTE])
        asked = ChatMessage.human(f"{reason} Write the new summary.")
        return ChatRequest([*request.messages, said, asked], request.fold)

    def count(self, text: str) -> int:
        """Return the tokens of a summary with this text in a context."""
        return self.counter.count(self.options.summary_message(text))

    def words(self, max_tokens: int) -> int:
        """Return how many words to ask for, by the tokens that the counter counts for a word."""
        return max(5, int(max_tokens * AIM / self._tokens_per_word))

    @functools.cached_property
    def _tokens_per_word(self) -> float:
        return self.counter.count_text(_SAMPLE) / len(_SAMPLE.split())

    @functools.cached_property
    def tokens_of_empty(self) -> int:
        """The tokens of a summary without text."""
        return self.count("")

    @functools.cached_property
    def prompt_hash(self) -> str:
        """A hash of the prompts, their options and the instructions. Each summary stores it.

        It is made of the requests for a sample, so it has whatever a class of prompts writes, but no date of today.
        """
        shared: Any = {"words": 100, "fence": "quoted-sample", "instructions": self.options.instructions}
        said = "[day] 2001-01-01 Monday\n[user] Hello."
        material = FoldMaterial(previous="They met.", transcript=said, part=2, **shared)
        first, whole = dataclasses.replace(material, previous="", part=None), dataclasses.replace(material, part=None)
        shorten = ShortenMaterial(summary="They met.", **shared)
        samples = [*map(self.prompts.fold, (first, whole, material)), self.prompts.shorten(shorten)]
        written = [message.to_openai() for sample in samples for message in _coerced(sample)]
        return hashlib.sha256(messages.dumps(written).encode()).hexdigest()


def _coerced(request: Sequence[object]) -> list[ChatMessage]:
    if not request:
        raise ValueError("The request has no messages.")
    return [messages.coerce(message) for message in request]
