"""No text stops compaction: what has no words is carried over, and what no model can summarize as well."""

from __future__ import annotations

from typing import Any

import pytest

from django_convmemory import exceptions, models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.maintenance import integrity
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.store import Store
from django_convmemory.store.orm import ORMStore
from tests.chunks import assert_sound, covered_position, versions
from tests.folding import MarkerModel, build, covered, outcomes, session, talk

pytestmark = pytest.mark.django_db

POISON = {
    "dots": [ChatMessage.human("." * 60_000)],
    "dashes": [ChatMessage.human("—" * 20_000)],
    "emoji": [ChatMessage.human("🙂" * 20_000)],
    "blank": [ChatMessage.human(" \n" * 5) for _ in range(300)],
    "empty": [ChatMessage.human("") for _ in range(300)],
}
poisons = pytest.mark.parametrize("poison", POISON.values(), ids=POISON)


def poisoned(store: Store, model: Any, poison: list[ChatMessage], **options: Any) -> ConversationMemory:
    """A memory with a session that begins with ``poison``, and has four messages with words after it."""
    memory = build(model, store=store, max_chunk_tokens=2000, **options)
    memory.append("s", *poison)
    for number in range(1, 5):
        memory.append("s", ChatMessage.human(f"[[{number}]] " + "word " * 40))
    return memory


def carried(store: Store) -> list[bool]:
    assert isinstance(store, ORMStore)
    return list(models.Summary.objects.order_by("version").values_list("carried", flat=True))


@poisons
def test_a_session_that_begins_without_words_is_folded(store: Store, poison: list[ChatMessage]) -> None:
    model = MarkerModel(lambda request: assert_sound(memory))
    memory = poisoned(store, model, poison)
    assert memory.compact("s") == "published"
    context = memory.load("s")
    assert (covered_position(memory), context.omitted) == (len(poison) + 3, 0)
    assert covered(context.summary or "") == [1, 2, 3]
    assert memory.compact("s") == "not_due"
    assert_sound(memory)


@poisons
def test_what_has_no_words_costs_no_call(store: Store, poison: list[ChatMessage]) -> None:
    memory = build(ScriptedChatModel([]), store=store, max_chunk_tokens=2000)
    memory.append("s", *poison, ChatMessage.human("and"))
    memory.compact("s")
    context = memory.load("s")
    # The newest messages stay, up to half of the limit of 60 tokens.
    assert covered_position(memory) == len(poison) + 1 - len(context)
    assert 1 <= len(context) <= 30
    assert (context.summary, {part.name for part in context.parts}, context.omitted) == (None, {"tail"}, 0)
    assert {version.text for version in versions(memory)} == {""}
    assert_sound(memory)
    if isinstance(store, ORMStore):
        assert all(carried(store))
        assert outcomes() == []


def test_a_recount_gives_an_empty_summary_no_tokens() -> None:
    memory = build(MarkerModel(), store=ORMStore())
    memory.append("s", ChatMessage.human("." * 1000), ChatMessage.ai("!" * 200))
    assert memory.compact("s") == "published"
    assert integrity.recount(memory, session().pk, using="default")
    assert list(models.Summary.objects.values_list("text", "tokens")) == [("", 0)]
    assert_sound(memory)


def test_the_summary_stays_as_it_is_while_a_chunk_without_words_is_folded(store: Store) -> None:
    memory = build(ScriptedChatModel(["They talked about order 4711."]), store=store, max_chunk_tokens=2000)
    talk(memory, 10)
    assert memory.compact("s") == "published"
    memory.append("s", ChatMessage.human("-" * 9000), ChatMessage.ai("Fine."))
    memory.model = ScriptedChatModel(["They talked about order 4711, and more."])
    assert memory.compact("s") == "published"
    context = memory.load("s")
    assert (context.summary, covered_position(memory)) == ("They talked about order 4711, and more.", 11)
    assert_sound(memory)
    if isinstance(store, ORMStore):
        assert carried(store) == [False, False, True]


def test_a_part_without_words_is_carried_within_a_long_message(store: Store) -> None:
    model = MarkerModel(lambda request: assert_sound(memory))
    memory = build(model, store=store, max_chunk_tokens=1000)
    memory.append("s", ChatMessage.human("[[1]] " + "word " * 1500 + "." * 20_000 + " [[2]] " + "word " * 1500))
    memory.append("s", ChatMessage.ai("Well. " * 30), ChatMessage.human("Thanks. " * 30))
    assert memory.compact("s") == "published"
    assert covered(memory.load("s").summary or "") == [1, 2]
    assert_sound(memory)
    if isinstance(store, ORMStore):
        first = models.Summary.objects.filter(last_position=1)
        assert first.filter(carried=True).exists()
        assert first.filter(carried=False).count() > 3


BLANKS = ["NONE", "", "   ", "n/a", "..."]


@pytest.mark.parametrize("answer", BLANKS)
def test_a_blank_answer_to_words_stays_a_failure_without_a_fallback(store: Store, answer: str) -> None:
    memory = poisoned(store, ScriptedChatModel([answer] * 9), POISON["dots"])
    for _ in range(3):
        assert memory.compact("s") == "stalled"
    # The message before, which has no words, is covered.
    assert covered_position(memory) == 1
    context = memory.load("s")
    assert (context.summary, context.omitted, context.pending) == (None, 0, True)
    assert_sound(memory)


@pytest.mark.parametrize(
    ("answer", "stand_in"),
    [
        ("NONE", "NONE"),
        ("", "   "),
        (exceptions.ContentRefused("no"), "NONE"),
        (exceptions.ContentRefused("no"), exceptions.ContentRefused("no")),
    ],
)
def test_a_chunk_that_neither_model_can_summarize_is_carried(store: Store, answer: Any, stand_in: Any) -> None:
    fallback = ScriptedChatModel([stand_in] * 9)
    memory = poisoned(store, ScriptedChatModel([answer] * 9), POISON["dots"], fallback=fallback, fallback_after=0)
    for _ in range(memory.options.max_attempts + 1):
        outcome = memory.compact("s")
        if outcome == "published" and covered_position(memory) == 4:
            break
    context = memory.load("s")
    assert (covered_position(memory), context.summary, context.omitted) == (4, None, 0)
    assert memory.compact("s") == "not_due"
    assert_sound(memory)
    if isinstance(store, ORMStore):
        assert all(carried(store))


def test_a_fallback_that_is_down_does_not_make_a_chunk_hopeless(store: Store) -> None:
    """The text may be fine: nobody has said that it cannot be summarized."""
    fallback = ScriptedChatModel([exceptions.ModelUnavailable("down")] * 9)
    memory = poisoned(
        store, ScriptedChatModel([exceptions.ContentRefused("no")] * 9), [ChatMessage.human("Hi.")], fallback=fallback
    )
    assert memory.compact("s") == "stalled"
    assert covered_position(memory) == 0


def test_a_model_that_answers_again_goes_on_after_a_carried_chunk(store: Store) -> None:
    model = ScriptedChatModel([exceptions.ContentRefused("no"), "They talked about order 4711."])
    fallback = ScriptedChatModel([exceptions.ContentRefused("no")])
    memory = build(model, store=store, fallback=fallback)
    talk(memory, 10)
    assert memory.compact("s") == "published"
    assert memory.load("s").summary is None
    talk(memory, 10)
    assert memory.compact("s") == "published"
    assert memory.load("s").summary == "They talked about order 4711."
    assert_sound(memory)
