"""The words that differ between two versions of a summary."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from django_convmemory.admin.page import words

TEXTS = st.lists(
    st.sampled_from(
        ["Ines ", "likes ", "tea", "2025-02-13", "\n", ". ", ".", "example.org", "车票", "。", " ", "3,500 "]
    )
).map("".join)


@given(TEXTS.filter(bool), TEXTS)
def test_the_runs_make_both_texts(before: str, after: str) -> None:
    runs = words(before, after)
    assert "".join(run.text for run in runs if run.kind != "gone") == after
    assert "".join(run.text for run in runs if run.kind != "new") == before


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        # A date is one word.
        ("2025-02-13\nTea.", "2025-04-03\nTea.", [("gone", "2025-02-13\n"), ("new", "2025-04-03\n")]),
        # A sentence that goes on is compared by words.
        ("Marta likes tea.", "Ines likes tea.", [("gone", "Marta "), ("new", "Ines ")]),
        ("他喜欢茶。", "她喜欢茶。", [("gone", "他"), ("new", "她")]),
        # Another sentence is not mixed with it, word by word.
        (
            "Tool: tables(city=Bled) found 3.\nFine.",
            "Assistant: Gostilna has one free.\nFine.",
            [("gone", "Tool: tables(city=Bled) found 3.\n"), ("new", "Assistant: Gostilna has one free.\n")],
        ),
    ],
)
def test_what_is_marked(before: str, after: str, changed: list[tuple[str, str]]) -> None:
    assert [run for run in words(before, after) if run.kind != "same"] == changed


def test_texts_with_many_equal_words_are_not_compared() -> None:
    assert [run.kind for run in words("a b " * 500, "a " * 1000)] == ["same"]
