"""The code of docs/howto/providers.md converts what the page says."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from pydantic import TypeAdapter

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.howto.test_pages import module_of

pytestmark = pytest.mark.django_db


def test_an_endpoint_that_wants_one_system_message(settings: Any) -> None:
    settings.CONVMEMORY = module_of("providers", "settings.py")["CONVMEMORY"]
    session = memories["default"].session("main", owner=User.objects.create_user("ann"))
    session.append(ChatMessage.system("Be kind."), ChatMessage.human("hello"))
    roles = [message["role"] for message in session.load(system="Be brief.").to_openai()]
    assert roles == ["system", "user"]


def test_the_responses_api() -> None:
    session = memories["default"].session("main", owner=User.objects.create_user("ann"))
    image = {"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}}
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    session.append(
        ChatMessage.system("Be kind."),
        ChatMessage.human([{"type": "text", "text": "What is this?"}, image]),
        ChatMessage.ai("I look.", tool_calls=[call]),
        ChatMessage.tool("a bridge", "c1"),
    )
    page = module_of("providers", "responses.py")
    items = page["to_responses"](session.load())
    with contextlib.suppress(ImportError):  # Older clients do not know this API.
        from openai.types.responses import ResponseInputParam

        TypeAdapter(ResponseInputParam).validate_python(items)
    assert [item.get("type", item.get("role")) for item in items] == [
        *("system", "user", "assistant", "function_call", "function_call_output")
    ]
    answer = SimpleNamespace(
        output_text="It is a bridge.",
        output=[
            SimpleNamespace(type="reasoning"),
            SimpleNamespace(type="function_call", call_id="c2", name="find", arguments='{"q": 1}'),
        ],
    )
    message = page["from_responses"](answer)
    session.append(message)
    assert (message.text, message.tool_calls[0]["id"]) == ("It is a bridge.", "c2")
