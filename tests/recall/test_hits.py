"""The passage that shows why a message was found."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
from hypothesis import example, given, strategies as st

from django_convmemory.search import hits, tokenizer
from django_convmemory.search.hits import Marks
from tests.recall import test_tokenizer

FILLER = "nothing of interest is here and "
TEXTS = st.one_of(
    st.text("ab cat\n.猫很黑é\u0301\u200d👩🏽🇩🇪न\u093f", max_size=200),
    st.lists(st.sampled_from(["cat", "LC-204817", "house,", "猫很黑", "x" * 40, "\n", "🇩🇪"]), max_size=60).map(
        " ".join
    ),
)


class Excerpt(NamedTuple):
    text: str
    marks: Marks


def marked(found: Excerpt) -> list[str]:
    return [found.text[start:end] for start, end in found.marks]


def passage(text: str, query: str, length: int = 240) -> Excerpt:
    return Excerpt(*hits.excerpt(text, tokenizer.query(query), length=length))


@pytest.mark.parametrize(
    ("text", "query", "marks"),
    [
        ("I was painting the houses.", "house paint", ["painting", "houses"]),
        ("Die Rechnungen kamen", "Rechnung", ["Rechnungen"]),
        ("Ｏｒｄｅｒ　１２３４", "order 1234", ["Ｏｒｄｅｒ", "１２３４"]),
        ("in a cafe\u0301!", "café", ["cafe\u0301"]),
        # Bigrams that overlap make one mark.
        ("我家的猫很可爱", "猫很可爱", ["猫很可爱"]),
        ("我家的猫很可爱", "猫", ["猫"]),
        ("昨日ﾊﾞｽで", "バ", ["ﾊﾞ"]),
        ("order LC-204817 and LC204817", "lc-204817", ["LC-204817", "LC204817"]),
        ("order LC-204817", "204817", ["204817"]),
        ("write to Anna.Müller@firma.de", "anna.muller@firma.de", ["Anna.Müller@firma.de"]),
        ("nothing here", "cat", []),
        ("nothing here", "", []),
        ("", "cat", []),
    ],
)
def test_a_short_text_is_shown_whole_with_its_matches_marked(text: str, query: str, marks: list[str]) -> None:
    found = passage(text, query)

    assert found.text == text
    assert marked(found) == marks


def test_the_passage_with_most_words_is_shown() -> None:
    text = f"A cat. {FILLER * 20}The dog saw the cat. {FILLER * 20}A cat, a cat, a cat."

    found = passage(text, "dog and cat", 100)

    assert marked(found) == ["dog", "cat"]
    assert found.text.startswith("…")
    assert found.text.endswith("…")
    assert found.text.strip("…") in text


def test_of_equal_passages_the_first_is_shown() -> None:
    text = f"The first cat. {FILLER * 20} The second cat."

    assert passage(text, "cat", 60).text.startswith("The first cat.")


def test_without_a_match_the_beginning_is_shown() -> None:
    text = FILLER * 20

    assert passage(text, "cat", 60) == Excerpt("nothing of interest is here and nothing of interest is…", ())


def test_the_end_is_shown_whole() -> None:
    assert passage(FILLER * 20 + "the cat", "cat", 60).text.endswith(" here and the cat")


@given(TEXTS, st.sampled_from(["cat", "LC-204817 houses", "猫 黑猫", "xxx", ""]), st.integers(3, 80))
@example("很猫很很", "猫 黑猫", 3)
def test_an_excerpt_is_a_passage_with_marks_in_it(text: str, query: str, length: int) -> None:
    found = passage(text, query, length)

    assert len(found.text) <= length
    assert found.text.removeprefix("…").removesuffix("…") in text or found.text in text
    assert (found.text == text) == (len(text) <= length)
    assert found.text.startswith("…") or text.startswith(found.text.removesuffix("…"))
    assert found.text.endswith("…") or text.endswith(found.text.removeprefix("…"))
    previous = -1
    for start, end in found.marks:
        assert previous < start < end <= len(found.text)
        previous = end


@given(TEXTS | st.text(max_size=80))
def test_a_text_is_found_by_itself(text: str) -> None:
    query = tokenizer.query(text)

    assert bool(hits.excerpt(text, query, length=1000)[1]) == (not query.empty)


@given(TEXTS | st.text(max_size=80))
def test_a_text_is_found_by_single_characters(text: str) -> None:
    for character in text:
        if tokenizer.is_unspaced(character) and character.isalpha():
            assert passage(text, character, 1000).marks


@given(
    st.lists(st.sampled_from(["cat", "house", "interesting", "things,", "\n"]), min_size=60, max_size=80).map(" ".join)
)
def test_words_are_not_cut(text: str) -> None:
    found = passage(text, "cat", 100)

    assert set(found.text.replace("…", " ").split()) <= set(text.split())
    assert len(found.text) > 30


@pytest.mark.parametrize("character", ["👩🏽\u200d🚀", "🇩🇪", "👍🏿", "\r\n", "ก\u0e34", "か\u3099"])
@pytest.mark.parametrize("length", range(20, 26))
def test_characters_made_of_several_are_not_cut(character: str, length: int) -> None:
    text = character * 15 + "猫。" + character * 15

    found = passage(text, "猫", length)

    before, _, after = found.text.strip("…").partition("猫。")
    assert marked(found) == ["猫"]
    assert before == character * (len(before) // len(character))
    assert after == character * (len(after) // len(character))
    assert before.strip() or character.isspace()
    assert after.strip() or character.isspace()


def test_a_word_of_a_script_with_spaces_is_not_cut() -> None:
    assert passage("नि" * 15 + "猫" + "e\u0301" * 15, "猫", 25) == Excerpt("…猫…", ((1, 2),))


def test_a_match_that_is_longer_than_the_passage_is_cut() -> None:
    found = passage("see " + "x" * 500, "x" * 500, 50)

    assert len(found.text) <= 50
    assert marked(found) == [found.text.strip("…")]


@pytest.mark.parametrize("text", test_tokenizer.MEGABYTES, ids=lambda text: repr(text[:4]))
def test_a_megabyte_takes_a_bounded_time(text: str) -> None:
    query = tokenizer.query("cat dog 猫很 LC-204817 猫")
    start = time.process_time()

    assert 0 < len(hits.excerpt(text, query)[0]) <= 240
    assert time.process_time() - start < 5
