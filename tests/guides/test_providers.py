"""The code of docs/guides/providers.md converts what the page says, with the providers' own clients."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from django.contrib.auth.models import User

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.guides.test_pages import PAGES, module_of
from tests.openai_server import Behaviour, OpenAIServer
from tests.wire import validators

pytestmark = pytest.mark.django_db
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":1}'}}


def last_of(user: User) -> dict[str, Any]:
    return memories["default"].session("main", owner=user).history(limit=1)[0].message.to_openai()


def test_a_server_with_a_strict_template(settings: Any, ann: User) -> None:
    settings.CONVMEMORY = module_of("providers", "settings.py")["CONVMEMORY"]
    session = memories["default"].session("main", owner=ann)
    session.append(
        ChatMessage.system("Be kind."),
        ChatMessage.ai("Hello!"),
        ChatMessage.human("Find it.", name="Ann"),
        ChatMessage.human("Soon.", name="Bob"),
        ChatMessage.ai(tool_calls=[CALL]),
        ChatMessage.tool("a bridge", "c1"),
        ChatMessage.human("Well?"),
    )
    messages: list[Any] = session.load(system="Be brief.").to_openai()

    assert list(validators.strict_template(messages)) == []
    assert [(message["role"], message["content"]) for message in messages if "tool_calls" not in message] == [
        ("system", "Be brief.\n\nBe kind."),
        ("user", "[The conversation continues.]"),
        ("assistant", "Hello!"),
        ("user", "Ann: Find it.\n\nBob: Soon."),
        ("tool", "a bridge"),
        ("assistant", "[No answer yet.]"),
        ("user", "Well?"),
    ]
    for text in ("[The conversation continues.]", "[No answer yet.]"):
        assert f"`{text}`" in PAGES["providers"]


RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-4.1-mini",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "It is a bridge.", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": '{"q":1}'},
    ],
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 14,
    },
}


@pytest.mark.skipif(int(openai.__version__.split(".")[0]) < 2, reason="needs openai 2.0 or newer")
def test_the_responses_api(ann: User, model: OpenAIServer) -> None:
    page = module_of("providers", "responses.py")
    calling = Behaviour("raw", body=RESPONSE)
    model.queue(calling)
    model.default = Behaviour("raw", body=RESPONSE | {"output": RESPONSE["output"][:2]})  # type: ignore[index]

    session = memories["default"].session("main", owner=ann)
    [call] = session.answer("What is this?", page["ask"]).open_calls

    assert last_of(ann) == {"role": "assistant", "content": "It is a bridge.", "tool_calls": [CALL]}
    assert session.history(limit=1)[0].usage == RESPONSE["usage"]
    session.append(call.result("found"))
    assert page["reply"](ann, "And now?") == "It is a bridge."
    items = model.log[1].body["input"]
    assert list(validators.responses(items)) == []
    assert [item["type"] for item in items] == [
        *("message", "message", "reasoning", "message", "function_call", "function_call_output", "message")
    ]
    assert items[0]["content"] == "You are a helpful teacher."
    assert model.log[1].path == "/v1/responses"
    assert "previous_response_id" not in model.log[1].body


ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "text", "text": "It is a bridge."},
        {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": 1}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0},
}


@pytest.mark.slow
def test_anthropic(ann: User, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", model.base_url.removesuffix("/v1"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    page = module_of("providers", "claude.py")
    model.queue(Behaviour("raw", body=ANSWER))
    model.default = Behaviour("raw", body=ANSWER | {"content": ANSWER["content"][:1], "stop_reason": "end_turn"})  # type: ignore[index]

    session = memories["default"].session("main", owner=ann)
    [call] = session.answer("What is this?", page["ask"]).open_calls

    assert last_of(ann) == {"role": "assistant", "content": "It is a bridge.", "tool_calls": [CALL]}
    assert (session.history()[1].usage or {})["cache_read_input_tokens"] == 4
    session.append(call.result("found"))
    assert session.answer("And now?", page["ask"], system="You are a helpful teacher.").text == "It is a bridge."
    body = model.log[1].body
    assert list(validators.anthropic({"system": body["system"], "messages": body["messages"]})) == []
    assert body["system"][0]["text"] == "You are a helpful teacher."
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"][1] == ANSWER["content"][1]  # type: ignore[index]
    assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result", "text"]
    assert model.log[1].path == "/v1/messages"
