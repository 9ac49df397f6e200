"""Every provider takes every context."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from django_convmemory.context.assembly import Context
from django_convmemory.messages import ChatMessage
from tests import conversations, dialogues
from tests.wire import validity


@pytest.mark.slow
@dialogues.needed
@pytest.mark.parametrize(("reader", "every"), [(dialogues.taubench, 12), (dialogues.crosswoz, 50)])
def test_real_conversations_are_valid_in_every_form(reader: dialogues.Reader, every: int) -> None:
    for number, (_, conversation) in enumerate(reader()):
        if number % every == 0:
            counts = validity.check(conversation)
            assert set(counts) == {"contexts"}
            assert counts["contexts"] == len(conversation) * len(validity.BUDGETS) * len(validity.memories())


@pytest.mark.slow
@settings(max_examples=min(60, settings().max_examples))
@given(conversations.conversations(min_size=1))
def test_hard_conversations_are_valid_in_every_form(conversation: list[ChatMessage]) -> None:
    assert set(validity.check(conversation)) == {"contexts"}
    assert set(validity.check(conversation, roles="alternating")) == {"contexts"}


@pytest.mark.parametrize("summary_role", ["system", "developer", "user"])
def test_messages_of_other_providers_are_valid_in_every_form(summary_role: str) -> None:
    nothing: list[dict[str, Any]] = []
    calls = [{"id": "c", "type": "function", "function": {"name": "functions.look up", "arguments": {"a": "é"}}}]
    conversation = [
        ChatMessage.human(nothing),
        ChatMessage.ai(nothing),
        ChatMessage.ai(nothing, tool_calls=calls),
        ChatMessage.tool(nothing, "c"),
        ChatMessage.system(nothing),
        *[ChatMessage.human("Tell me more about it."), ChatMessage.human("Anyone?")] * 9,
    ]
    for roles in ("any", "alternating"):
        assert set(validity.check(conversation, roles=roles, summary_role=summary_role)) == {"contexts"}


def test_a_context_of_nothing_is_nothing_in_every_form() -> None:
    context = Context()
    assert context.to_openai(roles="alternating") == []
    assert context.to_anthropic(cache_control=True) == {"messages": []}
    assert context.to_responses() == []
