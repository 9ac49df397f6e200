from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st

from django_convmemory.rules.strategies import (
    Amount,
    Buffer,
    Pruning,
    Strategy,
    SummaryBuffer,
    SummaryWindow,
    Threshold,
    TokenBuffer,
    View,
    Window,
    stepped,
)


class Tail(NamedTuple):
    """A tail as strategies see it: the tokens of each message, and the indexes at which exchanges begin."""

    tokens: list[int]
    starts: list[int]

    @property
    def newest(self) -> int:
        return self.starts[-1] if self.starts else 0

    def after(self, index: int) -> Tail:
        return Tail(self.tokens[index:], [start - index for start in self.starts if start >= index])


def laid_out(exchanges: list[list[int]]) -> Tail:
    starts = [0, *itertools.accumulate(map(len, exchanges))][:-1]
    return Tail([count for exchange in exchanges for count in exchange], starts)


# Tails of single messages and of longer exchanges.
counts = st.integers(1, 60)
plain_tails = st.lists(st.lists(counts, min_size=1, max_size=1), max_size=20).map(laid_out)
tails = plain_tails | st.lists(st.lists(counts, min_size=1, max_size=5), max_size=10).map(laid_out)
limits = st.integers(1, 120)
folding: st.SearchStrategy[Strategy] = st.one_of(
    st.builds(SummaryBuffer, limits), st.builds(SummaryWindow, st.integers(0, 8)), st.builds(Pruning, limits)
)
showing: st.SearchStrategy[Strategy] = st.one_of(
    st.just(Buffer()), st.builds(Window, st.integers(0, 12)), st.builds(TokenBuffer, st.integers(0, 200))
)


def exceeded(strategy: Strategy, tail: Tail) -> bool:
    return strategy.threshold.exceeded(tokens=sum(tail.tokens), messages=len(tail.tokens), settled=len(tail.starts) > 1)


@given(folding | showing, tails)
def test_a_cut_lies_between_two_exchanges(strategy: Strategy, tail: Tail) -> None:
    edges = {0, *tail.starts, len(tail.tokens)}
    assert strategy.plan(*tail) in edges
    assert strategy.shown_from(*tail) in edges


@given(folding, tails)
def test_the_newest_exchange_is_kept(strategy: Strategy, tail: Tail) -> None:
    assert strategy.plan(*tail) <= tail.newest


@pytest.mark.parametrize("strategy", [SummaryBuffer(10), Pruning(10), SummaryWindow(1)])
def test_nothing_is_folded_of_an_exchange_that_began_before(strategy: Strategy) -> None:
    assert strategy.plan([20, 20, 20], []) == 0


@given(folding, tails)
def test_something_is_folded_exactly_when_the_threshold_is_exceeded(strategy: Strategy, tail: Tail) -> None:
    assert (strategy.plan(*tail) > 0) == exceeded(strategy, tail)


@given(folding, tails)
def test_a_memory_that_folds_shows_its_whole_tail_as_far_as_it_is_read(strategy: Strategy, tail: Tail) -> None:
    view = strategy.view()
    assert view.summary
    if view.messages is None or len(tail.tokens) <= view.messages:
        assert strategy.shown_from(*tail) == 0


@given(showing, tails)
def test_a_memory_that_only_shows_is_never_due(strategy: Strategy, tail: Tail) -> None:
    assert strategy.plan(*tail) == 0
    assert not exceeded(strategy, tail)
    assert not strategy.view().summary


def reference_split(tokens: list[int], limit: int) -> int:
    """Where synaptic's ConversationSummaryBufferMemory splits."""
    if sum(tokens) <= limit or len(tokens) < 2:
        return 0
    half, kept, split = limit // 2, 0, 0
    for index in reversed(range(len(tokens))):
        if kept + tokens[index] > half:
            split = index + 1
            break
        kept += tokens[index]
    return len(tokens) - 1 if split >= len(tokens) else split


@given(limits, tails)
def test_summary_buffer_moves_the_reference_split_to_the_end_of_its_exchange(limit: int, tail: Tail) -> None:
    if len(tail.starts) > 1:
        split = reference_split(tail.tokens, limit)
        ends = [start for start in tail.starts if start >= split]
        assert SummaryBuffer(limit).plan(*tail) == (ends[0] if ends else tail.newest)


@given(st.integers(0, 8), plain_tails)
def test_summary_keeps_its_last_messages(buffer_size: int, tail: Tail) -> None:
    kept = len(tail.tokens) - SummaryWindow(buffer_size).plan(*tail)
    if len(tail.tokens) > 2 * buffer_size:
        assert kept == max(1, buffer_size) or len(tail.tokens) == kept == 1
    else:
        assert kept == len(tail.tokens)


@given(limits, tails)
def test_pruning_folds_no_more_than_it_must(limit: int, tail: Tail) -> None:
    split = Pruning(limit).plan(*tail)
    assert sum(tail.tokens[split:]) <= limit or split == tail.newest
    if split:
        assert sum(tail.tokens[max(start for start in tail.starts if start < split) :]) > limit


@pytest.mark.parametrize(("tokens", "split"), [([5, 5], 0), ([5, 5, 1], 1), ([5, 5, 5], 1), ([1, 5, 5], 1), ([11], 0)])
def test_pruning_keeps_exactly_what_its_limit_holds(tokens: list[int], split: int) -> None:
    assert Pruning(10).plan(tokens, list(range(len(tokens)))) == split


@given(st.integers(1, 12), tails)
def test_window_begins_after_an_exchange_that_it_would_cut_but_shows_the_newest_whole(size: int, tail: Tail) -> None:
    first = max(0, len(tail.tokens) - size)
    whole = [start for start in tail.starts if start >= first]
    assert Window(size).shown_from(*tail) == (whole[0] if whole else tail.newest)


@given(tails)
def test_window_of_nothing_shows_nothing(tail: Tail) -> None:
    assert Window(0).shown_from(*tail) == len(tail.tokens)


@given(st.integers(0, 200), tails)
def test_token_buffer_drops_the_oldest_exchanges_while_the_rest_is_above_its_limit(limit: int, tail: Tail) -> None:
    expected = next(
        (start for start in tail.starts if sum(tail.tokens[start:]) <= limit),
        len(tail.tokens),
    )
    assert TokenBuffer(limit).shown_from(*tail) == expected


@pytest.mark.parametrize(("tokens", "first"), [([5, 5], 0), ([1, 5, 5], 1), ([11], 1), ([10], 0), ([], 0)])
def test_token_buffer_shows_exactly_what_its_limit_holds(tokens: list[int], first: int) -> None:
    assert TokenBuffer(10).shown_from(tokens, list(range(len(tokens)))) == first


@pytest.mark.parametrize(
    ("strategy", "view"),
    [
        (Buffer(), View()),
        (Window(7), View(messages=7)),
        (TokenBuffer(90), View(tokens=90)),
        (SummaryWindow(5), View(messages=20, summary=True)),
        (SummaryWindow(0), View(messages=1, summary=True)),
        (SummaryBuffer(90), View(summary=True)),
        (Pruning(90), View(summary=True)),
    ],
)
def test_no_more_is_read_than_can_be_shown(strategy: Strategy, view: View) -> None:
    assert strategy.view() == view


@pytest.mark.parametrize("strategy", [Window(3), TokenBuffer(5)])
def test_what_is_left_of_an_exchange_is_not_shown(strategy: Strategy) -> None:
    # A store read the end of a conversation: the first two messages belong to an exchange that began before.
    assert strategy.shown_from([1, 1, 2, 2], [2, 3]) == 2
    assert strategy.shown_from([1, 1], []) == 2


@pytest.mark.parametrize(
    ("threshold", "tokens", "messages", "due"),
    [
        (Threshold(), 10**9, 10**9, False),
        (Threshold(tokens=10), 10, 99, False),
        (Threshold(tokens=10), 11, 2, True),
        (Threshold(messages=4), 99, 4, False),
        (Threshold(messages=4), 5, 5, True),
        (Threshold(tokens=10, messages=4), 11, 2, True),
        (Threshold(tokens=10, messages=4), 9, 5, True),
        (Threshold(tokens=0, messages=0), 1, 1, True),
    ],
)
def test_a_tail_is_due_above_a_limit_and_with_more_than_its_newest_exchange(
    threshold: Threshold, tokens: int, messages: int, due: bool
) -> None:
    assert threshold.exceeded(tokens=tokens, messages=messages, settled=True) is due
    assert not threshold.exceeded(tokens=tokens, messages=messages, settled=False)


def test_a_limit_that_no_database_can_compare_is_none() -> None:
    assert Threshold(tokens=2**53, messages=2**53) != Threshold()
    assert Threshold(tokens=2**53 + 1) == Threshold()
    assert Threshold(tokens=5, messages=2**70) == Threshold(tokens=5)


@pytest.mark.parametrize("strategy", [Window, TokenBuffer, SummaryBuffer, SummaryWindow, Pruning])
@pytest.mark.parametrize("limit", [-1, 1.5, "2000", None, True])
def test_limits_are_whole_numbers(strategy: type[Strategy], limit: object) -> None:
    with pytest.raises(
        ValueError, match=r"(window_size|max_tokens|buffer_size|max_token_limit) must be a whole number"
    ):
        strategy(limit)  # type: ignore[call-arg]


@pytest.mark.parametrize("strategy", [SummaryBuffer, Pruning])
def test_a_limit_of_nothing_cannot_be_kept(strategy: type[SummaryBuffer | Pruning]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        strategy(0)


# Steps: what is left out grows many messages at a time.

shares = st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9])


@given(st.integers(0, 10**6), st.integers(1, 5000), shares | st.just(1.0))
def test_a_step_leaves_the_share_of_the_limit_or_more(total: int, limit: int, evict_to: float) -> None:
    left = total - stepped(total, limit, evict_to)
    assert left <= limit
    assert left >= min(total, limit * evict_to - 1)


@given(st.integers(1, 5000), shares)
def test_the_next_step_comes_after_a_share_of_the_limit(limit: int, evict_to: float) -> None:
    cuts = [stepped(total, limit, evict_to) for total in range(3 * limit)]
    assert cuts == sorted(cuts)
    assert len(set(cuts)) <= 1 + 2 * limit / max(1, limit * (1 - evict_to)) + 1


@given(st.integers(1, 12), shares, tails)
def test_window_grows_from_its_share_to_its_size(size: int, evict_to: float, tail: Tail) -> None:
    first = Window(size, evict_to).shown_from(*tail)
    assert first in tail.starts or not tail.tokens
    assert len(tail.tokens) - first <= size or first == tail.newest
    # What a store does not read makes no difference.
    read = max((start for start in tail.starts if start <= max(0, len(tail.tokens) - size)), default=0)
    before = Amount(read, sum(tail.tokens[:read]))
    assert read + Window(size, evict_to).shown_from(*tail.after(read), before) == first


@given(st.integers(1, 200), shares, tails)
def test_token_buffer_grows_from_its_share_to_its_limit(limit: int, evict_to: float, tail: Tail) -> None:
    first = TokenBuffer(limit, evict_to).shown_from(*tail)
    assert sum(tail.tokens[first:]) <= limit
    if tail.tokens and sum(tail.tokens[tail.newest :]) <= limit:
        assert first <= tail.newest
    read = max((start for start in tail.starts if sum(tail.tokens[start:]) >= limit), default=0)
    before = Amount(read, sum(tail.tokens[:read]))
    assert read + TokenBuffer(limit, evict_to).shown_from(*tail.after(read), before) == first


@pytest.mark.parametrize("evict_to", [-0.1, 1.1, float("nan"), True, "half"])
@pytest.mark.parametrize("strategy", [Window, TokenBuffer])
def test_evict_to_is_a_share(strategy: type[Any], evict_to: Any) -> None:
    with pytest.raises(ValueError, match="evict_to must be a number from 0 to 1"):
        strategy(10, evict_to)


# Whose turn it is.


@given(limits, tails, st.data())
def test_what_is_kept_begins_with_a_users_turn_if_there_is_one(limit: int, tail: Tail, data: st.DataObject) -> None:
    users = sorted(data.draw(st.sets(st.sampled_from(tail.starts or [0]))))
    for strategy in (SummaryBuffer(limit), SummaryWindow(limit % 8)):
        split, plain = strategy.plan(*tail, users), strategy.plan(*tail)
        later = [start for start in users if plain <= start < tail.newest]
        assert split == (later[0] if plain and later else plain)
    assert Pruning(limit).plan(*tail, users) == Pruning(limit).plan(*tail)
