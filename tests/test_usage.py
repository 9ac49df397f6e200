"""What providers report about a reply, and where it is shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from hypothesis import given, strategies as st

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session
from django_convmemory.rules import usage
from django_convmemory.rules.usage import MessageUsage
from django_convmemory.testing import ScriptedMemories

OPENAI = {"prompt_tokens": 1200, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 1024}}


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (OPENAI, MessageUsage(1200, 1024, 40)),
        ({"prompt_tokens": 1200, "prompt_tokens_details": None}, MessageUsage(1200, 0, 0)),
        # The Responses API.
        (
            {"input_tokens": 1200, "output_tokens": 40, "input_tokens_details": {"cached_tokens": 1024}},
            MessageUsage(1200, 1024, 40),
        ),
        # Anthropic: the cached tokens are not among the input tokens.
        (
            {
                "input_tokens": 100,
                "cache_read_input_tokens": 1024,
                "cache_creation_input_tokens": 76,
                "output_tokens": 40,
            },
            MessageUsage(1200, 1024, 40),
        ),
        ({"input_tokens": 100, "cache_read_input_tokens": 0, "output_tokens": 4}, MessageUsage(100, 0, 4)),
        # DeepSeek.
        (
            {"prompt_tokens": 1200, "prompt_cache_hit_tokens": 1024, "prompt_cache_miss_tokens": 176},
            MessageUsage(1200, 1024, 0),
        ),
        ({}, None),
        (None, None),
        ({"prompt_tokens": "1200"}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 99}}, MessageUsage(10, 10, 0)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": "9"}}, MessageUsage(10, 0, 0)),
    ],
)
def test_the_forms_of_several_providers(reported: Any, expected: MessageUsage | None) -> None:
    assert usage.read(reported) == expected


names = st.sampled_from(
    [
        *("prompt_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens"),
        *("prompt_tokens_details", "input_tokens_details", "cached_tokens"),
    ]
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.dictionaries(names, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=8,
)


@given(junk)
def test_nothing_that_a_provider_reports_raises(reported: Any) -> None:
    read = usage.read(reported)
    assert read is None or 0 <= read.cached_tokens <= read.prompt_tokens


def test_the_api_and_the_admin_show_it_with_the_reply(
    convmemory: ScriptedMemories, client: Client, admin_client: Client
) -> None:
    anna = User.objects.create_user("anna")
    chat = memories["default"].session("main", owner=anna)
    chat.append(ChatMessage.human("Hi."))
    chat.append(ChatMessage.ai("Hello."), usage=OPENAI)
    chat.append(ChatMessage.human("Bye."), ChatMessage.ai("Bye."))
    client.force_login(anna)
    session = Session.objects.get(key="main")
    answer = client.get(f"/api/memory/sessions/{session.public_id}/messages/").json()
    assert [message["usage"] for message in answer["results"]] == [
        None,
        {"prompt_tokens": 1200, "cached_tokens": 1024, "completion_tokens": 40},
        None,
        None,
    ]
    page = admin_client.get(f"/admin/convmemory/session/{session.pk}/change/").content.decode()
    assert page.count("prompt of 1,200 tokens, 1,024 cached") == 1
