"""What a reply of an OpenAI-compatible server means: an answer, or which of our errors.

Servers that call themselves compatible agree least in their errors; how each of them says a thing is in the tables.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import email.utils
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from django_convmemory import exceptions, messages
from django_convmemory.chat_models import base


def _one_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# How the servers say one and the same thing: in a word (the error's code or type, in lower case), or in its text.

CONTEXT_LENGTH_WORDS: Final = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq
        "contextwindowexceedederror",  # LiteLLM
        "exceed_context_size_error",  # llama.cpp
        "request_too_large",  # Anthropic's compatible endpoint
        "string_above_max_length",  # OpenAI: one message alone is too long
    }
)
CONTEXT_LENGTH_TEXTS: Final = _one_of(
    r"maximum context length",  # OpenAI, vLLM, DeepSeek, OpenRouter, Fireworks, Mistral
    r"reduce the length of (the|your) (messages|prompt|input)",  # OpenAI, Groq
    r"string too long\. expected a string with maximum length",  # OpenAI: one message alone
    r"request too large for|tokens must be reduced",  # OpenAI, Groq: larger than a whole minute's tokens
    r"exceeds? .{0,40}context (length|limit|size|window)",  # OpenAI, llama.cpp, llama-cpp-python, Ollama
    r"context (length|size|window) (has been |was )?exceeded",  # llama.cpp, with status 500
    r"exceeded max context length",  # Ollama
    r"contextwindowexceedederror",  # LiteLLM, in front of the provider's own text
    r"longer than the (maximum model|model's context) length",  # vLLM, SGLang
    r"max_tokens must be at least 1, got -\d",  # vLLM, older: what the prompt leaves of the window
    r"input length .{0,40}exceeds the maximum",  # SGLang
    r"greater than the context length|loaded with context length of only",  # LM Studio
    r"must have less than \d+ tokens|inputs`? tokens \+ `?max_new_tokens",  # TGI, Together
    r"too large for model with \d+",  # Mistral
    r"prompt is too long",  # Anthropic's compatible endpoint, Fireworks
    r"input is too long for requested model",  # Bedrock
    r"input token count .{0,40}exceeds the maximum",  # Gemini
    r"maximum prompt length is \d+",  # xAI
    r"exceeded model token limit",  # Moonshot
    r"context window exceeds limit",  # MiniMax
    r"range of input length should be",  # DashScope
    r"too many tokens: total number of tokens",  # Cohere; without the colon it is Bedrock's rate limit
)

REFUSAL_WORDS: Final = frozenset(
    {
        "content_filter",  # OpenAI, Azure, Moonshot
        "content_policy_violation",  # OpenAI
        "invalid_prompt",  # OpenAI: flagged before a reasoning model sees it
        "responsibleaipolicyviolation",  # Azure
        "contentpolicyviolationerror",  # LiteLLM
        "data_inspection_failed",  # DashScope
        "datainspectionfailed",
    }
)
REFUSAL_TEXTS: Final = _one_of(
    r"content management policy",  # Azure, also through LiteLLM
    r"contentpolicyviolationerror",  # LiteLLM
    r"content exists risk",  # DeepSeek
    r"considered high risk",  # Moonshot
    r"requires moderation",  # OpenRouter, with status 403
    r"flagged as potentially violating",  # OpenAI
)

SETUP_WORDS: Final = frozenset(
    {
        # The account, whatever the status: OpenAI answers 429, which else means a rate limit.
        "account_deactivated",
        "arrearage",
        "billing_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "credit_balance_exhausted",
        "exceeded_current_quota_error",
        "insufficient_quota",
        "organization_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "payment_required",
        "project_spend_limit_exceeded",
        # The key and the model, from servers that answer 400.
        "deploymentnotfound",
        "invalid_api_key",
        "invalid_model",
        "model_decommissioned",
        "model_not_found",
    }
)
SETUP_TEXTS: Final = _one_of(
    r"credit balance is too low",  # Anthropic's compatible endpoint
    r"api key not valid",  # Gemini
    r"model not exist",  # DeepSeek
    r"is not a valid model id",  # OpenRouter
    r"invalid model name passed in model=",  # LiteLLM
)
SETUP_STATUSES: Final = frozenset({401, 402, 403, 404, 405, 410})

# Reasons to finish that are not OpenAI's. Compaction knows its two: "stop", and "length" for a text that was cut.
CUT_FINISH_REASONS: Final = frozenset({"model_length", "model_context_window_exceeded"})
BROKEN_FINISH_REASONS: Final = frozenset({"abort", "error", "insufficient_system_resource", "network_error"})


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered, whatever the status.

    The keys of ``headers`` are compared without case. ``cut`` is the error to raise where ``body`` is not all of it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: exceptions.ChatModelError | None = None


# A reply that is no answer.


def rejected(reply: Reply, parameters: Mapping[str, Any]) -> exceptions.ChatModelError:
    """Return the error that a reply stands for whose status is no success."""
    return rejection(reply.status, document_of(reply), reply, parameters)


def rejection(
    status: int | None, document: Any, reply: Reply, parameters: Mapping[str, Any]
) -> exceptions.ChatModelError:
    """Return the error that a reply stands for.

    ``status`` is None where an error came with a status of success and does not say which it should have been.
    """
    error = _error_object(document)
    words = _words(error)
    text = _text(error) if error else reply.body[:2000].decode(errors="replace")
    said = _said(status, error)

    if words & REFUSAL_WORDS or REFUSAL_TEXTS.search(text):
        return exceptions.ContentRefused(f"{said}: it refuses this content.")
    # A body too large for a server in between, or for the tokens of a minute, is a 413 too: smaller ones pass.
    if (
        status == 413
        or words & CONTEXT_LENGTH_WORDS
        or (status in {None, 400, 422, 429, 500} and CONTEXT_LENGTH_TEXTS.search(text))
    ):
        return exceptions.ContextLengthExceeded(f"{said}: the request is too large for it.")
    # A firewall in between answers 403 as well, to what one conversation says, and in HTML.
    firewall = status == 403 and document is None
    if words & SETUP_WORDS or SETUP_TEXTS.search(text) or (status in SETUP_STATUSES and not firewall):
        return exceptions.ModelMisconfigured(f"{said}: check api_key, model, base_url and the account's quota.")
    if status is not None and 300 <= status < 400:
        return exceptions.ModelMisconfigured(f"{said}, a redirect: base_url must be where it leads to.")
    # 400 and 422 blame the request. The part of it that is configuration is known by name; the rest is the messages,
    # or a gateway that turns its provider's every error into 400. Nothing is certain then, and what is counted,
    # tried again later and given to the fallback model in the end is a model that is unavailable.
    blamed = error.get("param")
    if status in {400, 422} and isinstance(blamed, str) and (blamed == "model" or blamed in parameters):
        return exceptions.ModelMisconfigured(f"{said}: it refuses the parameter {blamed!r}.")
    return exceptions.ModelUnavailable(f"{said}.", retry_after=retry_after(reply.headers))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause in seconds that a reply asks for, or None: ``retry-after-ms``, or ``Retry-After`` as a number
    of seconds or as a date."""
    for header, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        value = headers.get(header, "")
        try:
            seconds = float(value) / divisor
        except (ValueError, OverflowError):
            continue
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    try:
        until = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        if until.tzinfo is None:  # "-0000": UTC, says RFC 5322
            until = until.replace(tzinfo=dt.UTC)
        return max((until - dt.datetime.now(dt.UTC)).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None


def document_of(reply: Reply) -> Any:
    """Return the reply's body as JSON, or None where it is none."""
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        return None


def _error_object(document: Any) -> Mapping[str, Any]:
    """Return the error in the body of a reply: under ``error`` (OpenAI), in a list (Gemini), or all of it (vLLM)."""
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return {}
    error = document.get("error", document)
    return error if isinstance(error, dict) else {"message": error}


def _words(error: Mapping[str, Any]) -> frozenset[str]:
    """Return the codes and types of an error, in lower case, with those that gateways keep of their provider's."""
    outer = error.get("provider_specific_fields")
    inner = (part.get("innererror") for part in (error, outer) if isinstance(part, dict))
    sources = (error, *(part for part in inner if isinstance(part, dict)))
    words = (source.get(field) for source in sources for field in ("code", "type", "error_type"))
    return frozenset(word.lower() for word in words if isinstance(word, str))


def _text(value: Any, depth: int = 3) -> str:
    """Return the start of an error's prose, and nothing that echoes the request (``input``, ``ctx``, …)."""
    if isinstance(value, str):
        return value[:2000]
    if depth and isinstance(value, list):
        return "\n".join(_text(item, depth - 1) for item in value[:5])
    if depth and isinstance(value, dict):
        said = [_text(value[field], depth - 1) for field in ("message", "msg", "detail", "error") if field in value]
        metadata = value.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("raw"), str):  # OpenRouter: its provider's error
            said.append(metadata["raw"][:2000])
        return "\n".join(said)
    return ""


def _said(status: int | None, error: Mapping[str, Any]) -> str:
    """Return what a provider said, fit for a log: the status and one word of its own, never its prose."""
    for field in ("code", "type"):
        word = error.get(field)
        if isinstance(word, str) and re.fullmatch(r"[A-Za-z][\w.-]{2,63}", word, re.ASCII):
            return f"The provider answered {status or 'an error'} ({word})"
    return f"The provider answered {status or 'an error'}"


# An answer.


def read(reply: Reply, parameters: Mapping[str, Any]) -> base.ChatResponse:
    """Return the answer in a reply of status 2xx."""
    if reply.cut:
        raise reply.cut
    document = document_of(reply)
    if not isinstance(document, dict):
        kind = reply.headers.get("content-type", "").partition(";")[0].strip()
        kind = kind if re.fullmatch(r"[\w.+-]{1,40}/[\w.+-]{1,40}", kind, re.ASCII) else "no content type"
        raise exceptions.BadModelOutput(
            f"The provider answered {reply.status} with a body that is not a JSON object ({kind})."
        )
    choice = _first(document.get("choices"))
    if document.get("error") and not choice:
        code = str(_error_object(document).get("code"))
        status = int(code) if re.fullmatch(r"[45]\d\d", code, re.ASCII) else None
        raise rejection(status, document, reply, parameters)
    if not choice:
        raise exceptions.BadModelOutput("The model's answer holds no choice.")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise exceptions.BadModelOutput("The model's answer holds no message.")

    finish_reason = _finish_reason(choice)
    if message.get("refusal"):
        raise exceptions.ContentRefused("The model refuses this content.")

    model = document.get("model")
    try:
        return base.ChatResponse(
            message=messages.ChatMessage.from_openai({"role": "assistant"} | message),
            usage=_usage(document.get("usage")),
            finish_reason=finish_reason,
            model=model if isinstance(model, str) and model.isprintable() else "",
        )
    except exceptions.InvalidMessage:
        # Its text may quote the model's.
        unusable = exceptions.BadModelOutput("The model's message is malformed, or holds what cannot be stored.")
    raise unusable


def _finish_reason(choice: Mapping[str, Any]) -> str:
    """Return why a choice ended, "length" where its text was cut, or raise where there is no whole text."""
    finish_reason = choice.get("finish_reason")
    if not isinstance(finish_reason, str) or not finish_reason:
        raise exceptions.BadModelOutput("The model's answer has no finish_reason: it ended early.")
    if finish_reason in BROKEN_FINISH_REASONS:
        raise exceptions.ModelUnavailable(f"The model broke off (finish_reason {finish_reason}).")
    # Gemini adds the kind of content: "content_filter: SAFETY". "sensitive" is Zhipu's.
    if finish_reason.startswith("content_filter") or finish_reason == "sensitive":
        raise exceptions.ContentRefused("The provider's filter refuses this content.")
    return "length" if finish_reason in CUT_FINISH_REASONS else finish_reason


def _first(choices: Any) -> Mapping[str, Any]:
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _usage(usage: Any) -> base.Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    for tokens in (prompt, completion):
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens < 2**31:
            return None
    return base.Usage(prompt_tokens=prompt, completion_tokens=completion)  # type: ignore[arg-type]
