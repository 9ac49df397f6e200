"""Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

import pytest

from django_convmemory.context.assembly import assemble
from django_convmemory.context.wire import calls
from django_convmemory.context.wire.anthropic import to_anthropic
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.exchanges import NO_RESULT
from django_convmemory.rules.options import Options
from django_convmemory.rules.strategies import SummaryBuffer
from django_convmemory.tokens import Utf8TokenCounter
from tests.conversations import call
from tests.test_context import snapshot
from tests.wire import validators

PNG = "data:image/png;base64,iVBORw0KGgo="


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def said(*messages: ChatMessage) -> list[tuple[str, list[dict[str, Any]]]]:
    """The role and the blocks of each message. The request is valid."""
    arguments = to_anthropic(calls.with_ids(messages, range(1, len(messages) + 1)))
    assert list(validators.anthropic(arguments)) == []
    return [(message["role"], message["content"]) for message in arguments["messages"]]


def asked(call_id: str, arguments: Any = "{}", name: str = "look_up") -> ChatMessage:
    return ChatMessage.ai(
        tool_calls=[{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]
    )


def test_instructions_are_system_blocks() -> None:
    arguments = to_anthropic(
        [
            ChatMessage.system("Be brief."),
            ChatMessage.from_openai({"role": "developer", "content": [text("In English."), text(" ")]}),
            ChatMessage.human("Hi."),
        ]
    )
    assert arguments == {
        "system": [text("Be brief."), text("In English.")],
        "messages": [{"role": "user", "content": [text("Hi.")]}],
    }
    assert "system" not in to_anthropic([ChatMessage.human("Hi.")])


def test_all_results_stand_in_the_next_user_message_before_its_text() -> None:
    calls = ChatMessage.ai("Let me look.", tool_calls=[call("a", '{"city": "Bled"}'), call("b")])
    results = [ChatMessage.tool("1", "a"), ChatMessage.tool("", "b")]
    assert said(ChatMessage.human("?"), calls, *results, ChatMessage.human("Well?"))[1:] == [
        (
            "assistant",
            [
                text("Let me look."),
                {"type": "tool_use", "id": "a", "name": "look_up", "input": {"city": "Bled"}},
                {"type": "tool_use", "id": "b", "name": "look_up", "input": {}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "a", "content": [text("1")]},
                {"type": "tool_result", "tool_use_id": "b"},
                text("Well?"),
            ],
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"city": "Bled"}, {"city": "Bled"}),
        ("", {}),
        ("[1]", {"_raw": [1]}),
        ('"x"', {"_raw": "x"}),
        ("{broken", {"_raw": "{broken"}),
        ('{"a": NaN}', {"_raw": '{"a": NaN}'}),
        ("[" * 100_000, {"_raw": "[" * 100_000}),
    ],
)
def test_the_input_of_a_call_is_an_object(arguments: Any, expected: dict[str, Any]) -> None:
    blocks = said(ChatMessage.human("?"), asked("a", arguments), ChatMessage.tool("1", "a"))[1][1]
    assert blocks[0]["input"] == expected


def test_the_input_of_a_custom_tool_is_its_text() -> None:
    custom = ChatMessage.ai(tool_calls=[{"id": "a", "type": "custom", "custom": {"name": "run", "input": "ls"}}])
    assert said(ChatMessage.human("?"), custom, ChatMessage.tool("1", "a"))[1][1] == [
        {"type": "tool_use", "id": "a", "name": "run", "input": {"_raw": "ls"}}
    ]


def ids(*messages: ChatMessage) -> list[str]:
    blocks = [block for _, content in said(*messages) for block in content]
    return [block.get("id") or block["tool_use_id"] for block in blocks if block["type"] != "text"]


def test_ids_that_repeat_very_often_are_replaced_in_a_short_time() -> None:
    pair = [asked("call_0"), ChatMessage.tool("1", "call_0")]
    # In quadratic time it would take minutes.
    assert ids(ChatMessage.human("?"), *pair * 30_000)[-1] == "call_0_60000"


def test_marks_of_the_site_do_not_add_up() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    marked_image = {**image, "cache_control": {"type": "ephemeral"}}
    assert said(*[ChatMessage.human([marked_image])] * 5) == [("user", [image] * 5)]


def test_a_users_name_stands_before_the_text() -> None:
    assert said(ChatMessage.human("Hi.", name="anna")) == [("user", [text("anna:"), text("Hi.")])]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            {"type": "image_url", "image_url": {"url": PNG}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        ),
        ({"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}, text("[image_url]")),
        ({"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AA=="}}, text("[image_url]")),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
            },
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, text("[file]")),
        ({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, text("[input_audio]")),
        (
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        ),
    ],
)
def test_what_is_no_text_is_an_image_a_document_or_its_type(part: dict[str, Any], block: dict[str, Any]) -> None:
    assert said(ChatMessage.human([part])) == [("user", [block])]
    result = ChatMessage.tool([part], "a")
    assert said(ChatMessage.human("?"), asked("a"), result)[-1][1][0]["content"] == [block]


def test_a_refusal_is_what_the_assistant_said() -> None:
    refused = ChatMessage.ai(extra={"refusal": "I can't."})
    part = ChatMessage.ai([{"type": "refusal", "refusal": "I won't."}])
    assert said(ChatMessage.human("?"), refused, part)[1] == ("assistant", [text("I can't."), text("I won't.")])


# The marks for the cache.


def marked(arguments: dict[str, Any]) -> list[str]:
    """The texts and ids of the marked blocks."""
    blocks = [
        *arguments.get("system", ()),
        *(block for message in arguments["messages"] for block in message["content"]),
    ]
    assert list(validators.anthropic(arguments)) == []
    return [
        block.get("text") or block.get("id") or block["tool_use_id"]
        for block in blocks
        if block.get("cache_control") == {"type": "ephemeral"}
    ]


def test_three_blocks_are_marked_for_the_cache() -> None:
    chat = [
        ChatMessage.system("Be brief."),
        ChatMessage.human("What is Rust?"),
        ChatMessage.ai("A language."),
        ChatMessage.human("Where is it made?"),
        asked("a"),
    ]
    counter = Utf8TokenCounter()
    context = assemble(snapshot(chat, folded=2), SummaryBuffer(1000), Options(summary_prefix=""), counter, system="Hi.")
    assert marked(context.to_anthropic(cache_control=True)) == ["Be brief.", "They spoke of Rust.", "a"]
    assert NO_RESULT in str(context.to_anthropic())
    assert marked(context.to_anthropic()) == []
    assert marked(
        assemble(snapshot(chat[1:2]), SummaryBuffer(99), Options(), counter).to_anthropic(cache_control=True)
    ) == ["What is Rust?"]
    blank = assemble(snapshot([ChatMessage.human("Hi."), ChatMessage.ai("")]), SummaryBuffer(99), Options(), counter)
    assert marked(blank.to_anthropic(cache_control=True)) == ["Hi."]
