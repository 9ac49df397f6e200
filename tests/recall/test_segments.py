"""The index as text: what is added, removed and cut leaves the bytes that there would be otherwise."""

from __future__ import annotations

import collections
import datetime as dt
import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given, strategies as st

from django_convmemory.rules import segments
from django_convmemory.rules.segments import Document, Segment
from django_convmemory.search import tokenizer

# Few terms, so that messages have some in common, and characters that the format uses itself.
HOSTILE = [
    "\n",
    "\t",
    "\f",
    "¶",
    "\r",
    "\0",
    " ",
    ":",
    "0",
    "12",
    "!",
    "\u2028",
    "\x85",
    "\x1c",
    "a\nb\tc\fd",
    "!\t!",
    "de:x",
    "À",
    "",
]
TERMS = st.one_of(
    st.sampled_from(["cat", "dog", "猫", "de:katze", "1", "naïve"]),
    st.sampled_from(HOSTILE),
    st.text(max_size=5),
)
DOCUMENTS = st.builds(
    Document,
    st.lists(TERMS, max_size=8),
    st.booleans(),
    st.integers(-1, 2**40),
    st.frozensets(st.sampled_from(["==", "=anna", "=a\tb", "=猫"]), max_size=2),
)


def split(documents: Sequence[Document], lengths: Iterable[int]) -> list[list[Document]]:
    """Divide ``documents`` into batches of these lengths, which repeat."""
    rest = list(documents)
    batches: list[list[Document]] = []
    for length in itertools.cycle(lengths):
        if not rest:
            return batches
        batches.append(rest[:length])
        rest = rest[length:]
    return batches


def appended(batches: Iterable[Sequence[Document]], first: int = 1) -> list[Segment]:
    """The segments that a store has after the batches came one after the other."""
    stored: dict[int, Segment] = {}
    position = first
    for batch in batches:
        last = stored[max(stored)] if stored else None
        stored.update((segment.first, segment) for segment in segments.extended(last, position, batch))
        position += len(batch)
    return [stored[key] for key in sorted(stored)]


def postings(found: Iterable[Segment]) -> list[tuple[str, int, int]]:
    return sorted(posting for segment in found for posting in segments.terms(segment))


@given(st.lists(DOCUMENTS, max_size=40), st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 10**12))
@example([Document(["cat"], begins_sitting=False)] * 300, [1], 1)
@example([Document([f"w{number:06}" * 8 for number in range(200)], begins_sitting=False)] * 12, [5], 1)
def test_it_makes_no_difference_how_documents_arrive(documents: list[Document], lengths: list[int], first: int) -> None:
    assert appended(split(documents, lengths), first) == segments.extended(None, first, documents)


@given(st.lists(DOCUMENTS, min_size=1, max_size=12), st.data())
def test_a_struck_message_is_as_if_it_had_been_empty(documents: list[Document], data: st.DataObject) -> None:
    [segment] = segments.extended(None, 5, documents)
    number = data.draw(st.integers(0, len(documents) - 1))
    emptied = list(documents)
    emptied[number] = documents[number]._replace(terms=[], speakers=frozenset())

    assert [segments.struck(segment, 5 + number)] == segments.extended(None, 5, emptied)


@given(st.lists(DOCUMENTS, min_size=1, max_size=12), st.data())
def test_a_trimmed_segment_is_as_if_the_rest_had_not_come(documents: list[Document], data: st.DataObject) -> None:
    [segment] = segments.extended(None, 5, documents)
    count = data.draw(st.integers(1, len(documents)))

    trimmed = segments.trimmed(segment, 4 + count)

    assert [trimmed] == segments.extended(None, 5, documents[:count])
    assert appended([documents[:count], documents[count:]], 5) == [segment]


@given(st.lists(DOCUMENTS, min_size=1, max_size=12))
def test_the_segments_have_every_term_of_every_message(documents: list[Document]) -> None:
    found = postings(segments.extended(None, 1, documents))

    expected = collections.Counter(
        (clean, position)
        for position, document in enumerate(documents, 1)
        for term in (*document.terms, *document.speakers)
        if (clean := "".join(character for character in term if character >= " " and character != "¶"))
    )
    assert found == sorted((term, position, count) for (term, position), count in expected.items())


def test_a_segment_has_room_for_128_messages() -> None:
    found = segments.extended(None, 1, [Document([], begins_sitting=False)] * 300)

    assert [(segment.first, segment.last) for segment in found] == [(1, 128), (129, 256), (257, 300)]


def test_a_segment_is_full_at_64_kilobytes() -> None:
    documents = [Document([f"{number}猫{term}" for term in range(1500)], begins_sitting=False) for number in range(20)]
    found = segments.extended(None, 1, documents)

    assert len(found) > 5
    assert all(segment.last > segment.first for segment in found[:-1])
    assert all(len(segment.data.encode()) <= segments.MAX_BYTES for segment in found)
    assert [segment.first for segment in found[1:]] == [segment.last + 1 for segment in found[:-1]]


def test_a_message_that_is_too_long_has_a_segment_of_its_own() -> None:
    long = Document([f"{number:064}" for number in range(2000)], begins_sitting=False)
    short = Document(["cat"], begins_sitting=False)

    found = segments.extended(None, 1, [short, long, short])

    assert [(segment.first, segment.last) for segment in found] == [(1, 1), (2, 2), (3, 3)]


def test_a_segment_that_had_room_is_replaced() -> None:
    document = Document(["cat"], begins_sitting=False)
    [last] = segments.extended(None, 1, [document])

    assert [segment.first for segment in segments.extended(last, 2, [document] * 127)] == [1]
    assert [segment.first for segment in segments.extended(last, 2, [document] * 128)] == [1, 129]
    [full] = segments.extended(last, 2, [document] * 127)
    assert [segment.first for segment in segments.extended(full, 129, [document])] == [129]
    assert segments.extended(full, 129, []) == []


def test_positions_that_do_not_fit_are_refused() -> None:
    [segment] = segments.extended(None, 5, [Document(["cat"], begins_sitting=False)] * 3)

    with pytest.raises(ValueError, match="ends at the position 7, so it cannot be extended from 9"):
        segments.extended(segment, 9, [])
    for position in (4, 8):
        with pytest.raises(ValueError, match=r"is not in the segment 5\.\.7"):
            segments.struck(segment, position)
        with pytest.raises(ValueError, match=rf"5\.\.7 cannot end at the position {position}"):
            segments.trimmed(segment, position)


@pytest.mark.parametrize(
    ("minutes", "begins"), [(None, True), (0, False), (59, False), (60, True), (600, True), (-5, False)]
)
def test_a_sitting_ends_at_a_gap_of_an_hour(minutes: int | None, begins: bool) -> None:
    now = dt.datetime(2026, 11, 24, 12, tzinfo=dt.UTC)
    previous = None if minutes is None else now - dt.timedelta(minutes=minutes)

    assert segments.begins_sitting(now, previous) is begins


@given(st.integers(0, 2100))
def test_lengths_are_rounded_down_by_six_per_cent_at_most(length: int) -> None:
    [segment] = segments.extended(None, 1, [Document(["cat"] * length, begins_sitting=False)])

    kept = segments.divided(segment.data)[0].terms
    assert 0.94 * length <= kept <= length
    assert kept == length or length > 60


def test_the_characters_of_the_format_are_distinct() -> None:
    assert len(set(segments.PLACES)) == len(segments.LENGTHS) == segments.MAX_MESSAGES
    assert not {*segments.PLACES} & {"\t", "\n", " ", tokenizer.TAG_END, segments.BUCKET}
    assert list(segments.PLACES) == sorted(segments.PLACES)
    assert segments.PLACES.encode("latin-1")
    assert list(segments.LENGTHS) == sorted(set(segments.LENGTHS))
