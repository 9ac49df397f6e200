"""How much of real conversations is found. ``benchmarks/recall_quality.py`` prints the whole table."""

from __future__ import annotations

import pytest

from benchmarks import recall_quality
from django_convmemory.search import ranking, tokenizer
from tests import dialogues

pytestmark = dialogues.needed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text_alone", "least"),
    # 70.1, 78.0, 85.7 and 89.3 were measured, and 64.1, 72.9, 81.8 and 85.7.
    [(False, (69, 77, 85, 88)), (True, (63, 72, 81, 85))],
    ids=["name, text and caption", "text alone"],
)
def test_most_of_the_turns_that_answer_a_question_are_found(text_alone: bool, least: tuple[int, ...]) -> None:
    conversations = recall_quality.locomo(dialogues.FOLDER, text_alone=text_alone)

    found, _ = recall_quality.found_by(recall_quality.ours, conversations)

    shares = recall_quality.recall(found, recall_quality.ANSWERED)
    for depth, share, enough in zip(recall_quality.DEPTHS, shares, least, strict=True):
        assert share >= enough, depth


@pytest.mark.slow
def test_the_candidates_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 10 are as if all messages were compared, and nearly always the first 50."""
    conversations = recall_quality.locomo(dialogues.FOLDER)
    queries = [
        (recall_quality.index(conversation.turns), tokenizer.query(question.text))
        for conversation in conversations
        for question in conversation.questions[::5]
    ]

    def found() -> list[list[int]]:
        return [[match.position for match in ranking.rank([index], query, limit=50)] for index, query in queries]

    with_candidates = found()
    monkeypatch.setattr(ranking, "CANDIDATES", 10**6)
    with_all = found()

    assert [best[:10] for best in with_candidates] == [best[:10] for best in with_all]
    same = sum(best == other for best, other in zip(with_candidates, with_all, strict=True))
    assert same >= 0.99 * len(with_all)


def test_chinese_names_are_found() -> None:
    found = recall_quality.planted(dialogues.FOLDER)

    # 99 and 100 were measured.
    assert sum(name.asked for name in found) >= 95
    assert sum(name.alone for name in found) >= 99
    short = [name for name in found if len(name.name) == 2]
    assert sum(name.asked for name in short) >= 0.95 * len(short)


def test_the_index_is_small() -> None:
    # 54 bytes were measured.
    assert recall_quality.bytes_of_message(recall_quality.locomo(dialogues.FOLDER)) <= 60
