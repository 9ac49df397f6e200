"""The estimate of the default token counter."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, strategies as st

from django_convmemory import tokens
from django_convmemory.tokens import estimate

# Texts of one kind, and of all kinds.
TEXTS = st.one_of(
    st.text(),
    st.text(st.characters(codec="ascii")),
    st.text(st.sampled_from(string.ascii_letters + string.digits + " \n-/=ąéżкі中😀")),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 1),
        ("e", 1),
        ("hello world", 3),
        ("The customer asked on Monday about the order.", 10),
        ("2024-03-12", 7),
        ("123e4567-e89b-12d3-a456-426614174000", 21),
        ("zażółć gęślą jaźń", 14),
        ("à é î õ ü", 9),
        ("Где мой заказ?", 6),
        ("客户星期一询问了订单的情况。", 15),
        ("👍🏽", 5),
        ('{"id": "HAT136", "price": 152}', 13),
        ("\x00", 1),
    ],
)
def test_the_estimate_of_a_text_never_changes(text: str, expected: int) -> None:
    """If you meant to change the estimate, change the counter's name too: sessions store the name with their counts."""
    assert tokens.Utf8TokenCounter.name == "utf8:2"
    assert estimate(text) == expected


@given(TEXTS)
@example("\ud800")
def test_an_estimate_is_a_number_of_at_least_one(text: str) -> None:
    assert type(estimate(text)) is int
    assert estimate(text) >= 1


@given(TEXTS, TEXTS)
def test_a_text_is_not_estimated_higher_than_its_parts(first: str, second: str) -> None:
    """Where the parts meet, words, numbers and symbols may become longer runs."""
    assert estimate(first + second) <= estimate(first) + estimate(second) + 5


@given(TEXTS, st.integers(0, 40))
def test_a_beginning_is_not_estimated_higher(text: str, length: int) -> None:
    """A run of symbols costs more if no word follows, and the beginning may end there."""
    assert estimate(text[:length]) <= estimate(text) + 1


@pytest.mark.parametrize(
    "unit", ["a", "z", " ", "\n", "-", "1", "{", "a ", "a1", "\0", "é", "я", "ก", "中", "😀", "\ud800"]
)
def test_a_long_text_is_estimated_in_proportion(unit: str) -> None:
    """It is counted in parts of 8192 characters."""
    short, long = (estimate(unit * times) for times in (3 * 8192, 30 * 8192))
    assert 9.9 * short <= long <= 10.1 * short
    assert long > len(unit) * 30 * 8192 / 9


def test_each_word_and_each_number_is_a_token() -> None:
    assert estimate("word " * 400) == 400
    assert estimate("He told me 3 of the 77 jokes then. ") >= 8


def test_each_part_of_a_long_text_is_estimated_by_its_own_scripts() -> None:
    english, polish = "customer " * 8192, "żółć " * 8192
    assert estimate(english + polish) == estimate(english) + estimate(polish)


def test_words_before_many_emoji_count_in_full() -> None:
    """An emoji is two units of UTF-16."""
    words, emoji = "customer " * 100, "😀" * 7000
    assert estimate(words + emoji) == pytest.approx(estimate(words) + estimate(emoji), abs=1)


def test_other_alphabets_cost_less_than_their_bytes() -> None:
    assert estimate("Where is the order?") < estimate("Где находится заказ?") < len("Где находится заказ?".encode()) / 3
