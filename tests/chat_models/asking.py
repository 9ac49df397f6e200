"""Calling the OpenAI chat model, blocking and asynchronously."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import openai as _client_library  # noqa: F401  its import takes longer than the deadlines of these tests
import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models import base
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.messages import ChatMessage
from tests.openai_server import Behaviour, OpenAIServer

KEY = "sk-secret-0123456789"
SECRET = "Bohnensuppe um Mitternacht"
REQUEST = base.ChatRequest([ChatMessage.system("Sum up."), ChatMessage.human(f"[[fact-1]] {SECRET} [[fact-2]]")])

# Seconds that still mean "at once" on a slow machine: servers hang and drip for 30 s.
AT_ONCE = 10.0

Ask = Callable[..., base.ChatResponse]


def chat(model: OpenAIChatModel, request: base.ChatRequest = REQUEST) -> base.ChatResponse:
    return model.chat(request)


def achat(model: OpenAIChatModel, request: base.ChatRequest = REQUEST) -> base.ChatResponse:
    return asyncio.run(model.achat(request))


def ended(*threads: threading.Thread) -> bool:
    for thread in threads:
        thread.join(AT_ONCE)
    return not any(thread.is_alive() for thread in threads)


def model_at(server: OpenAIServer, **options: Any) -> OpenAIChatModel:
    defaults: dict[str, Any] = {"model": "tiny", "api_key": KEY, "base_url": server.base_url, "timeout": 20}
    return OpenAIChatModel(**defaults | options)


def error_of(ask: Ask, model: OpenAIChatModel) -> exceptions.ChatModelError:
    with pytest.raises(exceptions.ChatModelError) as raised:
        ask(model)
    return raised.value


def answer_with(message: dict[str, Any] | None = None, finish_reason: str = "stop", **fields: Any) -> Behaviour:
    choice = {"index": 0, "message": message or {"role": "assistant", "content": "Hi"}, "finish_reason": finish_reason}
    return Behaviour("raw", body={"choices": [choice], **fields})
