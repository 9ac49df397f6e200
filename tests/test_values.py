"""The values that stores and rules share: names, numbered keys, and what a rebuild continues."""

from __future__ import annotations

import pytest

from django_convmemory import models
from django_convmemory.rules import values
from django_convmemory.rules.counters import Counters, Pinned
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


def test_a_rebuild_sees_a_session_that_ends_with_its_summary() -> None:
    counters = Counters(
        last_position=9,
        unpinned_count=8,
        unpinned_tokens=80,
        covered_position=6,
        covered_count=5,
        covered_tokens=50,
    )
    claim = values.Claim(1, values.SessionName("default", "key"), "token", 0, 2, 1, 0.0, counters, summary=None)
    begun = values.rebuilding(claim, {})
    assert (begun.rebuilding, begun.summary) == (True, None)
    assert begun.counters == Counters(last_position=6, unpinned_count=5, unpinned_tokens=50)
    newest = models.Summary(version=2, last_position=3, covered_count=2, covered_tokens=20)
    continued = values.rebuilding(claim, {1: models.Summary(version=1), 2: newest})
    assert continued.summary == newest.value
    assert continued.counters == Counters(
        last_position=6,
        unpinned_count=5,
        unpinned_tokens=50,
        covered_position=3,
        covered_count=2,
        covered_tokens=20,
    )


@pytest.mark.parametrize(
    ("versions", "line"),
    [
        ([], []),
        ([(4, None, "now"), (5, 4, "now"), (6, 5, "now")], [4, 5, 6]),
        ([(4, None, "earlier"), (5, 4, "earlier")], []),
        # Another prompt ends the line. A version that was made from that version is not continued.
        ([(4, None, "now"), (5, 4, "earlier"), (6, 5, "now")], [4]),
        # A process that was overtaken made version 6 from version 4.
        ([(4, None, "now"), (5, 4, "now"), (6, 4, "now"), (7, 5, "now")], [4, 5, 7]),
        ([(4, None, "now"), (5, None, "now"), (6, 5, "now")], [4]),
        ([(4, 3, "now"), (5, 4, "now")], []),
    ],
)
def test_a_rebuild_continues_what_was_made_with_this_prompt_one_from_the_other(
    versions: list[tuple[int, int | None, str]], line: list[int]
) -> None:
    unfinished = [
        models.Summary(version=version, parent_version=parent, prompt_hash=prompt)
        for version, parent, prompt in versions
    ]
    assert list(values.building_line(unfinished, "now")) == line


def test_a_session_that_is_gone_is_named() -> None:
    assert "'main'" in str(values.gone(SessionName("default", "main")))


def test_the_type_of_who_cannot_own_a_session_is_named() -> None:
    assert "type dict" in str(values.no_owner({}))
