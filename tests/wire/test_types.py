"""The forms have the request types of the providers' packages, strictly."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import given, settings

from django_convmemory.context.assembly import Context, assemble
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.options import Options, Roles
from django_convmemory.rules.strategies import Buffer
from django_convmemory.tokens import Utf8TokenCounter
from tests import conversations
from tests.conversations import call
from tests.test_context import snapshot
from tests.wire import typed

# Since 2.0, the result of a call may be a list of parts. At run time, the app needs none of these types.
needs_types = pytest.mark.skipif(int(openai.__version__.split(".")[0]) < 2, reason="needs openai 2.0 or newer")

RICH = [
    ChatMessage.system("Be brief."),
    ChatMessage.from_openai({"role": "developer", "content": [{"type": "text", "text": "In English."}]}),
    ChatMessage.human(
        [
            {"type": "text", "text": "Look:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
        ],
        name="anna",
    ),
    ChatMessage.ai("Let me look.", tool_calls=[call("a", '{"city": "Bled"}'), call("a.b", "[]")]),
    ChatMessage.tool([{"type": "text", "text": "1"}], "a"),
    ChatMessage.ai("Done.", extra={"refusal": None}),
    ChatMessage.ai("And more."),
]


def context_of(conversation: list[ChatMessage]) -> Context:
    return assemble(snapshot(conversation), Buffer(), Options(), Utf8TokenCounter(), system="You are a teacher.")


def check(context: Context) -> None:
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
    from openai.types.chat import ChatCompletionMessageParam
    from openai.types.responses import ResponseInputItemParam

    forms: tuple[Roles, ...] = ("any", "alternating")
    for roles in forms:
        chat: Any = context.to_openai(roles=roles)
        assert typed.problems(chat, list[ChatCompletionMessageParam]) == []
        items: Any = context.to_responses(roles=roles)
        assert typed.problems(items, list[ResponseInputItemParam]) == []
    for cache_control in (False, True):
        arguments = {"model": "m", "max_tokens": 9, **context.to_anthropic(cache_control=cache_control)}
        assert typed.problems(arguments, MessageCreateParamsNonStreaming) == []


@needs_types
def test_images_files_calls_and_names_have_the_types() -> None:
    check(context_of(RICH))


@needs_types
@settings(max_examples=min(40, settings().max_examples))
@given(conversations.conversations())
def test_any_conversation_has_the_types(conversation: list[ChatMessage]) -> None:
    check(context_of(conversation))
