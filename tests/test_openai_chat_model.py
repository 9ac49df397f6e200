"""The chat model, the real client and a real server that misbehaves; no mocks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import email.utils
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import openai as _client_library  # noqa: F401  its import takes longer than the deadlines of these tests
import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models import base, openai_replies
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.messages import ChatMessage
from tests.openai_server import Behaviour, OpenAIServer

ROOT = pathlib.Path(__file__).parent.parent
KEY = "sk-secret-0123456789"
SECRET = "Bohnensuppe um Mitternacht"
REQUEST = base.ChatRequest([ChatMessage.system("Sum up."), ChatMessage.human(f"[[fact-1]] {SECRET} [[fact-2]]")])

# What "returned at once, not when the server was done" means on a slow machine: hangs and drips last for 30 s.
AT_ONCE = 10.0

Ask = Callable[..., base.ChatResponse]


def chat(model: OpenAIChatModel, request: base.ChatRequest = REQUEST) -> base.ChatResponse:
    return model.chat(request)


def achat(model: OpenAIChatModel, request: base.ChatRequest = REQUEST) -> base.ChatResponse:
    return asyncio.run(model.achat(request))


@pytest.fixture(params=[chat, achat])
def ask(request: pytest.FixtureRequest) -> Ask:
    function: Ask = request.param
    return function


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture(autouse=True, scope="module")
def no_socket_is_left_behind() -> Iterator[None]:
    """A socket that nobody closed warns when it is collected, and a warning is a failure."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def no_thread_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor does a variable of the machine get in."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(variable, raising=False)
    yield
    assert ended(*(thread for thread in threading.enumerate() if thread.name == "convmemory-chat-model"))


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


# An answer.


def test_is_a_chat_model() -> None:
    model = OpenAIChatModel(model="tiny", timeout=7)

    assert isinstance(model, base.ChatModel)
    assert (model.name, model.deadline) == ("tiny", 7.0)


def test_gives_the_answer_with_usage_reason_and_model(server: OpenAIServer, ask: Ask) -> None:
    response = ask(model_at(server))

    assert response.message.role == "assistant"
    assert response.message.text == "[[fact-1]] [[fact-2]]"
    assert response.finish_reason == "stop"
    assert response.model == "tiny"
    assert response.usage is not None
    assert response.usage.prompt_tokens > 0
    assert response.usage.completion_tokens > 0


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


def test_reads_what_is_not_given_from_the_environment(
    server: OpenAIServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OpenAIChatModel()
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_MODEL", "env-model")

    assert ask(model).model == "env-model"
    assert model.name == "env-model"
    assert server.log[0].headers["authorization"] == "Bearer from-env"


def test_passes_on_an_answer_that_the_length_limit_cut(server: OpenAIServer, ask: Ask) -> None:
    server.queue(Behaviour("cut_off", text="They spoke of"))

    response = ask(model_at(server))

    assert (response.message.text, response.finish_reason) == ("They spoke of", "length")


@pytest.mark.parametrize("reason", ["model_length", "model_context_window_exceeded"])
def test_calls_a_cut_length_whatever_the_provider_calls_it(server: OpenAIServer, reason: str) -> None:
    server.queue(answer_with(finish_reason=reason))

    assert chat(model_at(server)).finish_reason == "length"


@pytest.mark.parametrize("kind", ["empty", "none", "apology"])
def test_passes_on_texts_for_the_caller_to_judge(server: OpenAIServer, ask: Ask, kind: str) -> None:
    server.queue(Behaviour(kind))

    assert ask(model_at(server)).finish_reason == "stop"


def test_keeps_fields_of_the_message_that_it_does_not_know(server: OpenAIServer) -> None:
    server.queue(answer_with(message={"content": "Hi", "reasoning_content": "Hm."}))

    message = chat(model_at(server)).message

    assert (message.role, message.text, message.extra["reasoning_content"]) == ("assistant", "Hi", "Hm.")


@pytest.mark.parametrize(
    "usage",
    [None, [], {}, {"prompt_tokens": 5}, {"prompt_tokens": -1, "completion_tokens": 1}]
    + [{"prompt_tokens": count, "completion_tokens": 1} for count in (True, "5", 1.5, 10**12)],
)
def test_usage_that_makes_no_sense_is_none(server: OpenAIServer, usage: Any) -> None:
    server.queue(answer_with(usage=usage))

    assert chat(model_at(server)).usage is None


# The deadline.


@pytest.mark.parametrize("kind", ["hang", "drip", "drip_error"])
def test_returns_at_the_deadline_whatever_the_server_does(server: OpenAIServer, ask: Ask, kind: str) -> None:
    server.queue(Behaviour(kind, seconds=30))
    started = time.monotonic()

    error = error_of(ask, model_at(server, timeout=0.5))

    assert time.monotonic() - started < AT_ONCE
    assert isinstance(error, exceptions.ModelUnavailable)
    assert str(error) == "The model gave no complete answer within 0.5 s."


@pytest.mark.parametrize("kind", ["hang", "drip", "drip_error"])
def test_the_connection_is_closed_soon_after_the_deadline(server: OpenAIServer, ask: Ask, kind: str) -> None:
    server.default = Behaviour(kind, seconds=30)

    deadline = 0.5
    while not server.log:  # a busy machine may need longer than that to send a request
        error_of(ask, model_at(server, timeout=deadline))
        deadline *= 2

    assert server.wait_for(lambda log: log[0].finished is not None)
    assert server.log[0].aborted


def test_nothing_is_sent_after_the_deadline(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call imports the client and loads certificates; a request that nobody waits for costs money."""
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
    # All five had come in before the first was answered.
    assert max(entry.started for entry in server.log) < min(entry.finished or 0.0 for entry in server.log)


def test_an_exception_of_a_signal_handler_ends_the_wait(server: OpenAIServer) -> None:
    """Celery's soft time limit arrives so."""
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


# Errors, by what a retry would change.


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("server_error", exceptions.ModelUnavailable),
        ("rate_limited", exceptions.ModelUnavailable),
        ("reset_before_body", exceptions.ModelUnavailable),
        ("reset_mid_body", exceptions.ModelUnavailable),
        ("unauthorized", exceptions.ModelMisconfigured),
        ("unknown_model", exceptions.ModelMisconfigured),
        ("no_quota", exceptions.ModelMisconfigured),
        ("context_length", exceptions.ContextLengthExceeded),
        ("content_filter", exceptions.ContentRefused),
        ("filtered", exceptions.ContentRefused),
        ("refusal", exceptions.ContentRefused),
        ("unfinished", exceptions.BadModelOutput),
        ("no_choices", exceptions.BadModelOutput),
        ("no_message", exceptions.BadModelOutput),
        ("malformed", exceptions.BadModelOutput),
        ("html", exceptions.BadModelOutput),
        ("huge", exceptions.BadModelOutput),
    ],
)
def test_classifies_what_goes_wrong(
    server: OpenAIServer, ask: Ask, kind: str, expected: type[exceptions.ChatModelError]
) -> None:
    server.queue(Behaviour(kind))

    assert type(error_of(ask, model_at(server))) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(status, exceptions.ModelUnavailable) for status in (400, 408, 409, 418, 422, 425, 429, 500, 502, 503, 504, 529)]
    + [(status, exceptions.ModelMisconfigured) for status in (302, 401, 402, 404, 405, 410)]
    + [(413, exceptions.ContextLengthExceeded)],
)
def test_classifies_a_status_that_comes_without_a_known_code(
    server: OpenAIServer, status: int, expected: type[exceptions.ChatModelError]
) -> None:
    bodies = ["", "<html>Oops</html>", '{"detail": "Oops"}', "[]", "null", '{"error": "Oops"}', "[" * 50_000]
    server.queue(*(Behaviour("raw", status=status, body=body) for body in bodies))
    model = model_at(server)

    assert [type(error_of(chat, model)) for _ in bodies] == [expected] * len(bodies)


def test_a_firewalls_403_is_none_of_the_models(server: OpenAIServer) -> None:
    bodies = ["", "<html>Request blocked</html>", '{"error": {"message": "Project has no access"}}', '{"detail": "No"}']
    server.queue(*(Behaviour("raw", status=403, body=body) for body in bodies))
    model = model_at(server)

    unavailable, misconfigured = exceptions.ModelUnavailable, exceptions.ModelMisconfigured
    assert [type(error_of(chat, model)) for _ in bodies] == [unavailable, unavailable, misconfigured, misconfigured]


def of_openai(message: str, code: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code} | fields}


def of_vllm(message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}


TOO_LONG = {
    "OpenAI": (400, of_openai("This model's maximum context length is 8192 tokens.", "context_length_exceeded")),
    "OpenAI, newer": (400, of_openai("Your input exceeds the context window of this model.")),
    "OpenAI, one message": (400, of_openai("Invalid 'messages[1].content'.", "string_above_max_length")),
    "OpenAI, a minute's tokens": (
        429,
        of_openai("Request too large for gpt-4o: Limit 30000, Requested 40000.", "rate_limit_exceeded", type="tokens"),
    ),
    "Azure": (400, of_openai("This model's maximum context length is 4096 tokens, however you requested 5000.")),
    "Groq": (413, of_openai("Request too large for model `llama` (TPM): Limit 6000.", "rate_limit_exceeded")),
    "Groq, the window": (400, of_openai("Please reduce the length of the messages or completion.")),
    "vLLM": (400, of_vllm("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.")),
    "vLLM, newer": (400, of_vllm("The decoder prompt (length 5000) is longer than the maximum model length of 4096.")),
    "vLLM, older": (400, of_vllm("max_tokens must be at least 1, got -186.")),
    "SGLang": (400, of_vllm("The input (61709 tokens) is longer than the model's context length (40960 tokens).")),
    "SGLang, memory": (400, of_vllm("Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).")),
    "llama.cpp": (
        400,
        {"error": {"code": 400, "message": "request (4390 tokens) is too long", "type": "exceed_context_size_error"}},
    ),
    "llama.cpp, older": (
        500,
        {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}},
    ),
    "llama-cpp-python": (500, of_openai("Requested tokens (2285) exceed context window of 2048")),
    "Ollama": (400, {"error": "the input length exceeds the context length"}),
    "Ollama, chat": (400, {"error": "prompt too long; exceeded max context length by 10 tokens"}),
    "LM Studio": (
        400,
        {"error": "Trying to keep the first 15857 tokens. The model is loaded with context length of only 4096 tokens"},
    ),
    "LiteLLM": (400, of_openai("litellm.ContextWindowExceededError: litellm.BadRequestError: …", "400")),
    "OpenRouter": (400, of_openai("This endpoint's maximum context length is 16384 tokens.", code=None)),
    "OpenRouter, from within": (
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": '{"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}'},
            }
        },
    ),
    "Text Generation Inference": (
        422,
        {
            "error": "`inputs` tokens + `max_new_tokens` must be <= 1512.",
            "error_type": "validation",
        },
    ),
    "Mistral": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 65673 tokens, too large for model with 32768 maximum context length",
            "type": "invalid_request_prompt",
            "code": "3051",
        },
    ),
    "Gemini": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (1196265) exceeds the maximum number of tokens allowed.",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    "xAI": (
        400,
        {"code": "x", "error": "This model's maximum prompt length is 131072 but the request contains 537812"},
    ),
    "Anthropic": (400, of_openai("prompt is too long: 213462 tokens > 200000 maximum")),
    "Moonshot": (400, of_openai("Invalid request: Your request exceeded model token limit: 262144")),
    "DashScope": (400, of_openai("Range of input length should be [1, 30720]", "invalid_parameter_error")),
    "FastAPI": (422, {"detail": [{"loc": ["body"], "msg": "too large for model with 8 tokens", "input": "…"}]}),
    "nginx": (413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
}


@pytest.mark.parametrize("provider", TOO_LONG)
def test_knows_a_request_that_is_too_long(server: OpenAIServer, provider: str) -> None:
    status, body = TOO_LONG[provider]
    server.queue(Behaviour("raw", status=status, body=body))

    assert type(error_of(chat, model_at(server))) is exceptions.ContextLengthExceeded


def test_a_prompt_above_the_servers_limit_is_too_long(server: OpenAIServer, ask: Ask) -> None:
    server.max_prompt_characters = 40
    model = model_at(server)

    assert type(error_of(ask, model)) is exceptions.ContextLengthExceeded
    assert ask(model, base.ChatRequest([ChatMessage.human("[[short]]")])).message.text == "[[short]]"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, of_openai("The response was filtered", "content_filter", innererror={"code": "ContentFiltered"})),
        (400, of_openai("…", innererror={"code": "ResponsibleAIPolicyViolation"})),
        (400, of_openai("…", provider_specific_fields={"innererror": {"code": "ResponsibleAIPolicyViolation"}})),
        (400, of_openai("Rejected by our safety system.", "content_policy_violation")),
        (400, of_openai("…triggering Azure OpenAI's content management policy.", "400")),
        (400, of_openai("Content Exists Risk", "invalid_request_error")),
        (400, of_openai("…", "data_inspection_failed")),
        (403, of_openai("The model requires moderation. Your input was flagged.", None)),
        (200, {"error": {"code": 403, "message": "The model requires moderation. Your input was flagged."}}),
        (200, {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter: SAFETY"}]}),
    ],
)
def test_knows_content_that_is_refused(server: OpenAIServer, status: int, body: Any) -> None:
    server.queue(Behaviour("raw", status=status, body=body))

    assert type(error_of(chat, model_at(server))) is exceptions.ContentRefused


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, of_openai("You exceeded your current quota", "insufficient_quota")),
        (429, of_openai("…", "project_spend_limit_exceeded", type="insufficient_quota")),
        (400, of_openai("…", "billing_hard_limit_reached")),
        (402, of_openai("Insufficient Balance", "invalid_request_error")),
        (400, of_openai("Your credit balance is too low to access the API.")),
        (400, [{"error": {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}}]),
        (400, of_openai("Model Not Exist", "invalid_request_error")),
        (400, of_openai("nope/nope is not a valid model ID", None)),
        (400, of_openai("…", "model_decommissioned")),
        (404, {"error": {"code": "DeploymentNotFound", "message": "…"}}),
        (400, of_openai("Unsupported value", "unsupported_value", param="temperature")),
        (400, of_openai("…", None, param="model")),
        (200, {"error": {"code": 402, "message": "Insufficient credits."}}),
    ],
)
def test_knows_what_only_a_person_can_mend(server: OpenAIServer, status: int, body: Any) -> None:
    server.queue(Behaviour("raw", status=status, body=body))

    error = error_of(chat, model_at(server, parameters={"temperature": 0}))

    assert type(error) is exceptions.ModelMisconfigured


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, of_openai("Invalid value for 'messages[3]'", "invalid_value", param="messages.[3]")),
        (429, of_openai("Too many tokens, please wait before trying again.")),
        (
            429,
            of_openai("Rate limit reached: Limit 10000, Used 9000, Requested 2000. Try again in 6ms.", type="tokens"),
        ),
        (200, {"error": {"code": 502, "message": "Provider disconnected"}}),
        (200, {"error": {"message": "Something went wrong"}}),
        (200, {"error": "Something went wrong"}),
        (200, {"choices": [{"message": {"content": "Half a"}, "finish_reason": "error"}]}),
        (200, {"choices": [{"message": {"content": "Half a"}, "finish_reason": "insufficient_system_resource"}]}),
    ],
)
def test_takes_other_errors_for_passing_ones(server: OpenAIServer, status: int, body: Any) -> None:
    server.queue(Behaviour("raw", status=status, body=body))

    assert type(error_of(chat, model_at(server))) is exceptions.ModelUnavailable


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        '"text"',
        "[]",
        "{}",
        '{"choices": "none"}',
        '{"choices": [null]}',
        '{"choices": [{"message": "text", "finish_reason": "stop"}]}',
        '{"choices": [{"message": {"content": "Hi"}}]}',
        '{"choices": [{"message": {"content": "Hi"}, "finish_reason": ""}]}',
        '{"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}',
        '{"choices": [{"message": {"role": "parrot", "content": "Hi"}, "finish_reason": "stop"}]}',
        '{"choices": [{"message": {"content": "a\\u0000b"}, "finish_reason": "stop"}]}',
        '{"choices": [{"message": {"content": "a\\ud800b"}, "finish_reason": "stop"}]}',
        '{"choices": [{"message": {"content": "Hi", "score": NaN}, "finish_reason": "stop"}]}',
        '{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "n": ' + "9" * 5000 + "}",
        "[" * 100_000,
        "data: {}\n\ndata: [DONE]\n\n",
    ],
    ids=lambda body: body[:60],
)
def test_an_answer_that_cannot_be_used_is_bad_output(server: OpenAIServer, body: str) -> None:
    server.queue(Behaviour("raw", body=body))

    assert type(error_of(chat, model_at(server))) is exceptions.BadModelOutput


def answer_with(message: dict[str, Any] | None = None, finish_reason: str = "stop", **fields: Any) -> Behaviour:
    choice = {"index": 0, "message": message or {"role": "assistant", "content": "Hi"}, "finish_reason": finish_reason}
    return Behaviour("raw", body={"choices": [choice], **fields})


def test_a_body_that_is_not_utf_8_is_bad_output(server: OpenAIServer, ask: Ask) -> None:
    server.queue(Behaviour("raw", body="\x1f\x8b", headers={"Content-Encoding": "gzip"}))

    assert isinstance(error_of(ask, model_at(server)), exceptions.ModelUnavailable | exceptions.BadModelOutput)


def test_reads_no_error_body_without_end(server: OpenAIServer, ask: Ask) -> None:
    server.queue(Behaviour("raw", status=503, body="x" * 30_000_000))

    assert type(error_of(ask, model_at(server))) is exceptions.ModelUnavailable
    assert server.wait_for(lambda log: log[0].aborted)


def test_a_server_that_is_not_there_is_unavailable(ask: Ask) -> None:
    with OpenAIServer() as server:
        model = model_at(server)

    error = error_of(ask, model)

    assert type(error) is exceptions.ModelUnavailable
    assert error.retry_after is None


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("0.5", 0.5), ("0", 0.0), ("-3", 0.0)])
def test_passes_on_the_pause_that_a_provider_asks_for(
    server: OpenAIServer, ask: Ask, header: str, seconds: float
) -> None:
    server.queue(Behaviour("rate_limited", retry_after=header))

    error = error_of(ask, model_at(server))

    assert isinstance(error, exceptions.ModelUnavailable)
    assert error.retry_after == seconds


def test_reads_a_pause_given_as_a_date() -> None:
    in_an_hour = email.utils.formatdate(time.time() + 3600, usegmt=True)

    pause = openai_replies.retry_after({"retry-after": in_an_hour})

    assert pause is not None
    assert 3000 < pause <= 3600
    assert openai_replies.retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert openai_replies.retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}) == 0.0


def test_prefers_a_pause_in_milliseconds() -> None:
    assert openai_replies.retry_after({"retry-after-ms": "1500", "retry-after": "2"}) == 1.5


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "Wed, 99 Oct 2015 07:28:00 GMT", "2015-10-21T07:28:00Z"])
def test_ignores_a_pause_that_makes_no_sense(value: str) -> None:
    assert openai_replies.retry_after({"retry-after": value}) is None


def test_a_date_beyond_the_calendar_is_no_pause() -> None:
    for zone in ("+9999999999999999", "-9999999999999999"):
        assert openai_replies.retry_after({"retry-after": f"Mon, 01 Jan 2024 00:00:00 {zone}"}) is None


def test_keeps_no_connection_that_a_server_could_close_before_the_next_call(server: OpenAIServer, ask: Ask) -> None:
    ask(model_at(server))

    assert server.log[0].headers["connection"] == "close"


def test_tries_nothing_twice(server: OpenAIServer, ask: Ask) -> None:
    model = model_at(server)
    for kind in ("server_error", "rate_limited", "reset_before_body"):
        server.queue(Behaviour(kind))
        error_of(ask, model)

    assert len(server.log) == 3


def test_follows_no_redirect(server: OpenAIServer, ask: Ask) -> None:
    server.queue(Behaviour("raw", status=307, headers={"Location": f"{server.base_url}/elsewhere/chat/completions"}))

    assert type(error_of(ask, model_at(server))) is exceptions.ModelMisconfigured
    assert len(server.log) == 1


def test_an_error_handled_by_the_caller_is_not_mistaken_for_this_calls(server: OpenAIServer, ask: Ask) -> None:
    server.queue(Behaviour("reset_before_body"))

    def handling(model: OpenAIChatModel) -> base.ChatResponse:
        try:
            raise exceptions.ContentRefused("an earlier call's")
        except exceptions.ContentRefused:
            return ask(model)

    assert type(error_of(handling, model_at(server))) is exceptions.ModelUnavailable


# What an exception says.


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour("raw", status=400, body=of_openai(f"Bad: {SECRET}\n{KEY}", f"{SECRET}")),
        Behaviour("raw", status=500, body=f"{SECRET}\n{KEY}"),
        Behaviour("raw", status=200, body=f"{SECRET}\n{KEY}", headers={"Content-Type": SECRET}),
        Behaviour("raw", status=200, body={"choices": [{"message": {"role": SECRET}, "finish_reason": "stop"}]}),
        Behaviour("raw", status=422, body={"detail": [{"msg": SECRET, "input": SECRET}]}),
        Behaviour("reset_mid_body", text=SECRET),
        Behaviour("reset_before_body"),
    ],
)
def test_no_error_tells_the_key_or_what_was_said(server: OpenAIServer, ask: Ask, behaviour: Behaviour) -> None:
    server.queue(behaviour)

    error = error_of(ask, model_at(server))

    assert SECRET not in repr(error)
    assert KEY not in repr(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 200
    assert error.__cause__ is None
    assert error.__context__ is None


def test_the_model_does_not_show_its_key() -> None:
    assert KEY not in repr(OpenAIChatModel(model="tiny", api_key=KEY))


# Configuration.


def test_no_model_is_an_error_at_the_call(server: OpenAIServer, ask: Ask) -> None:
    error = error_of(ask, model_at(server, model=None))

    assert type(error) is exceptions.ModelMisconfigured
    assert "OPENAI_MODEL" in str(error)


def test_no_key_is_an_error_at_the_call(server: OpenAIServer, ask: Ask) -> None:
    error = error_of(ask, model_at(server, api_key=""))

    assert type(error) is exceptions.ModelMisconfigured
    assert "OPENAI_API_KEY" in str(error)


@pytest.mark.parametrize("key", [f"{KEY}\n", f"Bearer {KEY}", f"{KEY}ä"])
def test_a_key_that_no_header_can_hold_is_an_error_that_does_not_tell_it(
    server: OpenAIServer, ask: Ask, key: str
) -> None:
    error = error_of(ask, model_at(server, api_key=key))

    assert type(error) is exceptions.ModelMisconfigured
    assert KEY not in str(error)


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://host/v1", "http://", "http://[::1/v1", "http://host:port/v1", "\x00"]
)
def test_a_base_url_that_is_none_is_an_error_at_the_call(server: OpenAIServer, ask: Ask, url: str) -> None:
    assert type(error_of(ask, model_at(server, base_url=url))) is exceptions.ModelMisconfigured


def test_a_client_that_is_not_installed_is_an_error_at_the_call(
    server: OpenAIServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)

    assert type(error_of(ask, model_at(server))) is exceptions.ModelMisconfigured


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("model", 5, TypeError),
        ("api_key", b"key", TypeError),
        ("base_url", 5, TypeError),
        ("timeout", "60", TypeError),
        ("timeout", None, TypeError),
        ("timeout", True, TypeError),
        ("timeout", 0, ValueError),
        ("timeout", -1.0, ValueError),
        ("timeout", float("nan"), ValueError),
        ("timeout", float("inf"), ValueError),
        ("parameters", [("temperature", 0)], TypeError),
        ("parameters", {1: 0}, TypeError),
        ("parameters", {"stop": object()}, ValueError),
        ("parameters", {"temperature": float("nan")}, ValueError),
        ("parameters", {"model": "other"}, ValueError),
        ("parameters", {"messages": []}, ValueError),
        ("parameters", {"stream": True}, ValueError),
    ],
)
def test_an_option_of_the_wrong_form_is_refused_by_name(option: str, value: Any, expected: type[Exception]) -> None:
    with pytest.raises(expected, match=f"^{option} "):
        OpenAIChatModel(**{option: value})


def test_the_parameters_are_a_copy(server: OpenAIServer) -> None:
    parameters = {"stop": ["END"]}
    model = model_at(server, parameters=parameters)
    parameters["stop"].append("MORE")

    chat(model)

    assert server.log[0].body["stop"] == ["END"]


# Processes, threads and event loops.


def test_importing_the_module_does_not_import_the_client() -> None:
    code = "import sys, django_convmemory.chat_models.openai; sys.exit('openai' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_one_model_serves_many_threads(server: OpenAIServer) -> None:
    model = model_at(server)

    def answer_to(number: int) -> str:
        return model.chat(base.ChatRequest([ChatMessage.human(f"[[{number}]]")])).message.text

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(answer_to, range(100))) == [f"[[{number}]]" for number in range(100)]


def test_one_model_serves_one_event_loop_after_the_other_and_keeps_none(server: OpenAIServer) -> None:
    model = model_at(server)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def call() -> base.ChatResponse:
        response = await model.achat(REQUEST)
        loops.append(weakref.ref(asyncio.get_running_loop()))
        return response

    for _ in range(3):
        assert asyncio.run(call()).finish_reason == "stop"
    gc.collect()

    assert [loop() for loop in loops] == [None, None, None]
    assert not model._async_clients


def test_a_client_is_made_once_for_a_process_and_once_for_an_event_loop(server: OpenAIServer) -> None:
    model = model_at(server)

    async def twice() -> object:
        await model.achat(REQUEST)
        client = model._async_client()
        await model.achat(REQUEST)
        assert model._async_client() is client
        return client

    chat(model)
    client = model._client()
    chat(model)

    assert model._client() is client
    assert asyncio.run(twice()) is not asyncio.run(twice())


FORKED = """
import json, os, sys, threading, time, urllib.request, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: the point of the test
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.messages import ChatMessage

url = sys.argv[1]
model = OpenAIChatModel(model="tiny", api_key="key", base_url=url + "/v1")

def answered(marker):
    return model.chat(ChatRequest([ChatMessage.human(marker)])).message.text == marker

assert answered("[[parent]]")
parents_client = model._client()
waiting = threading.Thread(target=answered, args=["[[waiting]]"])
waiting.start()
while len(json.load(urllib.request.urlopen(url + "/_log"))) < 2:
    time.sleep(0.01)
children = []
for number in range(4):
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if answered(f"[[child-{number}]]") and model._client() is not parents_client else 2
        finally:
            os._exit(code)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
waiting.join()
assert answered("[[parent again]]")
sys.exit(str(codes) if any(codes) else 0)
"""


def test_a_forked_child_has_a_client_of_its_own(server: OpenAIServer) -> None:
    """Also of a parent that waits for an answer as it forks.

    Not of one whose threads begin or end a call at that very moment: OpenSSL has locks that no fork can cross.
    """
    server.queue(Behaviour(), Behaviour("drip", seconds=3))
    run = subprocess.run(
        [sys.executable, "-c", FORKED, server.base_url.removesuffix("/v1")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.returncode, run.stderr) == (0, "")


# The server as a process, which other tests rely on.


def test_the_server_runs_as_a_process_and_is_controlled_over_http() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.openai_server"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            model = OpenAIChatModel(model="tiny", api_key=KEY, base_url=f"{url}/v1")
            control(
                f"{url}/_behaviour",
                {
                    "queue": [{"kind": "answer", "text": "First."}],
                    "mix": [{"weight": 1, "kind": "server_error"}, {"weight": 0, "kind": "hang"}],
                    "max_prompt_characters": 1000,
                },
            )

            assert chat(model).message.text == "First."
            assert type(error_of(chat, model)) is exceptions.ModelUnavailable
            control(f"{url}/_behaviour", {"mix": [], "default": {"kind": "answer", "text": "Last."}})
            assert chat(model).message.text == "Last."
            log = control(f"{url}/_log")
            assert [entry["behaviour"] for entry in log] == ["answer", "server_error", "answer"]
            assert all(entry["started"] <= entry["finished"] and not entry["aborted"] for entry in log)
            control(f"{url}/_log", method="DELETE")
            assert control(f"{url}/_log") == []
        finally:
            process.kill()


def control(url: str, document: Any = None, method: str | None = None) -> Any:
    content = None if document is None else json.dumps(document).encode()
    with urllib.request.urlopen(urllib.request.Request(url, content, method=method)) as response:  # noqa: S310
        return json.load(response)
