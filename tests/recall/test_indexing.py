"""What is indexed of a message."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given

from django_convmemory.messages import ChatMessage
from django_convmemory.rules.segments import MAX_CHARACTERS
from django_convmemory.search import indexing
from tests import conversations


def test_the_name_the_text_and_the_arguments_of_calls_are_indexed() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "book_flight", "arguments": '{"city": "Lisbon"}'}}
    custom = {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "print(fado)"}}
    parsed = {"id": "call_3", "type": "function", "function": {"name": "pay", "arguments": {"card": "visa"}}}
    message = ChatMessage.ai("I will book it", name="Anna", tool_calls=[call, custom, parsed])

    assert indexing.indexed_text(message) == 'Anna\nI will book it\n{"city": "Lisbon"}\nprint(fado)\n{"card":"visa"}'
    assert indexing.terms_of(message) == ["anna", "book", "citi", "lisbon", "print", "fado", "card", "visa"]


def test_the_parts_of_a_text_are_indexed() -> None:
    message = ChatMessage.human(
        [{"type": "text", "text": "Look at"}, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    )

    assert indexing.terms_of(message) == ["look"]


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.system("Lisbon"),
        ChatMessage("developer", "Lisbon"),
        ChatMessage.ai("Lisbon", kind="reasoning"),
        ChatMessage.ai(None),
        ChatMessage.human(""),
    ],
    ids=repr,
)
def test_pinned_messages_and_reasoning_are_not_indexed(message: ChatMessage) -> None:
    assert indexing.terms_of(message) == []


def test_a_redacted_message_is_not_indexed() -> None:
    assert indexing.terms_of(ChatMessage.human("Lisbon", name="Anna"), redacted=True) == []


@pytest.mark.parametrize("role", ["tool", "assistant"])
def test_the_escapes_of_json_do_not_hide_words(role: str) -> None:
    text = json.dumps({"note": "the first line\nnext line", "城市": ["北京", 2026, True, None]})
    message = (
        ChatMessage.tool(text, "call_1")
        if role == "tool"
        else ChatMessage.ai(tool_calls=[conversations.call("call_1", text)])
    )

    assert indexing.terms_of(message) == ["note", "first", "line", "next", "line", "城市", "北京", "2026"]


@pytest.mark.parametrize("text", ['{"a": "b\\', "[" * 49_000 + "\\", "C:\\new"])
def test_what_only_looks_like_json_is_indexed_as_text(text: str) -> None:
    assert indexing.indexed_text(ChatMessage.tool(text, "call_1")) == text


def test_of_a_text_that_is_too_long_the_beginning_is_indexed() -> None:
    brackets = "[" * 60_000 + "\\"
    assert indexing.indexed_text(ChatMessage.tool(brackets, "call_1")) == "[" * 50_000
    assert indexing.indexed_text(ChatMessage.human("a" * 60_000)) == "a" * 50_000


@pytest.mark.parametrize("read", [10**9, MAX_CHARACTERS + 1])
def test_the_escapes_of_json_that_is_too_long_do_not_hide_words(read: int) -> None:
    text = json.dumps([{"note": "the first line\nnext line", "城市": "北京", "end": "\\" * 60_000 + "heron"}, 7])
    document = indexing.terms_of(ChatMessage.tool(text[:read], "call_1"))
    assert document == ["note", "first", "line", "next", "line", "城市", "北京", "end"]


@pytest.mark.parametrize("text", ['{"' + '\\"' * 60_000, '["' * 60_000, "{" + '"\\' * 60_000, "[ C:\\new " * 9_000])
def test_what_only_looks_like_json_takes_a_bounded_time_if_it_is_long(text: str) -> None:
    start = time.process_time()
    assert indexing.indexed_text(ChatMessage.tool(text, "call_1")) == text[:MAX_CHARACTERS]
    assert time.process_time() - start < 1


@given(conversations.conversations())
def test_every_message_can_be_indexed(conversation: list[ChatMessage]) -> None:
    for message in conversation:
        assert all(indexing.terms_of(message))
