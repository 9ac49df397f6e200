"""What the offline responder quotes: sentences of the conversation, each with who said it, when, and where."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import NamedTuple

from django.utils import timezone

from chat.families import relatives
from django_convmemory.context.assembly import Context
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.search.hits import Hit

# The first line of the responder's answers: of its first one in a conversation, and of the others.
OFFLINE = "I am the built-in offline responder. No model is connected, so I can only quote this conversation."
AGAIN = "(The offline responder:)"
# An answer has so many quotations.
MOST = 3
# A search brings so many messages. Some of them are questions, or answers of the responder.
_CANDIDATES = 12
_SPEAKERS = {"user": "You", "assistant": "I"}

# Sentences of the responder's own answers in a summary.
_OWN = re.compile(r"I am the built-in offline|No model is connected|\(The offline|The conversation's memory|.*\): “")
# The labels that the extractive model writes, and not those in a quotation.
_LABEL = re.compile(r"(?:(User|用户)|(Assistant|助手)|Tool|工具)(?: said|说)?(?:: |：)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_IDENTIFIERS = "Also mentioned by the "
# A full stop within "3.50" or "example.org" ends no sentence.
_SENTENCE = re.compile(r"(?:[^.!?。！？\n]|[.!?](?=\S))+[.!?。！？]?")
# A question, with its mark or without.
_ASKS = re.compile(
    r"(?:are|can|could|did|do|does|explain|find|give|has|have|how|is|list|remind|repeat|search|show|summari[sz]e|tell"
    r"|was|were|what|when|where|which|who|whom|whose|why|will|would)\b|.*[?？]",
    re.IGNORECASE | re.DOTALL,
)
# In characters. A shorter text may be words to look for.
_SHORTEST_STATEMENT = 16
_WORD = re.compile(r"[^\W_]{4,}|[\u3400-\u9fff]{2}")


class Sentence(NamedTuple):
    """A sentence, who said it, on which day, and in which message. None: it stands in the summary.

    The speaker and the day may be unknown: "".
    """

    text: str
    speaker: str
    day: str
    position: int | None

    def quoted(self) -> str:
        """Return the sentence as a quotation, on a line of its own."""
        said = f"{self.speaker} said" if self.speaker else "It was said"
        day = f" on {self.day}" if self.day else ""
        where = "the summary" if self.position is None else f"message {self.position}"
        return f"{said}{day} ({where}): “{self.text}”"


async def found(session: SessionHandle, question: str, before: int) -> list[Sentence]:
    """Return the sentences that a search for ``question`` finds before the position ``before``.

    If it finds nothing to quote, other forms of the words are searched for.
    """
    return await _found(session, question, before) or await _found(session, relatives(question), before)


async def _found(session: SessionHandle, query: str, before: int) -> list[Sentence]:
    quotes: dict[str, Sentence] = {}
    hits = await session.asearch(query, before=before, limit=_CANDIDATES) if query.strip() else []
    for hit in hits:
        # A message that matches far less than the best one has no more than a common word of the question.
        if len(quotes) == MOST or hit.score < hits[0].score / 2:
            break
        [stored] = await session.ahistory(after=hit.position - 1, limit=1) or [None]
        if stored is not None and stored.position == hit.position:
            sentence = best(stored.message, hit)
            if sentence:
                quotes.setdefault(sentence.text, sentence)
    return list(quotes.values())


def best(message: ChatMessage, hit: Hit) -> Sentence | None:
    """Return the sentence of ``message`` that has most of the hit's words, or None if there is nothing to quote.

    Questions, the results of tools and the responder's own answers are not quoted.
    """
    words = {piece.text.casefold() for piece in hit.pieces if piece.marked}
    counted = [
        (sum(word in text.casefold() for word in words), text)
        for text in _sentences_of(message)
        if not text.endswith(("?", "？"))
    ]
    count, text = max(counted, key=lambda pair: pair[0], default=(0, ""))
    day = _day(timezone.localdate(hit.created_at))
    return Sentence(text, _speaker_of(message), day, hit.position) if count else None


def of_context(question: str, context: Context) -> list[Sentence]:
    """Return the sentences of ``context`` that have the most words in common with ``question``."""
    wanted = _words(question)
    scored = [(len(wanted & _words(sentence.text)), sentence) for sentence in _shown(context)]
    scored = sorted([pair for pair in scored if pair[0]], key=lambda pair: -pair[0])
    return [sentence for _, sentence in scored[:MOST]]


def _shown(context: Context) -> Iterator[Sentence]:
    """Yield the sentences of the summary, and those of the messages before the newest question."""
    yield from _of_summary(context.summary or "")
    last = max((part.position or 0 for part in context.parts if part.message.role == "user"), default=0)
    for part in context.parts:
        if part.position is not None and part.position != last:
            for text in _sentences_of(part.message):
                yield Sentence(text, _speaker_of(part.message), "", part.position)


def _of_summary(summary: str) -> Iterator[Sentence]:
    """Yield the sentences of a summary. The extractive model writes days on lines of their own, and labels."""
    day = ""
    for line in summary.splitlines():
        if _DAY.fullmatch(line):
            day = _day(dt.date.fromisoformat(line))
        elif not line.startswith(_IDENTIFIERS):
            label = _LABEL.match(line)
            speaker = "" if label is None else "You" if label[1] else "I" if label[2] else "A tool"
            for text in sentences(line[label.end() if label else 0 :]):
                if not _OWN.match(text):
                    yield Sentence(text, speaker, day, None)


def is_statement(text: str) -> bool:
    """Return whether a text tells something, and asks nothing."""
    return len(text) >= _SHORTEST_STATEMENT and not _ASKS.match(text)


def is_own(message: ChatMessage) -> bool:
    """Return whether the message is an answer of the responder."""
    return message.role == "assistant" and message.text.startswith((OFFLINE, AGAIN))


def _sentences_of(message: ChatMessage) -> list[str]:
    """Return the sentences that a person or the model said."""
    return [] if is_own(message) or message.role not in _SPEAKERS else sentences(message.text)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return [sentence.strip() for sentence in _SENTENCE.findall(text) if sentence.strip()]


def _speaker_of(message: ChatMessage) -> str:
    return message.name or _SPEAKERS[message.role]


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _day(day: dt.date) -> str:
    return f"{day.day} {day:%B %Y}"
