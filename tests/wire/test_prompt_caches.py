"""A context begins with all of the last one, so that a provider's cache can serve it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from django_convmemory.context.assembly import Context
from django_convmemory.context.wire import chat
from django_convmemory.context.wire.chat import alternating
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.options import SUMMARY_ROLES
from tests import conversations
from tests.wire import validity

budgets = st.sampled_from([None, 150, 400])


def is_continued(before: Context, after: Context) -> bool:
    """Whether nothing was folded, pinned or left out between two loads."""
    kinds = ("system", "pinned", "summary")
    firsts = [[part.position for part in context.parts if part.name == "tail"][:1] for context in (before, after)]
    leading = [[part for part in context.parts if part.name in kinds] for context in (before, after)]
    return leading[0] == leading[1] and firsts[0] in ([], firsts[1])


def check(before: Context, after: Context) -> None:
    stable = before.stable_prefix
    assert list(after)[:stable] == list(before)[:stable]
    assert starts(after.to_openai(roles="any"), before.to_openai(roles="any")[:stable])
    assert starts(stable_blocks(after, all_of_them=True), stable_blocks(before))
    assert starts(after.to_responses(roles="any"), stable_items(before))


def starts(after: Sequence[Any], before: Sequence[Any]) -> bool:
    return list(after[: len(before)]) == list(before)


def stable_blocks(context: Context, *, all_of_them: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """The blocks through the last one that is marked for the cache."""
    wire = context.to_anthropic(cache_control=True)
    blocks = [("system", block) for block in wire.get("system", ())]
    blocks += [(message["role"], block) for message in wire["messages"] for block in message["content"]]
    marked = [index for index, (_, block) in enumerate(blocks) if block.pop("cache_control", None)]
    return blocks if all_of_them else blocks[: marked[-1] + 1 if marked else 0]


def stable_items(context: Context) -> list[Any]:
    """The items before the results of the open exchange."""
    messages, stable = list(context), context.stable_prefix
    items: list[Any] = context.to_responses(roles="any")
    if stable == len(messages):
        return items
    closed = sum(len(message.tool_calls) + bool(message.text) for message in messages[: stable - 1])
    return [
        item
        for index, item in enumerate(items)
        if index <= closed or not any(item["type"].endswith("_output") for item in items[closed : index + 1])
    ]


@settings(max_examples=min(60, settings().max_examples))
@given(conversations.conversations(min_size=2, max_size=30), budgets)
def test_between_folds_and_steps_a_context_begins_with_the_last_one(
    conversation: list[ChatMessage], budget: int | None
) -> None:
    for memory in validity.memories():
        for before, after in itertools.pairwise(loaded(memory, conversation, budget)):
            if is_continued(before, after):
                check(before, after)


@settings(max_examples=min(60, settings().max_examples))
@given(conversations.conversations(min_size=2, max_size=30), budgets, st.sampled_from(SUMMARY_ROLES))
@example([ChatMessage.human(f"This is number {number}.") for number in range(20)], None, "user")
def test_with_alternating_roles_too(conversation: list[ChatMessage], budget: int | None, summary_role: str) -> None:
    for memory in validity.memories(roles="alternating", summary_role=summary_role):
        for before, after in itertools.pairwise(loaded(memory, conversation, budget)):
            if is_continued(before, after) and before.stable_prefix:
                prefix = chat.sendable(list(before))[: before.stable_prefix]
                wire = [message.to_openai() for message in alternating(prefix)]
                later = alternating(chat.sendable(list(after)))
                assert [message.to_openai() for message in later][: len(wire)] == wire


def loaded(memory: ConversationMemory, conversation: Sequence[Any], budget: int | None = None) -> list[Context]:
    """The context after each message."""
    return list(validity.contexts(memory, conversation, [budget], system=None))


@pytest.mark.parametrize("class_name", ["ConversationSummaryMemory", "ConversationSummaryBufferMemory"])
def test_what_is_not_folded_yet_is_left_out_in_steps(class_name: str) -> None:
    """Nobody folds, so that more and more must be left out: a quarter of what fits at once."""
    memory = next(memory for memory in validity.memories() if type(memory).__name__ == class_name)
    session = memory.session("s")
    firsts = []
    for number in range(1, 201):
        session.append(ChatMessage.human(f"This is message {number:03d}. It has about thirty tokens, as many do."))
        context = session.load()
        shown = [part.position or 0 for part in context.parts if part.name == "tail"]
        assert shown[-1] == number
        assert not context.over_budget
        firsts.append(shown[0])
    steps = [after - before for before, after in itertools.pairwise(firsts) if after != before]
    assert firsts[-1] > 150
    assert all(step >= 3 for step in steps)
    assert len(steps) < 70
