"""Where a chunk ends, and the parts of a long exchange: each character is in exactly one of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given, strategies as st

from django_convmemory import tokens
from django_convmemory.fold import chunk as chunks
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.rules.exchanges import MessageRef, Turn
from tests import conversations
from tests.conversations import call


class Characters(tokens.Utf8TokenCounter):
    """Counts characters. An empty text has a token, as with every counter."""

    def count_text(self, text: str) -> int:
        return max(1, len(text))


class OnePerText(tokens.Utf8TokenCounter):
    def count_text(self, text: str) -> int:
        return 1


class Erratic(tokens.Utf8TokenCounter):
    """A longer text may have fewer tokens."""

    def count_text(self, text: str) -> int:
        return 1 + (len(text) * 7919) % 40


class Dear(tokens.Utf8TokenCounter):
    """Each character has many tokens, so not even one fits a small window."""

    def count_text(self, text: str) -> int:
        return 500 * len(text) + 1


COUNTERS: list[tokens.TokenCounter] = [
    tokens.Utf8TokenCounter(),
    tokens.TokenBufferEstimate(),
    tokens.SummaryBufferEstimate(),
    Characters(),
    OnePerText(),
    Erratic(),
    Dear(),
]

long_texts = st.builds(
    lambda words, count, mark: mark.join(words * count),
    st.lists(conversations.TEXTS, min_size=1, max_size=3),
    st.integers(1, 10),
    st.sampled_from(["", " ", ". ", "\n", "\n\n", "。"]),
)
messages = st.one_of(
    st.builds(ChatMessage.human, long_texts),
    st.builds(ChatMessage.ai, long_texts),
    st.builds(ChatMessage.tool, long_texts, st.just("c")),
    st.builds(lambda text: ChatMessage.ai(tool_calls=[call("c", text)]), long_texts),
    st.builds(lambda text: ChatMessage.human([{"type": "text", "text": text}, {"type": "image_url"}]), long_texts),
)
exchanges = st.lists(messages, min_size=1, max_size=5)


def rows_of(exchange: Sequence[ChatMessage]) -> list[MessageRef]:
    return [MessageRef(position, message, 1) for position, message in enumerate(exchange, start=1)]


def parts_of(
    rows: Sequence[MessageRef], window: int, counter: tokens.TokenCounter, start: int = 0
) -> list[chunks.ExchangePart]:
    made = [chunks.part_of(rows, start, window, counter)]
    while not made[-1].last:
        following = chunks.part_of(rows, made[-1].end, window, counter)
        assert following.end > made[-1].end, "a part without a character"
        made.append(following)
    return made


def text_of(part: chunks.ExchangePart) -> str:
    return "".join(spoken(turn.message) for turn in part.turns)


@given(exchanges, st.integers(1, 300), st.sampled_from(COUNTERS))
@example([ChatMessage.human(""), ChatMessage.human(""), ChatMessage.human("word")], 4, Characters())
def test_each_character_is_in_exactly_one_part(
    exchange: list[ChatMessage], window: int, counter: tokens.TokenCounter
) -> None:
    parts = parts_of(rows_of(exchange), window, counter)
    whole = "".join(map(spoken, exchange))
    assert "".join(map(text_of, parts)) == whole
    assert list(itertools.accumulate(len(text_of(part)) for part in parts)) == [part.end for part in parts]
    assert parts[0].end > 0 or not whole


@given(exchanges, st.integers(1, 300), st.sampled_from(COUNTERS))
def test_a_part_fits_the_window_unless_one_character_of_it_does_not(
    exchange: list[ChatMessage], window: int, counter: tokens.TokenCounter
) -> None:
    for part in parts_of(rows_of(exchange), window, counter):
        texts = [spoken(turn.message) for turn in part.turns]
        assert sum(counter.count_text(text) for text in texts if text) <= window or len(texts[-1]) == 1


@given(exchanges, st.integers(1, 300), st.integers(1, 300), st.sampled_from(COUNTERS), st.data())
def test_who_resumes_at_the_end_of_a_part_gets_the_rest(
    exchange: list[ChatMessage], window: int, other: int, counter: tokens.TokenCounter, data: st.DataObject
) -> None:
    rows = rows_of(exchange)
    parts = parts_of(rows, window, counter)
    done = data.draw(st.integers(0, len(parts) - 1))
    start = parts[done - 1].end if done else 0
    assert parts_of(rows, window, counter, start) == parts[done:]
    # A model with another window gets the same rest.
    assert "".join(map(text_of, parts_of(rows, other, counter, start))) == "".join(map(text_of, parts[done:]))


@given(exchanges, st.integers(1, 300))
@example([ChatMessage.human("What is Rust?"), ChatMessage.ai("")], 1)
def test_a_piece_keeps_its_speaker_and_only_a_whole_message_keeps_its_calls(
    exchange: list[ChatMessage], window: int
) -> None:
    shown = [turn.message for part in parts_of(rows_of(exchange), window, Characters()) for turn in part.turns]
    assert speakers(shown) == speakers(exchange)
    assert all(message in exchange for message in shown if message.tool_calls)


def speakers(messages: Sequence[ChatMessage]) -> list[tuple[str, str | None, str | None]]:
    """Return who says something in ``messages``, in order. Nothing of an empty message is in a part."""
    everyone = [(message.role, message.name, message.tool_call_id) for message in messages if spoken(message)]
    return list(dict.fromkeys(everyone))


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a" * 80 + "\n\n" + "b\n" + "c. d e " * 30, "a" * 80 + "\n\n"),
        ("a" * 80 + "\n" + "c. d e " * 30, "a" * 80 + "\n"),
        ("a" * 80 + ". bbb cc ddd" + "e" * 90, "a" * 80 + ". "),
        ("a" * 80 + "? bbb cc ddd" + "e" * 90, "a" * 80 + "? "),
        ("一" * 80 + "。二 三" + "四" * 90, "一" * 80 + "。"),
        ("a" * 80 + " bb cc " + "e" * 90, "a" * 80 + " bb cc "),
        # A break before the last quarter would make the part too short.
        ("a" * 70 + "\n\n" + "b" * 90, "a" * 70 + "\n\n" + "b" * 26),
        # Without a break, it is a little smaller than the window.
        ("a" * 200, "a" * 98),
    ],
)
def test_a_part_ends_at_the_best_break_of_its_last_quarter(text: str, first: str) -> None:
    part = chunks.part_of(rows_of([ChatMessage.human(text)]), 0, 100, Characters())
    assert (text_of(part), part.end, part.last) == (first, len(first), False)


def test_a_message_that_fits_the_next_part_is_not_split() -> None:
    exchange = [ChatMessage.human("a" * 60), ChatMessage.ai("b" * 90), ChatMessage.ai("c" * 10)]
    parts = parts_of(rows_of(exchange), 100, Characters())
    assert [[turn.message for turn in part.turns] for part in parts] == [exchange[:1], exchange[1:]]


def test_a_message_that_fits_no_part_fills_the_rest_of_this_one() -> None:
    exchange = [ChatMessage.human("a" * 60), ChatMessage.ai("b" * 150)]
    first, second = parts_of(rows_of(exchange), 100, Characters())[:2]
    assert [spoken(turn.message) for turn in first.turns] == ["a" * 60, "b" * 39]
    assert [spoken(turn.message) for turn in second.turns] == ["b" * 98]


def test_a_very_long_text_is_not_counted_as_a_whole() -> None:
    lengths: list[int] = []

    class Recording(tokens.Utf8TokenCounter):
        def count_text(self, text: str) -> int:
            lengths.append(len(text))
            return super().count_text(text)

    chunks.part_of(rows_of([ChatMessage.human("word " * 400_000)]), 0, 1000, Recording())
    assert max(lengths) <= 16_000


def test_a_part_is_nearly_as_long_as_the_window() -> None:
    """Otherwise a long message would take many calls."""
    text = "The customer asked about order 4711, and 客户询问了订单。\n" * 2000
    *parts, _ = parts_of(rows_of([ChatMessage.human(text)]), 1000, tokens.Utf8TokenCounter())
    assert len(parts) > 10
    assert min(tokens.Utf8TokenCounter().count_text(text_of(part)) for part in parts) >= 700


@pytest.mark.parametrize(
    ("text", "is_wordless"),
    [
        ("", True),
        ("—-_*~\n\t\u200b", True),
        ("🙂👍", True),
        ("7", False),
        ("好", False),
        ("…é…", False),
    ],
)
def test_a_text_without_a_letter_or_a_digit_is_wordless(text: str, is_wordless: bool) -> None:
    assert chunks.wordless([ChatMessage.human(text)]) is is_wordless
    assert chunks.wordless([ChatMessage.human("..."), ChatMessage.ai(text)]) is is_wordless


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.ai(tool_calls=[call("c")]),
        ChatMessage.human([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]),
    ],
)
def test_calls_and_images_are_no_wordless_messages(message: ChatMessage) -> None:
    assert not chunks.wordless([message])


# Chunks of whole exchanges.

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
