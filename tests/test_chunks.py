"""Where a chunk ends: it has the exchanges that fit the window, and at least one."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from django_convmemory.fold import chunk as chunks
from django_convmemory.rules.exchanges import Turn

# The tokens of each message of each exchange.
EXCHANGES = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=4), min_size=1, max_size=12)


def turns_and_ends(exchanges: list[list[int]]) -> tuple[list[Turn], list[int]]:
    tokens = list(itertools.chain.from_iterable(exchanges))
    turns = [Turn(position, count, None, "user") for position, count in enumerate(tokens, 1)]
    return turns, list(itertools.accumulate(map(len, exchanges)))


@given(EXCHANGES, st.integers(0, 60))
def test_chunks_have_each_exchange_once_and_as_many_as_fit(exchanges: list[list[int]], window: int) -> None:
    turns, ends = turns_and_ends(exchanges)
    start = 0
    while start < len(turns):
        end = chunks.end_of(turns, ends, start, window)
        inner = [boundary for boundary in ends if start < boundary <= end]
        assert inner[-1] == end
        assert len(inner) == 1 or sum(turn.tokens for turn in turns[start:end]) <= window
        if end < len(turns):
            following = ends[ends.index(end) + 1]
            assert sum(turn.tokens for turn in turns[start:following]) > window
        start = end


@given(EXCHANGES, st.data())
def test_a_chunk_that_begins_within_an_exchange_ends_with_it(exchanges: list[list[int]], data: st.DataObject) -> None:
    turns, ends = turns_and_ends(exchanges)
    start = data.draw(st.integers(0, len(turns) - 1))
    assert chunks.end_of(turns, ends, start, 0) == min(end for end in ends if end > start)
