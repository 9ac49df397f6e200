"""The ranking: compared with a slow one, and what it promises."""

from __future__ import annotations

import itertools
import random
import string
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings, strategies as st

from django_convmemory.rules import segments
from django_convmemory.rules.segments import Document, Segment
from django_convmemory.search import ranking, tokenizer
from django_convmemory.search.ranking import Match
from django_convmemory.search.tokenizer import Query
from tests.recall import reference

if TYPE_CHECKING:
    from _typeshed import TraceFunction

TERMS = ["cat", "dog", "de:hund", "es:perr", "hous", "tree", "猫很", "很黑", "黑猫", "lc204817"]
WORDS = [("cat",), ("dog", "de:hund", "es:perr"), ("hous", "de:hund"), ("tree",), ("黑猫",), ("lc204817",), ("absent",)]
SPEAKERS = ["==", "=anna", "=ben"]
DOCUMENTS = st.builds(
    Document,
    st.lists(st.sampled_from(TERMS), max_size=6),
    st.sampled_from([False, False, False, True]),
    st.just(9),
    st.frozensets(st.sampled_from(SPEAKERS), max_size=2),
)
SESSIONS = st.lists(st.lists(DOCUMENTS, max_size=25), max_size=4)
QUERIES = st.builds(
    Query,
    st.dictionaries(st.sampled_from(WORDS), st.integers(1, 3), max_size=5),
    st.frozensets(st.sampled_from(["猫", "很"]), max_size=2),
    st.frozensets(st.sampled_from(SPEAKERS), max_size=2),
    st.sampled_from([frozenset[int](), frozenset({1}), frozenset({0, 2, 3, 9})]),
    st.sampled_from([0, 5, -3]),
)
PLACES = st.none() | st.integers(-2, 30)


def index(documents: Sequence[Document], first: int = 1) -> list[Segment]:
    return segments.extended(None, first, documents)


def of(*texts: str, apart: bool = True) -> list[Segment]:
    """Segments of messages with these terms. ``apart``: each is a sitting."""
    return index([Document(text.split(), apart) for text in texts])


def query(*words: str) -> Query:
    return Query({(word,): 1 for word in words}, frozenset())


def positions(matches: Sequence[Match]) -> list[int]:
    return [match.position for match in matches]


@given(SESSIONS, QUERIES, PLACES, PLACES)
@example([[Document(["cat"], False)] * 4] * 2, query("cat"), 2, None)
@example([[Document(["cat"], False)] * 4] * 2, Query({}, frozenset(), days=frozenset({0, 2})), None, None)
def test_the_scores_are_those_of_the_slow_ranking(
    sessions: list[list[Document]], query: Query, after: int | None, before: int | None
) -> None:
    hour = itertools.count(step=7)
    sessions = [[document._replace(hour=next(hour)) for document in documents] for documents in sessions]
    expected = reference.scores(reference.messages_of(sessions, after=after, before=before), query)

    matches = ranking.rank(list(map(index, sessions)), query, limit=1000, after=after, before=before)

    assert {(match.session, match.position) for match in matches} == expected.keys()
    for match in matches:
        scored = expected[match.session, match.position]
        assert match.score == pytest.approx(scored.score)
        assert match.share == pytest.approx(scored.share)
        assert match.score > 0
        assert 0 < match.share <= 1 + 1e-9
    assert [(-match.score, match.session, -match.position) for match in matches] == sorted(
        (-match.score, match.session, -match.position) for match in matches
    )


@settings(max_examples=min(20, settings().max_examples))
@given(st.lists(DOCUMENTS, min_size=130, max_size=150), QUERIES)
def test_the_scores_of_more_messages_than_are_compared(documents: list[Document], query: Query) -> None:
    expected = reference.scores(reference.messages_of([documents]), query)

    matches = ranking.rank([index(documents)], query, limit=1000)

    for match in matches:
        scored = expected[match.session, match.position]
        assert (match.score, match.share) == pytest.approx(scored)
    # Those with the best words of their own are compared, and so are their neighbours.
    assert len(matches) >= min(ranking.CANDIDATES, len(expected))


@given(SESSIONS, QUERIES, PLACES, PLACES, st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_the_division_into_segments_changes_nothing(
    sessions: list[list[Document]], query: Query, after: int | None, before: int | None, lengths: list[int]
) -> None:
    divided: list[list[Segment]] = []
    for documents in sessions:
        divided.append([])
        first = 0
        while first < len(documents):
            length = lengths[first % len(lengths)]
            divided[-1] += index(documents[first : first + length], first + 1)
            first += length

    assert ranking.rank(divided, query, limit=30, after=after, before=before) == ranking.rank(
        list(map(index, sessions)), query, limit=30, after=after, before=before
    )


@given(SESSIONS, QUERIES, st.integers(0, 5))
def test_the_limit_cuts_the_matches(sessions: list[list[Document]], query: Query, limit: int) -> None:
    searched = list(map(index, sessions))

    assert ranking.rank(searched, query, limit=limit) == ranking.rank(searched, query, limit=1000)[:limit]


def test_a_message_whose_neighbours_have_the_words_is_better() -> None:
    texts = ["x", "cat", "x", "x", "x", "x", "dog", "cat", "dog", "x", "x"]

    found = positions(ranking.rank([of(*texts, apart=False)], query("cat", "dog"), limit=20))

    assert found.index(8) < found.index(2)


def test_of_equal_messages_the_newest_are_compared() -> None:
    found = ranking.rank([of(*["cat"] * 1000), of(*["cat"] * 10)], query("cat"), limit=1000)

    assert positions(found) == list(range(1000, 900, -1))


def test_only_the_rarest_words_count() -> None:
    rare = [f"rare{number}" for number in range(ranking.MAX_WORDS)]
    texts = [" ".join(rare), *["common"] * 10]

    found = ranking.rank([of(*texts)], query("common", *rare), limit=20)

    assert positions(found) == [1]
    # 1 / (1 + K1): each word once in the message, whose length is about the average.
    assert found[0].share == pytest.approx(0.3, abs=0.1)


def test_words_that_no_message_has_do_not_displace_those_that_some_have() -> None:
    absent = [f"absent{number}" for number in range(500)]

    assert positions(ranking.rank([of("cat", "x")], query(*absent, "cat"), limit=1)) == [1]


@given(SESSIONS, QUERIES)
def test_a_long_query_is_looked_up_in_another_way_with_the_same_result(
    sessions: list[list[Document]], query: Query
) -> None:
    # A form that no message has is no other word.
    padded = {(*word, *(f"{word[0]}{number}" for number in range(60))): count for word, count in query.terms.items()}
    searched = list(map(index, sessions))

    assert ranking.rank(searched, query._replace(terms=padded), limit=30) == ranking.rank(searched, query, limit=30)


def operations(work: Callable[[], object]) -> int:
    """Return how many lines of Python ``work`` runs."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal count
        count += 1
        return note

    traced = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(traced)
    return count


def test_a_query_of_400_words_does_a_bounded_amount_of_work() -> None:
    randomly = random.Random(4)
    words = [f"{first}{second}box" for first in string.ascii_lowercase for second in string.ascii_lowercase][:500]
    documents = [Document(randomly.choices(words, k=12), number % 20 == 0) for number in range(10_000)]
    searched = [index(documents)]
    short, long = (tokenizer.query(" ".join(words[:count])) for count in (64, 400))
    assert len(long.terms) == 400

    work = operations(lambda: ranking.rank(searched, long, limit=10))

    # Each of the 400 words is looked up in each of the 79 segments. But only 32 of them are counted: each is in 240
    # messages.
    assert work - operations(lambda: ranking.rank(searched, short, limit=10)) < 30 * (400 - 64) * len(searched[0])


def test_a_query_of_a_whole_message_is_answered() -> None:
    text = " ".join(f"word{number}" for number in range(3000))
    terms = [f"word{number}" for number in range(200)]

    found = ranking.rank([index([Document(terms, False)])], tokenizer.query(text), limit=1)

    assert positions(found) == [1]
