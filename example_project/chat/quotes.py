"""What the offline responder quotes: sentences of the conversation, each with who said it, and when."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import NamedTuple

from django.utils import timezone

from chat import words
from django_convmemory.context.assembly import Context
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.search.hits import Hit

# In the metadata of the responder's replies.
OWN = {"responder": "offline"}
# An answer has so many quotations.
MOST = 3
# A search brings so many messages. Some of them are questions, or answers of the responder.
_CANDIDATES = 12
# What was said so many messages ago is not on the screen any more.
_LONG_AGO = 10
# By the role of the speaker. "": unknown.
_TELLS = {"user": "you told me", "assistant": "I told you", "": "it was said"}

# The labels that the extractive model writes, and not those in a quotation.
_LABEL = re.compile(r"(?:(?P<user>User|用户)|(?P<assistant>Assistant|助手)|(?P<tool>Tool|工具))(?: said|说)?(?:: |：)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_IDENTIFIERS = "Also mentioned by the "
# A full stop within "3.50" or "example.org" ends no sentence.
_SENTENCE = re.compile(r"(?:[^.!?。！？\n]|[.!?](?=\S))+[.!?。！？]?")
# A question, with its mark or without.
_ASKS = re.compile(
    r"(?:are|can|could|did|do(?! not)|does|explain|find|give|has|have|how|is|list|remind|repeat|search|show"
    r"|summari[sz]e|tell|was|were|what|when|where|which|who|whom|whose|why|will|would)\b|.*[?？]",
    re.IGNORECASE | re.DOTALL,
)
# In words, or in characters if the words have no spaces between them. What is shorter may be words to look for.
_SHORTEST_STATEMENT, _SHORTEST_UNSPACED = 3, 16


class Sentence(NamedTuple):
    """A sentence, and how the answer introduces it: "you told me".

    ``day`` is None if it is unknown. ``position`` is that of its message, or None if it stands in the summary.
    """

    text: str
    tells: str
    day: dt.date | None
    position: int | None

    def quoted(self, asked_at: int) -> str:
        """Return the sentence as a quotation. ``asked_at`` is the position of the question."""
        when = ""
        if self.day and self.day != timezone.localdate():
            when = f" on {self.day.day} {self.day:%B %Y}"
        elif self.position and asked_at - self.position >= _LONG_AGO:
            when = f" {asked_at - self.position} messages ago"
        told = f"According to the summary, {self.tells}" if self.position is None else self.tells
        return f"{told[0].upper()}{told[1:]}{when}: “{self.text}”"


async def found(session: SessionHandle, question: str, before: int) -> list[Sentence]:
    """Return the sentences that a search for ``question`` finds before the position ``before``.

    If it finds nothing to quote, other forms of the words are searched for.
    """
    return await _found(session, question, before) or await _found(session, words.relatives(question), before)


async def _found(session: SessionHandle, query: str, before: int) -> list[Sentence]:
    hits = await session.asearch(query, before=before, limit=_CANDIDATES) if query.strip() else []
    scored = []
    for hit in hits:
        [stored] = await session.ahistory(after=hit.position - 1, limit=1) or [None]
        if stored is not None and stored.position == hit.position:
            scored.append(best(stored.message, hit))
    return _most(scored)


def best(message: ChatMessage, hit: Hit) -> tuple[int, Sentence]:
    """Return the sentence of ``message`` that has most of the hit's telling words, and how many these are."""
    marked = words.stems(" ".join(piece.text for piece in hit.pieces if piece.marked))
    scored = [(len(marked & words.stems(text)), text) for text in _sentences_of(message)]
    count, text = max(scored, key=lambda pair: pair[0], default=(0, ""))
    return count, Sentence(text, _tells(message), timezone.localdate(hit.created_at), hit.position)


def of_context(question: str, context: Context) -> list[Sentence]:
    """Return the sentences of ``context`` that have the most telling words in common with ``question``."""
    wanted = words.stems(question)
    return _most([(len(wanted & words.stems(sentence.text)), sentence) for sentence in _shown(context)])


def _most(scored: list[tuple[int, Sentence]]) -> list[Sentence]:
    """Return the sentences with the highest count, each text once. A sentence that counts nothing is not among them."""
    highest = max((count for count, _ in scored), default=0)
    chosen: dict[str, Sentence] = {}
    for count, sentence in scored:
        if count and count == highest:
            chosen.setdefault(sentence.text, sentence)
    return list(chosen.values())[:MOST]


def _shown(context: Context) -> Iterator[Sentence]:
    """Yield the sentences of the summary, and those of the messages before the newest question."""
    yield from _of_summary(context.summary or "")
    last = max((part.position or 0 for part in context.parts if part.message.role == "user"), default=0)
    for part in context.parts:
        if part.position is not None and part.position != last:
            for text in _sentences_of(part.message):
                yield Sentence(text, _tells(part.message), None, part.position)


def _of_summary(summary: str) -> Iterator[Sentence]:
    """Yield the sentences of a summary. The extractive model writes days on lines of their own, and labels."""
    day = None
    for line in summary.splitlines():
        if _DAY.fullmatch(line):
            day = dt.date.fromisoformat(line)
        elif not line.startswith(_IDENTIFIERS):
            label = _LABEL.match(line)
            speaker = label.lastgroup or "" if label else ""
            for text in sentences(line[label.end() if label else 0 :]):
                if speaker in _TELLS and not text.endswith(("?", "？")):
                    yield Sentence(text, _TELLS[speaker], day, None)


def is_statement(text: str) -> bool:
    """Return whether a text tells something, and asks nothing."""
    return not _ASKS.match(text) and not _is_short(text)


def _is_short(text: str) -> bool:
    is_short = len(text.split()) < _SHORTEST_STATEMENT and len(text) < _SHORTEST_UNSPACED
    return is_short and not text.endswith((".", "。"))


def is_own(message: ChatMessage) -> bool:
    """Return whether the message is an answer of the responder."""
    return message.role == "assistant" and message.metadata.get("responder") == OWN["responder"]


def _sentences_of(message: ChatMessage) -> list[str]:
    """Return the sentences in which a person or the model tells something. A model's "Can do." is no question."""
    if message.role == "user" and not _is_short(message.text):
        return [text for text in sentences(message.text) if not _ASKS.match(text)]
    if message.role == "assistant" and not is_own(message):
        return [text for text in sentences(message.text) if not text.endswith(("?", "？"))]
    return []


def sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return [sentence.strip() for sentence in _SENTENCE.findall(text) if sentence.strip()]


def _tells(message: ChatMessage) -> str:
    return f"{message.name} said" if message.name else _TELLS.get(message.role, _TELLS[""])
