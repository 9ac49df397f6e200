"""The values that stores and rules share: names and numbered keys."""

from __future__ import annotations

import pytest

from django_convmemory.rules import values
from django_convmemory.rules.counters import Pinned
from django_convmemory.rules.values import MAX_KEY_LENGTH, SessionName


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (SessionName("default", "main"), "default: main"),
        (SessionName("default", "main", owner_id=0), "default: main, owner 0"),
        (SessionName("support", "main", owner_id=7), "support: main, owner 7"),
        (SessionName("support", "main", visitor="v1"), "support: main, visitor v1"),
    ],
)
def test_a_name_is_printed_with_its_scope(name: SessionName, text: str) -> None:
    assert str(name) == text


def test_a_numbered_key_is_as_long_as_a_key_may_be() -> None:
    assert values.numbered("main", 2) == "main (2)"
    longest = values.numbered("k" * MAX_KEY_LENGTH, 12)
    assert longest == "k" * (MAX_KEY_LENGTH - 5) + " (12)"


@pytest.mark.parametrize(
    ("max_tokens", "positions"),
    [(0, [1]), (10, [1]), (14, [1]), (15, [1, 9]), (24, [1, 9]), (25, [1, 9, 4]), (99, [1, 9, 4])],
)
def test_the_first_pinned_message_is_shown_and_then_the_newest_that_fit(max_tokens: int, positions: list[int]) -> None:
    pinned = [Pinned(1, 10), Pinned(4, 10), Pinned(9, 5)]
    assert values.shown_pinned(pinned, max_tokens) == positions
    assert values.shown_pinned([], max_tokens) == []
