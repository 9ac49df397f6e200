"""How much of real conversations is found. ``benchmarks/recall_quality.py`` prints the whole table."""

from __future__ import annotations

import pytest

from benchmarks import recall_quality
from tests import dialogues

pytestmark = dialogues.needed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text_alone", "least"),
    # 65.5, 74.8, 82.6 and 87.1 were measured, and 62.8, 71.7, 79.8 and 84.9.
    [(False, (64, 73, 81, 86)), (True, (61, 71, 78, 83))],
    ids=["name, text and caption", "text alone"],
)
def test_most_of_the_turns_that_answer_a_question_are_found(text_alone: bool, least: tuple[int, ...]) -> None:
    conversations = recall_quality.locomo(dialogues.FOLDER)

    found, _ = recall_quality.found_by(recall_quality.ours, conversations, text_alone=text_alone)

    shares = recall_quality.recall(found, recall_quality.ANSWERED)
    for depth, share, enough in zip(recall_quality.DEPTHS, shares, least, strict=True):
        assert share >= enough, depth


def test_chinese_names_are_found() -> None:
    found = recall_quality.planted(dialogues.FOLDER)

    # 99 and 100 were measured.
    assert sum(name.asked for name in found) >= 95
    assert sum(name.alone for name in found) >= 99
    short = [name for name in found if len(name.name) == 2]
    assert sum(name.asked for name in short) >= 0.95 * len(short)


def test_the_index_is_small() -> None:
    # 52 bytes were measured.
    assert recall_quality.bytes_of_message(recall_quality.locomo(dialogues.FOLDER)) <= 60
