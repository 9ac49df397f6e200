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

# The word of a query that is a date alone.
_DATE = ("the date",)


class Message(NamedTuple):
    session: int
    position: int
    terms: collections.Counter[str]
    length: int
    # The number of its sitting, and the hour in which that began.
    sitting: int
    hour: int
    speakers: frozenset[str]


class Scored(NamedTuple):
    score: float
    share: float


def messages_of(
    sessions: Sequence[Sequence[Document]], *, after: int | None = None, before: int | None = None
) -> list[Message]:
    """The messages that are searched. The first position of a session is 1. A session has one segment at most."""
    messages: list[Message] = []
    sitting, hour = 0, 0
    for session, documents in enumerate(sessions):
        sitting += 1
        for position, document in enumerate(documents, 1):
            sitting += document.begins_sitting
            if position == 1 or document.begins_sitting:
                hour = document.hour
            length = max(length for length in segments.LENGTHS if length <= len(document.terms))
            terms = collections.Counter(document.terms)
            if (after is None or position > after) and (before is None or position < before):
                messages.append(Message(session, position, terms, length, sitting, hour, document.speakers))
    return messages


def scores(messages: Sequence[Message], query: Query) -> dict[tuple[int, int], Scored]:
    """The score and the share of all messages that have any, by session and position."""
    words: dict[tuple[str, ...], int] = {**query.terms}
    words |= {("", character): 1 for character in sorted(query.characters)}
    date_alone = bool(query.days) and not words
    if date_alone:
        words = {_DATE: 1}
        messages = [
            message._replace(terms=collections.Counter(_DATE if message.length and _day(message, query) else ()))
            for message in messages
        ]
    having = {word: [message for message in messages if _count(message, word)] for word in words}
    idf = {
        word: repeated * math.log(1 + (len(messages) - len(having[word]) + 0.5) / (len(having[word]) + 0.5))
        for word, repeated in words.items()
    }
    present = sorted((word for word in idf if having[word]), key=lambda word: len(having[word]))[: ranking.MAX_WORDS]
    absent = [word for word in idf if not having[word]][: ranking.MAX_WORDS - len(present)]
    weight = sum(idf[word] for word in [*present, *absent])
    if not present:
        return {}
    average = sum(message.length for message in messages) / len(messages)

    def counts(word: tuple[str, ...], message: Message) -> float:
        count = _count(message, word)
        if date_alone:
            return float(count > 0)  # The length of a message does not matter.
        return count / (count + ranking.K1 * (message.length + ranking.STEADY) / (average + ranking.STEADY))

    found: dict[tuple[int, int], Scored] = {}
    for number, message in enumerate(messages):
        near = [
            (ranking.NEAR[abs(other - number)], messages[other])
            for other in range(max(0, number - 2), min(len(messages), number + 3))
            if messages[other].sitting == message.sitting
        ]
        best = {word: max(near_factor * counts(word, other) for near_factor, other in near) for word in present}
        score = sum(idf[word] * most for word, most in best.items())
        share = score / weight
        if message.speakers & query.speakers:
            score *= ranking.SPEAKER_FACTOR
        if _day(message, query):
            score *= ranking.DAY_FACTOR
        elif _day(message, query, -1) or _day(message, query, 1):
            score *= ranking.NEXT_DAY_FACTOR
        if score and message.length:
            found[message[:2]] = Scored(score, share)
    return found


def _day(message: Message, query: Query, later: int = 0) -> bool:
    """Whether the query names the day of the message, or the one so many days ``later``."""
    return (message.hour + query.ahead) // 24 + later in query.days


def _count(message: Message, word: tuple[str, ...]) -> int:
    """How often a message has a word. A single character is a word with an empty form before it."""
    forms = [term for term in message.terms if word[1] in term] if word[0] == "" else word
    return max((message.terms[form] for form in forms), default=0)
