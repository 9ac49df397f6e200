"""Cuts the transcript of a long exchange into parts, each small enough for one model call.

An offset counts the characters of what was spoken (:func:`.context.spoken`), one message after the other. So each
character is in exactly one part, wherever a run ends and another one continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_convmemory.messages import ChatMessage
from django_convmemory.rules.exchanges import Placed
from django_convmemory.rules.transcript import spoken
from django_convmemory.tokens import TokenCounter

# A part ends at a break within its last quarter, if there is one. Best first: a paragraph, a line, a sentence, a word.
_SEARCHED = 4
_BREAKS = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", " ")
# More characters than this for each token are not counted at once: counting may take long.
_CHARACTERS_PER_TOKEN = 16


class Part(NamedTuple):
    """A part of an exchange: its messages, the offset at which it ends, and whether nothing is left after it."""

    turns: list[Placed]
    end: int
    last: bool


def part(rows: Sequence[Placed], start: int, max_tokens: int, counter: TokenCounter) -> Part:
    """Return the part of ``rows`` that begins at the offset ``start`` and has at most ``max_tokens`` tokens.

    It has the stored message where that fits as a whole, and otherwise a message with a piece of its text. It has at
    least one character, unless nothing is left.
    """
    turns: list[Placed] = []
    offset, left = 0, max_tokens
    for index, row in enumerate(rows):
        text = spoken(row.message)
        if start and offset + len(text) <= start:
            offset += len(text)
            continue  # An earlier part has it.
        begin = max(0, start - offset)
        rest = text[begin:]
        tokens = _bounded_count(rest, left, counter)
        if tokens <= left:
            turns.append(_piece(row, rest) if begin else row)
            left -= tokens
            offset += len(text)
            continue
        fits_next = left < max_tokens // 2 and _bounded_count(rest, max_tokens, counter) <= max_tokens
        # Each part has a character. One of empty messages only has none yet.
        if offset + begin == start or (left and not fits_next):
            piece = _beginning(rest, max(1, left), counter)
            turns.append(_piece(row, piece))
            begin += len(piece)
        is_last = begin == len(text) and not any(spoken(later.message) for later in rows[index + 1 :])
        return Part(turns, offset + begin, last=is_last)
    return Part(turns, offset, last=True)


def wordless(turns: Iterable[ChatMessage]) -> bool:
    """Whether ``turns`` have nothing that can be summarized: no letter, no digit, no call, no result and no image."""
    return not any(map(_has_words, turns))


def _has_words(message: ChatMessage) -> bool:
    if message.tool_calls or not isinstance(message.content, str | None):
        return True
    return any(character.isalnum() for character in message.content or "")


def _piece(row: Placed, text: str) -> Placed:
    # The calls of a message are in its text. As calls they would be in each part.
    role, kind, name, call_id = row.message.role, row.message.kind, row.message.name, row.message.tool_call_id
    return row._replace(message=ChatMessage.restore(role, text, kind, name=name, tool_call_id=call_id))


def _bounded_count(text: str, bound: int, counter: TokenCounter) -> int:
    """Return the tokens of ``text``, or more than ``bound`` if it is very long."""
    longest = bound * _CHARACTERS_PER_TOKEN
    return bound + 1 if len(text) > longest else counter.count_text(text)


def _beginning(text: str, max_tokens: int, counter: TokenCounter) -> str:
    """Return the beginning of ``text`` with at most ``max_tokens`` tokens, and at least one character."""
    length = min(len(text), max_tokens * _CHARACTERS_PER_TOKEN)
    while length > 1 and (tokens := counter.count_text(text[:length])) > max_tokens:
        # The count is about proportional to the length. A little less, so that this ends soon.
        length = max(1, min(length - 1, int(length * max_tokens / tokens * 0.98)))
    for mark in _BREAKS:
        at = text.rfind(mark, length - length // _SEARCHED, length)
        end = at + len(mark)
        if at > 0 and counter.count_text(text[:end]) <= max_tokens:
            return text[:end]
    return text[:length]
