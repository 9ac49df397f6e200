"""The chunks of a run: the messages that one version adds to the summary.

A chunk has whole exchanges. An exchange that is longer than a chunk is folded alone, in parts.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence

from django_convmemory.fold import parts
from django_convmemory.fold.runs import LeaseLost
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.exchanges import Placed, Turn
from django_convmemory.rules.values import Claim
from django_convmemory.store.either import Store
from django_convmemory.tokens import TokenCounter

# The window is not made smaller than this, in tokens.
SMALLEST_WINDOW = 50


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """What one version adds: the unpinned messages from ``first`` through ``last``, or a part of one exchange.

    ``turns`` are the messages to fold. ``count`` and ``tokens`` are those of all messages of the chunk. ``part_end`` is
    the offset at which a part ends, or None if the chunk ends with it. ``number`` is the part's number, from 1.
    """

    first: int
    last: int
    turns: Sequence[Placed]
    count: int
    tokens: int
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
        return not self.turns or parts.wordless(self.messages)


def end_of(turns: Sequence[Turn], ends: Sequence[int], start: int, window: int) -> int:
    """Return where the chunk that begins at ``start`` ends: it has the exchanges that fit the window, at least one.

    ``ends`` are the indexes at which exchanges end.
    """
    chunk_end, total = start, 0
    for end in itertools.islice(ends, bisect.bisect_right(ends, start), None):
        total += sum(turn.tokens for turn in turns[chunk_end:end])
        if chunk_end > start and total > window:
            break
        chunk_end = end
    return chunk_end


def read(store: Store, claim: Claim, turns: Sequence[Turn]) -> Chunk:
    """Read the messages of ``turns``, the next ones that the claim's summary does not cover. Raises LeaseLost."""
    first, last = claim.counters.covered_position + 1, turns[-1].position
    rows = store.messages(claim, first, last)
    if len(rows) != len(turns):
        raise LeaseLost  # Messages were removed since the claim: the epoch would refuse the result of a call.
    return Chunk(first, last, rows, len(turns), sum(turn.tokens for turn in turns))


def next_part(chunk: Chunk, claim: Claim, *, window: int, counter: TokenCounter, max_parts: int) -> Chunk:
    """Return the next part of ``chunk``, which is one exchange: all of it, if it fits the window.

    The part with the number ``max_parts`` is the last one, and what is left after it is cut.
    """
    if chunk.is_wordless:
        return chunk
    start = claim.summary.part_end if claim.parts and claim.summary else None
    part = parts.part(chunk.turns, start or 0, window, counter)
    number = claim.parts + 1
    is_last = part.last or number >= max_parts
    return dataclasses.replace(
        chunk,
        turns=part.turns,
        part_end=None if is_last else part.end,
        number=number,
        cut=is_last and not part.last,
    )


def smaller_window(chunk: Chunk, window: int, counter: TokenCounter) -> int:
    """Return the window to try next if the model says that ``chunk`` is too long. It may be too small to try."""
    return min(window, sum(counter.count(message) for message in chunk.messages)) // 2
