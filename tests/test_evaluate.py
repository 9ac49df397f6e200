"""``python -m benchmarks.evaluate`` says what summaries keep, and where the rest went."""

from __future__ import annotations

import contextlib
from io import StringIO
from typing import Any

import pytest

from benchmarks import evaluate as evaluating
from benchmarks.evaluate import Fold, Lost, evaluate
from django_convmemory import models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from tests.folding import build, session

pytestmark = pytest.mark.django_db

REPLIES = (
    "Order 88123-B, for 20 euros. Mail ann@example.org.",
    "Order 88123-B, with a \x1b[31mred parcel 55512.",
    "An order, and a parcel.",
)


def folded(*replies: str, key: str = "s", name: str = "careful", **options: Any) -> ConversationSummaryBufferMemory:
    """A session whose messages name an order, an amount, an address and a parcel, folded with these replies."""
    model = ScriptedChatModel(list(replies), name=name)
    memory = build(model, **options)
    said = ["Order 88123-B cost 20 euros. I am ann@example.org.", "The parcel is 55512.", "Nothing more."]
    for text, _ in zip(said, replies, strict=False):
        memory.append(key, ChatMessage.human(text + " word" * 60), ChatMessage.ai("Well. " * 40))
        assert memory.compact(key) == "published"
    return memory


def run(*arguments: str) -> str:
    output = StringIO()
    with contextlib.redirect_stdout(output):
        evaluating.main(arguments)
    return output.getvalue()


def test_a_session_is_compared_with_its_messages() -> None:
    # Room for one identifier in the line.
    memory = folded(*REPLIES, max_summary_tokens=62)
    evaluation = evaluate(session())
    assert evaluation is not None
    prompt = memory.requests.prompt_hash
    line = (memory.load("s").summary or "").partition("Also mentioned by the ")[2]
    assert line == 'user: "55512"'
    assert (evaluation.said, evaluation.in_text, evaluation.in_line) == (4, 0, 1)
    assert sorted(evaluation.lost) == [
        Lost("20 euros", 1, 3, "careful", prompt, True),
        Lost("88123-B", 1, 3, "careful", prompt, True),
        Lost("ann@example.org", 1, 2, "careful", prompt, True),
    ]
    assert [fold._replace(tokens=0) for fold in evaluation.folds] == [
        Fold(1, "careful", prompt, 0, given=3, kept=3),
        Fold(2, "careful", prompt, 0, given=4, kept=2),
        Fold(3, "careful", prompt, 0, given=2, kept=0),
    ]


def test_a_session_without_a_summary_is_left_out() -> None:
    memory = folded()
    memory.append("s", ChatMessage.human("Order 88123-B"))
    assert evaluate(session()) is None
    assert run() == (
        "default: 0 sessions with a summary, 0 identifiers said\n"
        "  in the model's text: 0\n  in the line of identifiers: 0\n  lost: 0\n"
    )


def test_a_redacted_message_has_said_nothing() -> None:
    memory = folded(REPLIES[0], "They talked of a parcel.", "They talked.", *["They met, word for word."] * 3)
    memory.redact("s", 1)
    assert memory.compact("s") == "published"
    evaluation = evaluate(session())
    assert evaluation is not None
    assert evaluation.said == 1


def test_two_models_are_compared() -> None:
    memory = folded(*REPLIES[:2], key="a")
    folded(*["They talked."] * 3, key="b", name="forgetful", instructions="Be brief.")
    prompt = memory.requests.prompt_hash[:8]
    text = run("--lost")
    other = models.Summary.objects.filter(model="forgetful").values_list("prompt_hash", flat=True)[0][:8]
    assert other != prompt
    tokens = [
        sum(values) / len(values)
        for name in ("careful", "forgetful")
        if (values := list(models.Summary.objects.filter(model=name).values_list("tokens", flat=True)))
    ]
    assert text == (
        "default: 2 sessions with a summary, 8 identifiers said\n"
        "  in the model's text: 2 (25%)\n"
        "  in the line of identifiers: 6 (75%)\n"
        "  lost: 0 (0%)\n"
        f"  careful, prompt {prompt}: kept 5 of 7 (71%) in 2 folds, {tokens[0]:.0f} tokens each\n"
        f"  forgetful, prompt {other}: kept 0 of 4 (0%) in 2 folds, {tokens[1]:.0f} tokens each\n"
    )


def test_the_lost_ones_are_listed() -> None:
    memory = folded(*REPLIES, max_summary_tokens=62)
    lines = run("--lost").splitlines()
    prompt = memory.requests.prompt_hash[:8]
    line = f"  session {session().pk}: 20 euros, last said at 1, lost in version 3 (careful, prompt {prompt}), "
    assert f"{line}found by a search" in lines
    assert "  lost, but found by a search: 3 of 3 (100%)" in lines
    assert len([line for line in lines if "last said at" in line]) == 3
    assert not [line for line in run().splitlines() if "last said at" in line]


def test_the_sessions_with_the_newest_changes_are_looked_at() -> None:
    for key in ("a", "b", "c"):
        folded(REPLIES[0], key=key)
    assert run("--limit", "2").startswith("default: 2 sessions")
    assert run("--limit", "0", "--alias", "default").startswith("default: 0 sessions")
