"""What a run folds of the tail, and the next chunk of it: the messages that one version adds to the summary.

A run may be one of many that take turns with other sessions. So of a long tail it reads only the beginning, if that is
folded for certain: the messages after it are too many to stay.

A chunk has whole exchanges. An exchange that is longer than a chunk is folded alone, in parts, each small enough for
one model call. An offset counts the characters of what was spoken (:func:`.messages.spoken`), one message after the
other, with notes in place of encoded data. So each character is in exactly one part, wherever a run ends and another
one continues.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_convmemory.exceptions import ChatModelError, ContextLengthExceeded, RequestRejected
from django_convmemory.fold.base import Fold, LeaseLost
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.rules import encoded, exchanges
from django_convmemory.rules.exchanges import MessageRef, Turn
from django_convmemory.tokens import TokenCounter

# So many messages of a tail are read at first.
_BEGINNING = 1000
# One exchange is divided into so many parts at most. The summary leaves out the rest: 64 calls of 8 000 tokens have
# read a book.
MAX_PARTS = 64
# The window is not made smaller than this, in tokens.
SMALLEST_WINDOW = 50
# A part ends at a break within its last quarter, if there is one. Best first: a paragraph, a line, a sentence, a word.
_SEARCHED = 4
_BREAKS = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", " ")
# More characters than this for each token are not counted at once: counting may take long.
_CHARACTERS_PER_TOKEN = 16


class Plan(NamedTuple):
    """The next messages: ``turns``. The first ``split`` of them are folded, in chunks that end at one of ``ends``.

    ``is_all``: then nothing is left to fold.
    """

    turns: Sequence[Turn]
    ends: Sequence[int]
    is_all: bool

    @property
    def split(self) -> int:
        return self.ends[-1]


def plan(fold: Fold) -> Plan:
    """Return what is folded next of the session as it was when it was claimed.

    Messages that came after the claim are left alone: the claim knows which exchange was open then.
    """
    turns = fold.memory.store.turns(fold.claim, _BEGINNING)
    if len(turns) == _BEGINNING:
        if ends := _certain(fold, turns):
            return Plan(turns, ends, is_all=False)
        turns = fold.memory.store.turns(fold.claim)
    starts = exchanges.starts(turns, fold.claim.counters.open_position)
    split = len(turns)
    if not fold.claim.rebuilding:
        user_starts = [start for start in starts if turns[start].role == "user"]
        split = fold.memory.strategy.plan([turn.tokens for turn in turns], starts, user_starts)
    return Plan(turns, [*[start for start in starts if start < split], split], is_all=True)


def _certain(fold: Fold, turns: Sequence[Turn]) -> list[int]:
    """Return the starts of exchanges in the beginning of a tail through which all is folded, whatever comes after it.

    A message of the assistant ends every exchange before it, so that none of these goes on after ``turns``. And what
    exceeds the threshold is folded.
    """
    spoken = [index for index, turn in enumerate(turns) if turn.role == "assistant" and turn.answers is None]
    if not spoken and any(turn.answers is not None for turn in turns):
        return []
    settled = spoken[-1] if spoken else len(turns) - 1
    counters, threshold = fold.claim.counters, fold.memory.strategy.threshold
    through = list(itertools.accumulate((turn.tokens for turn in turns), initial=0))
    ends = []
    for start in exchanges.starts(turns, counters.open_position):
        tokens, messages = counters.tail_tokens - through[start], counters.tail_count - start
        stays = not threshold.exceeded(tokens=tokens, messages=messages, settled=True)
        if start > settled or (stays and not fold.claim.rebuilding):
            break
        ends.append(start)
    return ends if ends and ends[-1] > 0 else []


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """What one version adds: the unpinned messages from ``first`` through ``last``, or a part of one exchange.

    ``turns`` are the messages to fold. ``count`` and ``tokens`` are those of all messages of the chunk. ``part_end`` is
    the offset at which a part ends, or None if the chunk ends with it. ``number`` is the part's number, from 1.
    ``following`` is the index in the tail of the first turn that the chunk does not cover.
    """

    first: int
    last: int
    turns: Sequence[MessageRef]
    count: int
    tokens: int
    following: int
    part_end: int | None = None
    number: int = 1
    cut: bool = False

    @property
    def messages(self) -> list[ChatMessage]:
        return [turn.message for turn in self.turns]

    @property
    def part(self) -> int | None:
        """The number of the part, or None if the chunk is not a part."""
        return self.number if self.number > 1 or self.part_end is not None else None

    @property
    def is_wordless(self) -> bool:
        """Whether nothing of it can be summarized."""
        return wordless(self.messages)


def choose(fold: Fold, tail: Sequence[Turn], ends: Sequence[int], start: int) -> Chunk:
    """Return the chunk that begins at the index ``start`` of ``tail``. Raises LeaseLost.

    ``ends`` are the indexes at which exchanges end.
    """
    claim = fold.claim
    first_end = end_of(tail, ends, start, 0)
    # An exchange that is folded in part is finished first.
    end = first_end if claim.parts else end_of(tail, ends, start, fold.window)
    turns = tail[start:end]
    first, last = claim.counters.covered_position + 1, turns[-1].position
    rows = fold.memory.store.messages(claim, first, last)
    if len(rows) != len(turns):
        raise LeaseLost  # Messages were removed since the claim: the epoch would refuse the result of a call.
    rows = [row._replace(message=encoded.replaced_in(row.message)) for row in rows]
    chunk = Chunk(first, last, rows, len(turns), sum([turn.tokens for turn in turns]), end)
    if end != first_end or chunk.is_wordless:
        return chunk
    begin = claim.summary.part_end if claim.parts and claim.summary else None
    part = part_of(rows, begin or 0, fold.window, fold.memory.requests.counter)
    number = claim.parts + 1
    # What is left after the part with the last number is cut.
    is_last = part.last or number >= MAX_PARTS
    following, part_end = (end, None) if is_last else (start, part.end)
    cut = is_last and not part.last
    return dataclasses.replace(chunk, turns=part.turns, following=following, part_end=part_end, number=number, cut=cut)


def end_of(turns: Sequence[Turn], ends: Sequence[int], start: int, window: int) -> int:
    """Return where the chunk that begins at ``start`` ends: it has the exchanges that fit the window, at least one.

    ``ends`` are the indexes at which exchanges end.
    """
    chunk_end, total = start, 0
    for end in itertools.islice(ends, bisect.bisect_right(ends, start), None):
        total += sum([turn.tokens for turn in turns[chunk_end:end]])
        if chunk_end > start and total > window:
            break
        chunk_end = end
    return chunk_end


def smaller_window(fold: Fold, chunk: Chunk, error: ChatModelError) -> int | None:
    """Return the window to try next after ``error``: half of ``chunk``. None: a smaller one would be of no use.

    If the error may mean the length, half of the chunk finds out, once in a run.
    """
    is_known = isinstance(error, ContextLengthExceeded)
    if not is_known and (fold.has_guessed or not (isinstance(error, RequestRejected) and error.may_be_too_long)):
        return None
    window = min(fold.window, sum(map(fold.memory.requests.counter.count, chunk.messages))) // 2
    if window < SMALLEST_WINDOW:
        return None
    fold.has_guessed = fold.has_guessed or not is_known
    return window


class ExchangePart(NamedTuple):
    """A part of an exchange: its messages, the offset at which it ends, and whether nothing is left after it."""

    turns: list[MessageRef]
    end: int
    last: bool


def part_of(rows: Sequence[MessageRef], start: int, max_tokens: int, counter: TokenCounter) -> ExchangePart:
    """Return the part of ``rows`` that begins at the offset ``start`` and has at most ``max_tokens`` tokens.

    It has the stored message where that fits as a whole, and otherwise a message with a piece of its text. It has at
    least one character, unless nothing is left.
    """
    turns: list[MessageRef] = []
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
        return ExchangePart(turns, offset + begin, last=is_last)
    return ExchangePart(turns, offset, last=True)


def wordless(turns: Iterable[ChatMessage]) -> bool:
    """Whether ``turns`` have nothing that can be summarized: no letter, no digit, no call, no result and no image."""
    return not any(map(_has_words, turns))


def _has_words(message: ChatMessage) -> bool:
    if message.tool_calls or not isinstance(message.content, str | None):
        return True
    return any(character.isalnum() for character in message.content or "")


def _piece(row: MessageRef, text: str) -> MessageRef:
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
