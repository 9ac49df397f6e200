"""Messages of LangChain: their chat messages, and that they come back as they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_convmemory.contrib.langchain_items import message
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage, storable, thaw
from tests.test_response_items import JSON


def stored(form: str, **data: Any) -> dict[str, Any]:
    """A message as ``message_to_dict`` returns it."""
    common: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}, "type": form, "name": None, "id": None}
    return {"type": form, "data": {**common, **data}}


def call(call_id: str | None, **fields: Any) -> dict[str, Any]:
    return {"name": "look_up", "args": {"city": "Köln"}, "id": call_id, "type": "tool_call", **fields}


FUNCTION = {"name": "look_up", "arguments": '{"city":"Köln"}'}


@pytest.mark.parametrize(
    ("item", "view"),
    [
        pytest.param(stored("human", content="What is Rust?"), ChatMessage.human("What is Rust?"), id="a user"),
        pytest.param(stored("human", content="Hi", name="ann"), ChatMessage.human("Hi", name="ann"), id="a name"),
        pytest.param(stored("system", content="Be brief."), ChatMessage.system("Be brief."), id="a prompt"),
        pytest.param(stored("ai", content="A language."), ChatMessage.ai("A language."), id="a reply"),
        pytest.param(stored("AIMessageChunk", content="A"), ChatMessage.ai("A"), id="a part of a stream"),
        pytest.param(stored("tool", content="42", tool_call_id="a"), ChatMessage.tool("42", "a"), id="a result"),
        pytest.param(
            stored("ai", content="", tool_calls=[call("a"), call("call")], invalid_tool_calls=[call("b", args="{")]),
            ChatMessage.ai(
                tool_calls=[
                    {"id": "a", "type": "function", "function": FUNCTION},
                    {"id": "call", "type": "function", "function": FUNCTION},
                    {"id": "b", "type": "function", "function": {"name": "look_up", "arguments": "{"}},
                ]
            ),
            id="calls",
        ),
        pytest.param(
            stored("ai", content="", additional_kwargs={"tool_calls": [{"id": "a", "function": FUNCTION}]}),
            ChatMessage.ai(tool_calls=[{"id": "a", "function": FUNCTION}]),
            id="calls of an old version",
        ),
        pytest.param(
            stored("ai", content=[{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "a", "input": {}}]),
            ChatMessage.ai("I look."),
            id="a part that repeats a call",
        ),
        pytest.param(
            stored(
                "human",
                content=[
                    "See",
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
                    {"type": "image", "url": "https://example.com/b.png"},
                    {"type": "image", "base64": "aGVsbG8=", "mime_type": "image/png"},
                    {"type": "file", "base64": "a" * 400_000, "mime_type": "application/pdf"},
                    {"type": "file", "source_type": "base64", "data": "a" * 400_000, "mime_type": "application/pdf"},
                    {
                        "type": "file",
                        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + "a" * 40},
                    },
                    {"type": "audio", "base64": "a" * 40, "mime_type": "audio/wav"},
                    {"type": "audio", "url": "https://example.com/a.wav"},
                    {"type": "reasoning", "reasoning": "hm"},
                    {"type": "own", "value": 5},
                ],
            ),
            ChatMessage.human(
                [
                    {"type": "text", "text": "See"},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
                    {"type": "image", "size": 6},
                    {"type": "image_url", "image_url": {"url": "https://example.com/b.png"}},
                    {"type": "image", "size": 6},
                    {"type": "document", "size": 300_000},
                    {"type": "document", "size": 300_000},
                    {"type": "document", "size": 30},
                    {"type": "audio", "size": 30},
                    {"type": "audio", "size": None},
                    {"type": "own", "size": 24},
                ]
            ),
            id="images",
        ),
        pytest.param(
            stored(
                "ai", content=[{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "A."}]
            ),
            ChatMessage.ai("A."),
            id="a thought and a text",
        ),
        pytest.param(
            stored("ai", content=[{"type": "thinking", "thinking": "hm", "signature": "s"}]),
            ChatMessage.ai(kind="reasoning"),
            id="a thought",
        ),
        pytest.param(stored("chat", content="Hi", role="user"), ChatMessage.human("Hi"), id="a role by name"),
        pytest.param(stored("chat", content="Hi", role="judge"), ChatMessage.human("Hi", name="judge"), id="any role"),
        pytest.param(
            stored("function", content="42", name="look_up"),
            ChatMessage.ai("[function] look_up 42", kind="function"),
            id="a result without an id",
        ),
        pytest.param(stored("remove", content=""), ChatMessage.ai("[remove]", kind="remove"), id="any other type"),
    ],
)
def test_the_view(item: dict[str, Any], view: ChatMessage) -> None:
    made = message(item)

    assert made.without_item() == view
    assert (made.format, thaw(made.item)) == ("langchain", item)


FIELDS = ("content", "name", "tool_calls", "invalid_tool_calls", "additional_kwargs", "tool_call_id", "role")


@given(
    st.sampled_from(["human", "ai", "tool", "system", "chat", "function", "AIMessageChunk", "", "x" * 40]),
    st.dictionaries(st.sampled_from(FIELDS), JSON),
)
def test_any_message_is_stored_as_it_was_or_is_a_clear_error(form: str, data: dict[str, Any]) -> None:
    try:
        made = message({"type": form, "data": data})
    except InvalidMessage:
        return
    stored_data = storable(data)
    for field in ("tool_calls", "invalid_tool_calls"):
        calls = stored_data.get(field)
        for each in [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else ():
            each["id"] = each.get("id") or "call"
    if stored_data.get("tool_call_id") == "":
        stored_data["tool_call_id"] = "call"
    assert thaw(made.item) == {"type": form, "data": stored_data}


@pytest.mark.parametrize(
    "item", [None, "text", {}, {"type": 5, "data": {}}, {"type": "human"}, {"type": "ai", "data": 1}]
)
def test_what_is_no_message_is_refused(item: Any) -> None:
    with pytest.raises(InvalidMessage, match="of LangChain must be a dict"):
        message(item)
