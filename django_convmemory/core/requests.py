"""The requests to the model that summarizes: a labelled transcript, a fence, and a length in words."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
from collections.abc import Sequence

from django_convmemory import messages
from django_convmemory.chat_models.base import ChatRequest, Fold
from django_convmemory.core.context import spoken, summary_message
from django_convmemory.core.exchanges import Placed
from django_convmemory.core.options import Options
from django_convmemory.messages import ChatMessage
from django_convmemory.prompts import FoldMaterial, Prompts, ShortenMaterial
from django_convmemory.tokens import TokenCounter

# Models write more than they are asked for, so the prompt asks for this share of the limit.
AIM = 0.6
_BRACKETS = str.maketrans("[]", "()")
_SAMPLE = "The customer asked on Monday about order 4711; the agent promised a refund of 20 euros by Friday morning."
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclasses.dataclass(frozen=True)
class Requests:
    """Builds the requests of one memory. Days are those of the time zone ``zone``."""

    prompts: Prompts
    options: Options
    counter: TokenCounter
    zone: dt.tzinfo

    def fold(self, previous: str, rows: Sequence[Placed], *, part: int | None, max_tokens: int) -> ChatRequest:
        """Return the request for a summary of ``previous`` and ``rows`` with at most ``max_tokens`` tokens.

        ``part`` is the number of this part, from 1, if the rows are a part of an exchange.
        """
        days = [day(row.created_at, self.zone) for row in rows]
        turns = [row.message for row in rows]
        transcript = transcript_of(turns, days)
        material = FoldMaterial(
            previous=previous,
            transcript=transcript,
            part=part,
            words=words(max_tokens, self.counter),
            fence=fence(previous, transcript, self.options.instructions),
            instructions=self.options.instructions,
        )
        fold = Fold(previous=previous, turns=turns, days=days, max_tokens=max_tokens, count=self.count)
        return ChatRequest(_coerced(self.prompts.fold(material)), fold)

    def shorten(self, text: str, *, max_tokens: int) -> ChatRequest:
        """Return the request to shorten a summary that is too long."""
        material = ShortenMaterial(
            summary=text,
            words=words(max_tokens, self.counter),
            fence=fence(text, self.options.instructions),
            instructions=self.options.instructions,
        )
        fold = Fold(previous=text, turns=(), max_tokens=max_tokens, count=self.count)
        return ChatRequest(_coerced(self.prompts.shorten(material)), fold)

    def count(self, text: str) -> int:
        """Return the tokens of a summary with this text in a context."""
        return self.counter.count(summary_message(self.options, text))

    @functools.cached_property
    def prompt_hash(self) -> str:
        """A hash of the prompts, their options and the instructions. Each summary stores it.

        It is made of the requests for a sample, so it has whatever a class of prompts writes, but no date of today.
        """
        instructions = self.options.instructions
        material = FoldMaterial(
            previous="They met.",
            transcript="[day] 2001-01-01 Monday\n[user] Hello.",
            part=2,
            words=100,
            fence="quoted-sample",
            instructions=instructions,
        )
        first, whole = dataclasses.replace(material, previous="", part=None), dataclasses.replace(material, part=None)
        shorten = ShortenMaterial(summary="They met.", words=100, fence="quoted-sample", instructions=instructions)
        samples = [*map(self.prompts.fold, (first, whole, material)), self.prompts.shorten(shorten)]
        written = [message.to_openai() for sample in samples for message in _coerced(sample)]
        return hashlib.sha256(messages.dumps(written).encode()).hexdigest()


def _coerced(request: Sequence[object]) -> list[ChatMessage]:
    if not request:
        raise ValueError("The request has no messages.")
    return [messages.coerce(message) for message in request]


def day(moment: dt.datetime | None, zone: dt.tzinfo) -> dt.date | None:
    """Return the day of ``moment`` in ``zone``. A naive time is taken as it is."""
    if moment is None:
        return None
    if moment.tzinfo is not None:
        with contextlib.suppress(OverflowError):  # The first or the last day that a datetime can have.
            moment = moment.astimezone(zone)
    return moment.date()


def transcript_of(turns: Sequence[ChatMessage], days: Sequence[dt.date | None]) -> str:
    """Return the turns, with a line for the day before the first one and wherever the day changes."""
    lines = []
    last = None
    for message, date in zip(turns, days, strict=True):
        if date is not None and date != last:
            lines.append(f"[day] {date.isoformat()} {_WEEKDAYS[date.weekday()]}")
            last = date
        lines.append(turn(message))
    return "\n".join(lines)


def turn(message: ChatMessage) -> str:
    """Return a message as a turn of the transcript: ``[user] text``. Further lines are indented."""
    text = spoken(message) or "[nothing]"
    # Without brackets, a name cannot close the label and open another one.
    speaker = message.role if not message.name else f"{message.role} {message.name.translate(_BRACKETS)}"
    return f"[{' '.join(speaker.split())}] " + "\n    ".join(text.splitlines() or [""])


def words(max_tokens: int, counter: TokenCounter) -> int:
    """Return how many words to ask for, by the tokens that the counter counts for a word."""
    tokens_per_word = counter.count_text(_SAMPLE) / len(_SAMPLE.split())
    return max(5, int(max_tokens * AIM / tokens_per_word))


def fence(*texts: str) -> str:
    """Return a word that occurs in none of ``texts``. It depends on them only."""
    seed = "\x00".join(texts)
    while True:
        word = "quoted-" + hashlib.sha256(seed.encode()).hexdigest()[:12]
        if not any(word in text for text in texts):
            return word
        seed += word
