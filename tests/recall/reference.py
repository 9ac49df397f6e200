"""The ranking once more, written to be read and not to be fast. The tests compare the other one with it."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

from django_convmemory.rules import segments
from django_convmemory.rules.segments import Document
from django_convmemory.search import ranking
from django_convmemory.search.tokenizer import Query


class Message(NamedTuple):
    session: int
    position: int
    terms: collections.Counter[str]
    length: int
    begins: bool


class Scored(NamedTuple):
    score: float
    share: float


def messages_of(
    sessions: Sequence[Sequence[Document]], *, after: int | None = None, before: int | None = None
) -> list[Message]:
    """The messages that are searched. The first position of a session is 1."""
    return [
        Message(
            session,
            position,
            collections.Counter(document.terms),
            max(length for length in segments.LENGTHS if length <= len(document.terms)),
            document.begins_sitting,
        )
        for session, documents in enumerate(sessions)
        for position, document in enumerate(documents, 1)
        if (after is None or position > after) and (before is None or position < before)
    ]


def window(messages: Sequence[Message], number: int) -> list[Message]:
    """The message, and up to two on each side that are in its session and sitting."""
    first = last = number
    while first > max(0, number - ranking.NEIGHBOURS) and _together(messages, first):
        first -= 1
    while last + 1 < min(len(messages), number + ranking.NEIGHBOURS + 1) and _together(messages, last + 1):
        last += 1
    return list(messages[first : last + 1])


def _together(messages: Sequence[Message], number: int) -> bool:
    """Whether the message is in the same sitting as the one before it."""
    return messages[number].session == messages[number - 1].session and not messages[number].begins


def scores(messages: Sequence[Message], query: Query) -> dict[tuple[int, int], Scored]:
    """The score and the share of all messages that are compared, by session and position."""
    having = {word: [message for message in messages if _count(message, word)] for word in _words(query)}
    idf = {
        word: repeated * math.log(1 + (len(messages) - len(having[word]) + 0.5) / (len(having[word]) + 0.5))
        for word, repeated in _words(query).items()
    }
    present = sorted((word for word in idf if having[word]), key=lambda word: len(having[word]))[: ranking.MAX_WORDS]
    absent = [word for word in idf if not having[word]][: ranking.MAX_WORDS - len(present)]
    weight = sum(idf[word] for word in [*present, *absent])
    if not present:
        return {}
    average = sum(message.length for message in messages) / len(messages)

    def bm25(texts: Sequence[Message], usual: float) -> float:
        norm = ranking.K1 * (1 - ranking.B + ranking.B * sum(text.length for text in texts) / usual)
        counts = {word: sum(_count(text, word) for text in texts) for word in present}
        return sum(idf[word] * (ranking.K1 + 1) * count / (count + norm) for word, count in counts.items())

    numbers = range(len(messages))
    own = {number: bm25([messages[number]], average) for number in numbers}
    candidates = [number for number in numbers if own[number]]
    candidates.sort(key=lambda number: (-own[number], messages[number].session, -messages[number].position))
    compared = {
        number
        for candidate in candidates[: ranking.CANDIDATES]
        for number in range(
            max(0, candidate - ranking.NEIGHBOURS), min(len(messages), candidate + ranking.NEIGHBOURS + 1)
        )
        if messages[number] in window(messages, candidate) and messages[number].length
    }
    around = {number: bm25(window(messages, number), average * ranking.LANES) for number in compared}
    return {
        messages[number][:2]: Scored(
            own[number] / max(own.values()) + ranking.WINDOW_WEIGHT * around[number] / max(around.values()),
            sum(idf[word] for word in present if any(_count(text, word) for text in window(messages, number))) / weight,
        )
        for number in compared
    }


def _words(query: Query) -> dict[tuple[str, ...], int]:
    """The words of a query. A single character is a word with an empty form before it."""
    return {**query.terms, **{("", character): 1 for character in sorted(query.characters)}}


def _count(message: Message, word: tuple[str, ...]) -> int:
    forms = [term for term in message.terms if word[1] in term] if word[0] == "" else word
    return min(max((message.terms[form] for form in forms), default=0), 51)
