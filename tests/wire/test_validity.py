"""Every provider takes every context."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from django_convmemory.core.context import Context
from django_convmemory.messages import ChatMessage
from tests import conversations, dialogues
from tests.wire import validators, validity


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


# The negative control: the validators see what is wrong.

CALL: dict[str, Any] = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "a"}
USER = {"role": "user", "content": "Hi."}
ASSISTANT = {"role": "assistant", "content": "Hello."}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "content": "1", "tool_call_id": "a"}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([ANSWERED], "no call before the result"),
        ([ASKED], "have no results"),
        ([ASKED, USER, ANSWERED], "have no results yet"),
        ([{"role": "user"}], "no content"),
        ([{"role": "assistant", "content": None}], "no content"),
        ([{**ASSISTANT, "tool_calls": []}], "may not stand here"),
        ([{**USER, "name": "two words"}], "invalid name"),
        ([{**USER, "name": "n" * 65}], "invalid name"),
    ],
)
def test_the_validator_of_chat_completions_finds(messages: list[dict[str, Any]], problem: str) -> None:
    assert problem in " ".join(validators.chat(messages))


@pytest.mark.parametrize(
    "messages",
    [
        [ASSISTANT],
        [USER, USER],
        [USER, ASSISTANT, ASSISTANT],
        [USER, ASSISTANT, {"role": "system", "content": "x"}],
        [{"role": "developer", "content": "x"}, USER],
        [USER, ASKED, ANSWERED, USER],
        [ASKED, ANSWERED, ASSISTANT],
    ],
)
def test_the_validator_of_strict_templates_finds(messages: list[dict[str, Any]]) -> None:
    assert list(validators.strict_template(messages))


def blocks(*contents: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "assistant" if number % 2 else "user", "content": content}
            for number, content in enumerate(contents)
        ]
    }


TEXT = {"type": "text", "text": "Hi."}
MARKED = {**TEXT, "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"messages": [{"role": "assistant", "content": [TEXT]}]}, "does not alternate"),
        (blocks([TEXT], [USE]), "have no results"),
        (blocks([TEXT], [USE], [TEXT]), "for the calls"),
        (blocks([TEXT], [USE], [TEXT, RESULT]), "a result after something else"),
        (blocks([RESULT]), "for the calls"),
        (blocks([TEXT], [USE, TEXT], [RESULT]), "text after a call"),
        (blocks([TEXT], [USE], [RESULT], [USE], [RESULT]), "not unique"),
        (blocks([TEXT], [{**USE, "id": "a.b"}], [{**RESULT, "tool_use_id": "a.b"}]), "invalid id or input"),
        (blocks([TEXT], [{**USE, "input": []}], [RESULT]), "invalid id or input"),
        (blocks([{"type": "text", "text": " \n"}]), "an empty text"),
        (blocks([]), "empty"),
        (blocks([USE]), "with the role user"),
        (blocks([TEXT], [{"type": "text", "text": "Hello. "}]), "ends with white space"),
        (blocks([MARKED] * 5), "5 marks"),
        ({"system": [], "messages": []}, "system is empty"),
        (blocks([{"type": "image", "source": {"type": "url", "url": "http://x"}}]), "no https URL"),
    ],
)
def test_the_validator_of_anthropic_finds(arguments: dict[str, Any], problem: str) -> None:
    assert problem in " ".join(validators.anthropic(arguments))


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([{"type": "function_call", "call_id": "a", "name": "a b"}], "invalid name"),
        ([{"type": "message", "role": "user", "content": []}], "an empty list of parts"),
        ([{"type": "function_call", "call_id": "a", "name": "f"}], "No tool output found"),
        ([{"type": "function_call_output", "call_id": "a"}], "no call before it"),
        ([{"type": "function_call", "call_id": "a", "name": "f"}] * 2, "not unique"),
        ([{"type": "function_call", "call_id": "a" * 65, "name": "f"}], "65 characters"),
        ([{"type": "message", "role": "assistant", "content": ""}], "without a text"),
        ([{"type": "message", "role": "tool", "content": ""}], "unknown role or field"),
    ],
)
def test_the_validator_of_responses_finds(items: list[dict[str, Any]], problem: str) -> None:
    assert problem in " ".join(validators.responses(items))


def test_a_context_of_nothing_is_nothing_in_every_form() -> None:
    context = Context()
    assert context.to_openai(roles="alternating") == []
    assert context.to_anthropic(cache_control=True) == {"messages": []}
    assert context.to_responses() == []
