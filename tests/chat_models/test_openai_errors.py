"""The classification of every failure of the OpenAI chat model, and the texts of its errors."""

from __future__ import annotations

import email.utils
import time
from typing import Any

import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models import base, openai_replies
from django_convmemory.chat_models.openai import OpenAIChatModel
from tests.chat_models.asking import KEY, SECRET, Ask, chat, error_of, model_at
from tests.openai_server import Behaviour, OpenAIServer

# Errors, by what a retry would change.


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("server_error", exceptions.ModelUnavailable),
        ("rate_limited", exceptions.RateLimited),
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
def test_failures_are_classified(
    server: OpenAIServer, ask: Ask, kind: str, expected: type[exceptions.ChatModelError]
) -> None:
    server.queue(Behaviour(kind))

    assert type(error_of(ask, model_at(server))) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(status, exceptions.ModelUnavailable) for status in (408, 500, 502, 503, 504, 529)]
    + [(status, exceptions.RequestRejected) for status in (400, 409, 418, 422, 425)]
    + [(429, exceptions.RateLimited)]
    + [(status, exceptions.ModelMisconfigured) for status in (302, 401, 402, 404, 405, 410)]
    + [(413, exceptions.ContextLengthExceeded)],
)
def test_a_status_without_a_known_code_is_classified(
    server: OpenAIServer, status: int, expected: type[exceptions.ChatModelError]
) -> None:
    bodies = ["", "<html>Oops</html>", '{"detail": "Oops"}', "[]", "null", '{"error": "Oops"}', "[" * 50_000]
    server.queue(*(Behaviour("raw", status=status, body=body) for body in bodies))
    model = model_at(server)

    assert [type(error_of(chat, model)) for _ in bodies] == [expected] * len(bodies)


def test_a_firewalls_403_is_not_the_models(server: OpenAIServer) -> None:
    bodies = ["", "<html>Request blocked</html>", '{"error": {"message": "Project has no access"}}', '{"detail": "No"}']
    server.queue(*(Behaviour("raw", status=403, body=body) for body in bodies))
    model = model_at(server)

    rejected, misconfigured = exceptions.RequestRejected, exceptions.ModelMisconfigured
    assert [type(error_of(chat, model)) for _ in bodies] == [rejected, rejected, misconfigured, misconfigured]


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


BY_BODY: dict[type[exceptions.ChatModelError], list[tuple[int, Any]]] = {
    exceptions.ContextLengthExceeded: list(TOO_LONG.values()),
    exceptions.ContentRefused: [
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
    exceptions.ModelMisconfigured: [
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
    exceptions.RequestRejected: [
        (400, of_openai("Invalid value for 'messages[3]'", "invalid_value", param="messages.[3]")),
    ],
    exceptions.RateLimited: [
        (429, of_openai("Too many tokens, please wait before trying again.")),
        (429, of_openai("Rate limit reached: Limit 10000, Used 9000, Requested 2000. In 6ms.", type="tokens")),
    ],
    exceptions.ModelUnavailable: [
        (200, {"error": {"code": 502, "message": "Provider disconnected"}}),
        (200, {"error": {"message": "Something went wrong"}}),
        (200, {"error": "Something went wrong"}),
        (200, {"choices": [{"message": {"content": "Half a"}, "finish_reason": "error"}]}),
        (200, {"choices": [{"message": {"content": "Half a"}, "finish_reason": "insufficient_system_resource"}]}),
    ],
    exceptions.BadModelOutput: [
        (200, body)
        for body in [
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
        ]
    ],
}


@pytest.mark.parametrize(
    ("expected", "status", "body"),
    [(error, *case) for error, cases in BY_BODY.items() for case in cases],
    ids=lambda value: getattr(value, "__name__", str(value)[:60]),
)
def test_an_answer_is_classified_by_its_body(
    server: OpenAIServer, expected: type[exceptions.ChatModelError], status: int, body: Any
) -> None:
    server.queue(Behaviour("raw", status=status, body=body))

    assert type(error_of(chat, model_at(server, parameters={"temperature": 0}))) is expected


UNKNOWN = [
    (400, ""),
    (400, "<html><h1>400 Bad Request</h1></html>"),
    (400, of_openai("Die Eingabe ist zu lang.")),
    (400, of_openai("Prompt 超长", "1261")),
    (400, of_openai("…", "invalid_value", param="messages.[3]")),
    (422, {"detail": [{"type": "string_too_long", "msg": "String should have at most 8000 characters"}]}),
    (200, {"error": {"code": 400, "message": "…"}}),
]
KNOWN = [
    (400, of_openai("Incorrect API key provided.")),
    (409, of_openai("The input is too long.")),
    (400, of_openai("The model `tiny` does not exist.")),
    (400, of_openai("…", "unsupported_parameter", param="top_k")),
    (400, of_openai("Unrecognized request argument supplied: top_k")),
    (422, {"detail": [{"type": "extra_forbidden", "msg": "Extra inputs are not permitted"}]}),
    (400, of_openai("Blocked by our content policy.")),
    (400, of_openai("输入包含敏感内容")),
]


@pytest.mark.parametrize(
    ("status", "body", "expected"), [(*case, True) for case in UNKNOWN] + [(*case, False) for case in KNOWN]
)
def test_only_an_error_that_is_not_known_may_mean_the_length(
    server: OpenAIServer, status: int, body: Any, expected: bool
) -> None:
    server.queue(Behaviour("raw", status=status, body=body))

    error = error_of(chat, model_at(server))

    assert isinstance(error, exceptions.RequestRejected)
    assert error.may_be_too_long is expected


def test_a_body_that_is_not_utf_8_is_bad_output(server: OpenAIServer, ask: Ask) -> None:
    server.queue(Behaviour("raw", body="\x1f\x8b", headers={"Content-Encoding": "gzip"}))

    assert isinstance(error_of(ask, model_at(server)), exceptions.ModelUnavailable | exceptions.BadModelOutput)


def test_an_endless_error_body_is_not_read_to_its_end(server: OpenAIServer, ask: Ask) -> None:
    server.queue(Behaviour("raw", status=503, body="x" * 30_000_000))

    assert type(error_of(ask, model_at(server))) is exceptions.ModelUnavailable
    assert server.wait_for(lambda log: log[0].aborted)


def test_an_unreachable_server_is_unavailable(ask: Ask) -> None:
    with OpenAIServer() as server:
        model = model_at(server)

    error = error_of(ask, model)

    assert type(error) is exceptions.ModelUnavailable
    assert error.retry_after is None


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("0.5", 0.5), ("0", 0.0), ("-3", 0.0)])
def test_the_pause_that_a_provider_asks_for_is_in_the_error(
    server: OpenAIServer, ask: Ask, header: str, seconds: float
) -> None:
    server.queue(Behaviour("rate_limited", retry_after=header))

    error = error_of(ask, model_at(server))

    assert isinstance(error, exceptions.ModelUnavailable)
    assert error.retry_after == seconds


def test_a_pause_may_be_a_date_or_in_milliseconds() -> None:
    in_an_hour = email.utils.formatdate(time.time() + 3600, usegmt=True)

    pause = openai_replies.retry_after({"retry-after": in_an_hour})

    assert pause is not None
    assert 3000 < pause <= 3600
    assert openai_replies.retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert openai_replies.retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}) == 0.0
    assert openai_replies.retry_after({"retry-after-ms": "1500", "retry-after": "2"}) == 1.5


@pytest.mark.parametrize(
    "value",
    [
        *("", "soon", "nan", "inf", "Wed, 99 Oct 2015 07:28:00 GMT", "2015-10-21T07:28:00Z"),
        # Beyond the calendar.
        *(f"Mon, 01 Jan 2024 00:00:00 {sign}9999999999999999" for sign in "+-"),
    ],
)
def test_an_invalid_pause_is_ignored(value: str) -> None:
    assert openai_replies.retry_after({"retry-after": value}) is None


def test_no_request_is_repeated(server: OpenAIServer, ask: Ask) -> None:
    model = model_at(server)
    for kind in ("server_error", "rate_limited", "reset_before_body"):
        server.queue(Behaviour(kind))
        error_of(ask, model)

    assert len(server.log) == 3


def test_no_redirect_is_followed(server: OpenAIServer, ask: Ask) -> None:
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


# The texts of errors.


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
def test_no_error_contains_the_key_or_the_conversation(server: OpenAIServer, ask: Ask, behaviour: Behaviour) -> None:
    server.queue(behaviour)

    error = error_of(ask, model_at(server))

    assert SECRET not in repr(error)
    assert KEY not in repr(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 200
    assert error.__cause__ is None
    assert error.__context__ is None


def test_the_repr_does_not_contain_the_key() -> None:
    assert KEY not in repr(OpenAIChatModel(model="tiny", api_key=KEY))
