"""OpenAI's Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from django_convmemory.context.wire import calls
from django_convmemory.context.wire.responses import to_responses
from django_convmemory.messages import ChatMessage
from tests.conversations import call
from tests.wire import validators


def items(*messages: ChatMessage) -> list[dict[str, Any]]:
    """The items. The request is valid."""
    wire = to_responses(calls.with_ids(messages, range(1, len(messages) + 1)))
    assert list(validators.responses(wire)) == []
    return wire


def test_messages_are_items_with_their_roles() -> None:
    assert items(
        ChatMessage.system("A."), ChatMessage("developer", "B."), ChatMessage.human("Hi."), ChatMessage.ai("Hello.")
    ) == [
        {"type": "message", "role": "system", "content": "A."},
        {"type": "message", "role": "developer", "content": "B."},
        {"type": "message", "role": "user", "content": "Hi."},
        {"type": "message", "role": "assistant", "content": "Hello."},
    ]


def test_calls_and_results_are_items_beside_the_message() -> None:
    calls = ChatMessage.ai("Let me look.", tool_calls=[call("a", '{"city": "Bled"}'), call("b")])
    assert items(calls, ChatMessage.tool("1", "a"), ChatMessage.tool([{"type": "text", "text": "2"}], "b")) == [
        {"type": "message", "role": "assistant", "content": "Let me look."},
        {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": '{"city": "Bled"}'},
        {"type": "function_call", "call_id": "b", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
    ]


def test_custom_tools_have_items_of_their_own() -> None:
    custom = ChatMessage.ai(tool_calls=[{"id": "a", "type": "custom", "custom": {"name": "run", "input": "ls"}}])
    assert items(custom, ChatMessage.tool("1", "a")) == [
        {"type": "custom_tool_call", "call_id": "a", "name": "run", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "1"},
    ]


@pytest.mark.parametrize("content", [None, "", [{"type": "text", "text": ""}]])
def test_a_refusal_is_all_that_is_said_if_there_is_no_other_text(content: Any) -> None:
    assert items(ChatMessage.ai(content, extra={"refusal": "No."})) == [
        {"type": "message", "role": "assistant", "content": "No."}
    ]


def test_a_users_name_stands_before_the_text() -> None:
    assert items(ChatMessage.human("Hi.", name="anna"))[0]["content"] == "anna: Hi."
    parts = items(ChatMessage.human([{"type": "text", "text": "Hi."}], name="anna"))[0]["content"]
    assert [part["text"] for part in parts] == ["anna: ", "Hi."]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
            {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
        ),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, {"type": "input_file", "file_id": "file-1"}),
        ({"type": "input_file", "file_id": "file-1"}, {"type": "input_file", "file_id": "file-1"}),
        ({"type": "input_audio", "input_audio": {"data": "AA=="}}, {"type": "input_text", "text": "[input_audio]"}),
    ],
)
def test_parts_have_the_names_of_this_api(part: dict[str, Any], expected: dict[str, Any]) -> None:
    assert items(ChatMessage.human([part]))[0]["content"] == [expected]
