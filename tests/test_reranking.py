"""A reranker: it changes the order of what a search has found, and nothing else."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.search import reranking
from django_convmemory.search.ranking import Match
from django_convmemory.search.reranking import Found
from tests.indexes import build, say

Scores = Callable[[Sequence[Found]], Any]


def by_position(found: Sequence[Found]) -> list[float]:
    return [place.position for place in found]


class Judge:
    """A reranker that notes what it was asked."""

    def __init__(self, scores: Scores = by_position) -> None:
        self.scores = scores
        self.asked: list[tuple[str, Sequence[Found]]] = []
        self.prepared: list[int] = []

    def rerank(self, query: str, found: Sequence[Found]) -> Sequence[float]:
        self.asked.append((query, found))
        scores: Sequence[float] = self.scores(found)
        return scores

    def prepare(self, session_id: int) -> None:
        self.prepared.append(session_id)


class Broken(Judge):
    def prepare(self, session_id: int) -> None:
        raise OSError("no network")


def positions(memory: ConversationMemory, **options: Any) -> list[int]:
    return [hit.position for hit in memory.search("heron", session="s", **options)]


@pytest.mark.django_db
def test_a_search_has_the_order_of_the_reranker_over_all_pages() -> None:
    judge = Judge(lambda found: [-place.position for place in found])
    memory = build(reranker=judge)
    say(memory, 30)
    assert positions(memory, limit=10) == [*range(1, 11)]
    assert positions(memory, limit=10, offset=10) == [*range(11, 21)]
    query, found = judge.asked[0]
    assert query == "heron"
    assert sorted(place.position for place in found) == [*range(1, 31)]
    assert memory.search("heron", session="s", limit=1)[0].score == -1


@pytest.mark.django_db
def test_a_search_without_matches_and_the_quotes_of_a_context_ask_no_reranker() -> None:
    judge = Judge()
    memory = build(reranker=judge)
    say(memory, 30)
    assert memory.search("quetzal", session="s") == []
    assert memory.load("s", recall="heron number 3").recalled
    assert judge.asked == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "scores",
    [
        lambda found: 1 / 0,
        lambda found: [1.0],
        lambda found: [None] * 30,
        lambda found: ["a"] * 30,
        lambda found: [1.0, math.nan] * 15,
        lambda found: [math.inf] * 30,
    ],
)
def test_a_reranker_that_fails_leaves_the_order_of_the_words(scores: Scores, caplog: pytest.LogCaptureFixture) -> None:
    memory = build()
    say(memory, 30)
    expected = positions(memory)
    memory.reranker = Judge(scores)
    assert positions(memory) == expected
    assert "order of the words" in caplog.text


def test_a_match_beyond_the_first_200_keeps_its_place() -> None:
    matches = [Match(0, number, 1000.0 - number, 1.0) for number in range(300)]
    judge = Judge()
    ordered = reranking.reranked(judge, "heron", matches, [7])
    assert [match.position for match in ordered] == [*range(199, -1, -1), *range(200, 300)]
    assert len(judge.asked[0][1]) == reranking.MOST
    assert judge.asked[0][1][0] == Found(7, 0, 1000.0)


@pytest.mark.django_db
def test_a_worker_lets_the_reranker_prepare_the_session(caplog: pytest.LogCaptureFixture) -> None:
    judge = Judge()
    memory = build(reranker=judge)
    say(memory, 1)
    memory.compact_id(1_000_000)
    assert judge.prepared == [1_000_000]
    memory.reranker = Broken()
    with caplog.at_level(logging.ERROR):
        memory.compact_id(1_000_000)
    assert "could not prepare session 1000000" in caplog.text


def test_the_setting_names_a_reranker_and_e015_reports_a_wrong_one() -> None:
    def setting(path: str) -> override_settings:
        return override_settings(CONVMEMORY={"default": {"RERANKER": {"BACKEND": path}}})

    with setting(f"{__name__}.Judge"):
        assert isinstance(memories["default"].reranker, Judge)
    with setting("datetime.timezone"), pytest.raises(ImproperlyConfigured, match="E015"):
        memories["default"]
    assert memories["default"].reranker is None
