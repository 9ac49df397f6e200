"""The requests, answers and deadlines of the OpenAI chat model, with the real client and a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models import base
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.messages import ChatMessage
from tests.chat_models.asking import AT_ONCE, KEY, REQUEST, Ask, answer_with, chat, ended, error_of, model_at
from tests.openai_server import Behaviour, OpenAIServer

# Answers.


def test_sends_the_messages_in_wire_form_with_model_key_and_parameters(server: OpenAIServer, ask: Ask) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        ChatMessage.system("Sum up."),
        ChatMessage.human([{"type": "text", "text": "Hi"}], kind="plan", metadata={"note": "not for providers"}),
        ChatMessage.ai(tool_calls=[call]),
        ChatMessage.tool("Sunny", "call_1"),
    ]

    ask(model_at(server, parameters={"temperature": 0, "top_k": 5}), base.ChatRequest(messages))

    assert server.log[0].body == {
        "model": "tiny",
        "messages": [message.to_openai() for message in messages],
        "temperature": 0,
        "top_k": 5,
    }
    assert server.log[0].headers["authorization"] == f"Bearer {KEY}"
    # No connection is kept for the next call.
    assert server.log[0].headers["connection"] == "close"


def test_options_default_to_the_environment(server: OpenAIServer, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    model = OpenAIChatModel()
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_MODEL", "env-model")

    assert ask(model).model == "env-model"
    assert model.name == "env-model"
    assert server.log[0].headers["authorization"] == "Bearer from-env"


@pytest.mark.parametrize("reason", ["length", "model_length", "model_context_window_exceeded"])
def test_an_answer_that_was_cut_off_is_returned_with_the_reason_length(server: OpenAIServer, reason: str) -> None:
    server.queue(answer_with({"content": "They spoke of"}, finish_reason=reason))

    response = chat(model_at(server))

    assert (response.message.text, response.finish_reason) == ("They spoke of", "length")


@pytest.mark.parametrize("kind", ["empty", "none", "apology"])
def test_doubtful_texts_are_returned_for_the_caller_to_judge(server: OpenAIServer, ask: Ask, kind: str) -> None:
    server.queue(Behaviour(kind))

    assert ask(model_at(server)).finish_reason == "stop"


def test_unknown_fields_of_the_message_are_kept(server: OpenAIServer) -> None:
    server.queue(answer_with(message={"content": "Hi", "reasoning_content": "Hm."}))

    message = chat(model_at(server)).message

    assert (message.role, message.text, message.extra["reasoning_content"]) == ("assistant", "Hi", "Hm.")


@pytest.mark.parametrize(
    "usage",
    [None, [], {}, {"prompt_tokens": 5}, {"prompt_tokens": -1, "completion_tokens": 1}]
    + [{"prompt_tokens": count, "completion_tokens": 1} for count in (True, "5", 1.5, 10**12)],
)
def test_invalid_usage_is_none(server: OpenAIServer, usage: Any) -> None:
    server.queue(answer_with(usage=usage))

    assert chat(model_at(server)).usage is None


@pytest.mark.parametrize(
    ("reported", "cached"),
    [
        ({}, None),
        ({"prompt_tokens_details": {"cached_tokens": 64}}, 64),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, 64),
        ({"prompt_tokens_details": {"cached_tokens": 101}}, 100),
        *(({"prompt_tokens_details": {"cached_tokens": count}}, None) for count in (True, "5", 1.5, -1, 10**12)),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": [64]}, None),
    ],
)
def test_usage_has_the_tokens_from_the_providers_cache(
    server: OpenAIServer, reported: dict[str, Any], cached: int | None
) -> None:
    server.queue(answer_with(usage={"prompt_tokens": 100, "completion_tokens": 7, **reported}))

    usage = chat(model_at(server)).usage

    assert usage == base.Usage(prompt_tokens=100, completion_tokens=7, cached_tokens=cached)


# The deadline.


@pytest.mark.parametrize("kind", ["hang", "drip", "drip_error"])
def test_at_the_deadline_a_call_returns_and_its_connection_is_closed(server: OpenAIServer, ask: Ask, kind: str) -> None:
    server.default = Behaviour(kind, seconds=30)

    deadline = 0.5
    while not server.log:  # On a busy machine the request may take longer than the deadline.
        started = time.monotonic()
        error = error_of(ask, model_at(server, timeout=deadline))
        assert time.monotonic() - started < AT_ONCE
        assert isinstance(error, exceptions.ModelUnavailable)
        assert str(error) == (
            f"The model gave no complete answer within {deadline} s. "
            "Check the provider's status, or raise the option timeout."
        )
        deadline *= 2

    assert server.wait_for(lambda log: log[0].aborted)


def test_nothing_is_sent_after_the_deadline(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call imports the client and loads certificates. A request after the deadline would cost money."""
    model = model_at(server, timeout=0.1)
    late = threading.Event()
    client = model._client()
    monkeypatch.setattr(model, "_client", lambda: late.wait() and client)

    error_of(chat, model)
    late.set()

    assert ended(*(thread for thread in threading.enumerate() if thread.name == "convmemory-chat-model"))
    assert not server.log


def test_a_slow_answer_within_the_deadline_is_an_answer(server: OpenAIServer, ask: Ask) -> None:
    server.queue(Behaviour("drip", latency=0.2, seconds=0.5))

    assert ask(model_at(server)).message.text == "[[fact-1]] [[fact-2]]"


def test_cancelling_the_task_closes_the_connection(server: OpenAIServer) -> None:
    server.queue(Behaviour("hang", seconds=30))

    async def cancelled() -> None:
        task = asyncio.create_task(model_at(server).achat(REQUEST))
        await asyncio.to_thread(server.wait_for, lambda log: len(log) == 1)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert server.wait_for(lambda log: log[0].aborted)


def test_achat_leaves_the_event_loop_free(server: OpenAIServer) -> None:
    server.default = Behaviour(latency=0.3)
    model = model_at(server)

    async def several() -> list[base.ChatResponse]:
        return await asyncio.gather(*(model.achat(REQUEST) for _ in range(5)))

    assert len(asyncio.run(several())) == 5
    # All five requests had arrived before the first was answered.
    assert max(entry.started for entry in server.log) < min(entry.finished or 0.0 for entry in server.log)


def test_an_exception_of_a_signal_handler_ends_the_wait(server: OpenAIServer) -> None:
    """Celery's soft time limit is such an exception."""
    server.queue(Behaviour("drip", seconds=30))

    class SoftTimeLimitError(Exception):
        pass

    def expire(*_: object) -> None:
        raise SoftTimeLimitError

    def send_signal() -> None:
        server.wait_for(lambda log: len(log) == 1)
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, expire)
    sender = threading.Thread(target=send_signal)
    sender.start()
    started = time.monotonic()
    try:
        with pytest.raises(SoftTimeLimitError):
            chat(model_at(server))
    finally:
        sender.join()
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < AT_ONCE
    assert server.wait_for(lambda log: log[0].aborted)
