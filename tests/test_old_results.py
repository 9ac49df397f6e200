"""Old results of tools give way to a short text: which ones, when, and that nothing else changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings, strategies as st

from django_convmemory import models
from django_convmemory.context.assembly import CLEARED, Context, Part
from django_convmemory.memory import ConversationBufferMemory, ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.options import Options
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from django_convmemory.tokens import Utf8TokenCounter
from tests import conversations
from tests.conversations import call
from tests.folding import MarkerModel, build
from tests.wire import validity
from tests.wire.test_prompt_caches import check as check_stable_prefix, is_continued

COUNTER = Utf8TokenCounter()


def buffer(newest: int | None, store: Store | None = None) -> ConversationMemory:
    return ConversationBufferMemory(
        store or InMemoryStore(), clear_tool_results=newest, scheduler=NullScheduler(), counter=COUNTER
    )


def results(context: Context) -> list[Part]:
    """The stored results of a context, in the order in which they came."""
    parts = [part for part in context.parts if part.message.role == "tool" and part.position]
    return sorted(parts, key=lambda part: part.position or 0)


def unseen(context: Context) -> list[Part]:
    """Those after which the model has said nothing."""
    spoke = max((part.position or 0 for part in context.parts if part.message.role == "assistant"), default=0)
    return [part for part in results(context) if (part.position or 0) > spoke]


def gave_way(context: Context) -> list[int]:
    return [part.position or 0 for part in results(context) if part.message.content == CLEARED]


def loop(calls: Sequence[int]) -> list[ChatMessage]:
    """An agent's loop: of each number, a message with so many calls, and their results."""
    said = [ChatMessage.human("Find me a train.")]
    for number, count in enumerate(calls):
        ids = [f"c{number}_{index}" for index in range(count)]
        said.append(ChatMessage.ai("Let me see.", tool_calls=[call(call_id) for call_id in ids]))
        said += [ChatMessage.tool(f"Result {call_id}: " + "train " * 50, call_id) for call_id in ids]
    return said


def contexts(memory: ConversationMemory, said: Sequence[ChatMessage]) -> list[Context]:
    """The context after each message."""
    loaded = []
    for message in said:
        memory.append("s", message)
        loaded.append(memory.load("s"))
    return loaded


# Which results stay.


def assert_bounds(context: Context, newest: int) -> None:
    all_of_them, gone = results(context), gave_way(context)
    whole = [part for part in all_of_them if part.position not in gone]
    # The newest ones are whole, as many as the option says or more.
    assert whole == all_of_them[len(gone) :]
    assert len(whole) >= min(newest, len(all_of_them))
    assert len(whole) <= max(2 * newest - 1, len(unseen(context)))
    # The model sees each result once as it is.
    assert set(gone).isdisjoint(part.position for part in unseen(context))


@settings(max_examples=min(60, settings().max_examples))
@given(st.lists(st.integers(1, 9), max_size=14), st.integers(1, 6))
def test_the_newest_results_stay_and_less_than_twice_as_many(calls: list[int], newest: int) -> None:
    for context in contexts(buffer(newest), loop(calls)):
        assert_bounds(context, newest)


@settings(max_examples=min(40, settings().max_examples), suppress_health_check=[HealthCheck.too_slow])
@given(conversations.conversations(min_size=2, max_size=40), st.integers(1, 4), st.sampled_from([None, 150, 400]))
def test_in_each_memory_the_bounds_hold_and_the_prefix_is_stable_between_steps(
    conversation: list[ChatMessage], newest: int, budget: int | None
) -> None:
    for memory in validity.memories(clear_tool_results=newest):
        loaded = list(validity.contexts(memory, conversation, [budget], system=None))
        for context in loaded:
            assert_bounds(context, newest)
        for (before, after), message in zip(itertools.pairwise(loaded), conversation[1:], strict=True):
            # Only a new result moves the point at which old ones give way.
            if is_continued(before, after) and message.role != "tool":
                check_stable_prefix(before, after)


@settings(max_examples=min(20, settings().max_examples), suppress_health_check=[HealthCheck.too_slow])
@given(conversations.conversations(min_size=2, max_size=30), st.integers(1, 3))
def test_each_context_is_valid_in_every_form(conversation: list[ChatMessage], newest: int) -> None:
    for memory in validity.memories(clear_tool_results=newest):
        for context in validity.contexts(memory, conversation, [None]):
            assert [problem for form in validity.FORMS.values() for problem in form(context)] == []


@pytest.mark.parametrize("newest", [2, 3, 5, 8])
def test_in_a_loop_of_single_calls_old_results_give_way_as_many_at_once_as_stay(newest: int) -> None:
    gone = [gave_way(context) for context in contexts(buffer(newest), loop([1] * 60))]
    steps = [len(after) - len(before) for before, after in itertools.pairwise(gone) if after != before]
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(gone))
    assert set(steps[1:]) == {newest}


@pytest.mark.parametrize("newest", [3, 5, 8])
def test_between_two_steps_a_context_begins_with_all_of_the_last_one(newest: int) -> None:
    # The exchange is complete after each second message.
    loaded = contexts(buffer(newest), loop([1] * 60))[0::2]
    kept = sum(list(after)[: before.stable_prefix] == list(before)[:] for before, after in itertools.pairwise(loaded))
    assert kept >= 59 - 60 // newest - 1
    assert all(before.stable_prefix == len(before) for before in loaded)


def test_results_that_the_model_has_not_seen_stay_however_many_they_are() -> None:
    said = [*loop([1, 1, 7]), ChatMessage.ai("There are seven.")]
    before, after = contexts(buffer(2), said)[-2:]
    assert gave_way(before) == [3, 5]
    assert len(gave_way(after)) == 9 - len(results(after)[len(gave_way(after)) :]) >= 6
    # What gives way after the next reply is not promised to stay.
    assert before[before.stable_prefix - 1].tool_calls
    assert list(after)[: before.stable_prefix] == list(before)[: before.stable_prefix]


def test_of_an_open_exchange_no_result_gives_way() -> None:
    said = loop([1, 1, 9])[:-2]
    context = contexts(buffer(1), said)[-1]
    assert gave_way(context) == [3, 5]
    assert context[-1].content != CLEARED


def test_a_result_is_whole_without_the_option() -> None:
    assert gave_way(contexts(buffer(None), loop([1] * 30))[-1]) == []


# What is shown and counted.


def test_a_result_that_gave_way_counts_what_is_shown_of_it() -> None:
    said = loop([1] * 12)
    plain, context = contexts(buffer(None), said)[-1], contexts(buffer(3), said)[-1]
    assert context.tokens == sum(part.tokens for part in context.parts)
    assert context.tokens == sum(COUNTER.count(message) for message in context)
    assert context.tokens < plain.tokens - 7 * 50
    assert (context.omitted, len(context)) == (0, len(plain))


def test_every_form_has_the_short_text_and_each_call_its_result() -> None:
    context = contexts(buffer(1), loop([1, 1, 1]))[-1]
    tools = [message for message in context.to_openai() if message["role"] == "tool"]
    assert [(tool["tool_call_id"], tool["content"] == CLEARED) for tool in tools] == [
        ("c0_0", True),
        ("c1_0", True),
        ("c2_0", False),
    ]
    blocks = [block for message in context.to_anthropic()["messages"] for block in message["content"]]
    shown = [block["content"][0]["text"] for block in blocks if block["type"] == "tool_result"]
    assert [text == CLEARED for text in shown] == [True, True, False]
    items: list[Any] = list(context.to_responses())
    outputs = [item["output"] for item in items if item["type"] == "function_call_output"]
    assert [text == CLEARED for text in outputs] == [True, True, False]
    assert context.to_text().count(f"tool: {CLEARED}") == 2


def test_fields_and_images_of_an_old_result_are_not_sent() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/map.png"}}
    said = loop([1, 1, 1])
    said[2] = ChatMessage.from_openai(
        {"role": "tool", "tool_call_id": "c0_0", "name": "map", "content": [image], "raw": "x" * 99}, kind="map"
    )
    old = contexts(buffer(1), said)[-1][2]
    assert old.to_openai() == {"role": "tool", "tool_call_id": "c0_0", "name": "map", "content": CLEARED}
    assert old.kind == "map"


def test_what_is_stored_and_what_is_folded_is_whole(store: Store) -> None:
    model = MarkerModel()
    memory = build(model, 300, store=store, clear_tool_results=1)
    memory.append("s", *loop([1] * 8))
    assert gave_way(memory.load("s"))
    assert memory.compact("s") == "published"
    assert CLEARED not in "".join(message.text for request in model.requests for message in request.messages)
    assert all(row.message.content != CLEARED for row in memory.history("s"))


@settings(max_examples=min(30, settings().max_examples), suppress_health_check=[HealthCheck.too_slow])
@given(conversations.conversations(min_size=2, max_size=30), st.integers(1, 3))
@pytest.mark.django_db
def test_both_stores_agree(conversation: list[ChatMessage], newest: int) -> None:
    models.Session.objects.all().delete()
    in_memory, orm = (
        [
            (context.parts, context.tokens, context.stable_prefix)
            for context in contexts(buffer(newest, store), conversation)
        ]
        for store in (InMemoryStore(), ORMStore())
    )
    assert in_memory == orm


@pytest.mark.django_db
def test_a_load_takes_the_same_statements_with_and_without_the_option() -> None:
    buffer(None, ORMStore()).append("s", *loop([1] * 20))
    statements = []
    for newest in (None, 2):
        with CaptureQueriesContext(connection) as queries:
            buffer(newest, ORMStore()).load("s")
        statements.append([query["sql"] for query in queries])
    assert statements[0] == statements[1]


def test_room_is_left_for_the_summary_and_the_budget_is_kept() -> None:
    memory = ConversationSummaryBufferMemory(
        InMemoryStore(), MarkerModel(), 4000, clear_tool_results=2, scheduler=NullScheduler(), counter=COUNTER
    )
    memory.append("s", *loop([1] * 60))
    memory.compact("s")
    context = memory.load("s")
    assert context.summary
    assert gave_way(context)
    assert not context.over_budget


@pytest.mark.parametrize("value", [0, -1, True, "3", 2.5])
def test_an_invalid_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="clear_tool_results"):
        Options(clear_tool_results=value)
