"""Reads the reply of an OpenAI-compatible server as an answer or as one of our errors.

Half of this module is tables of error codes and phrases. OpenAI-compatible servers differ most in their errors, and the
``openai`` client classifies errors by status alone. But the status 400 may mean a prompt that is too long, refused
content, a wrong key or a passing failure, and each needs another reaction.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from django_convmemory import exceptions, messages
from django_convmemory.chat_models import base


def _one_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# The ..._WORDS are codes and types of errors, in lower case. The ..._TEXTS are phrases in the text of an error.

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
    r"max_tokens must be at least 1, got -\d",  # vLLM, older: the tokens that the prompt leaves for the answer
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
        # The account. The status does not tell: OpenAI answers 429, which otherwise means a rate limit.
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
        # The key or the model, from servers that answer 400.
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
# A 400 with these phrases has another cause than the length. With any other text, the request may be too long.
NOT_LENGTH_TEXTS: Final = _one_of(
    r"api[ _-]?key|credential|unauthori[sz]ed|authenticat",
    r"(unknown|invalid|no such) model|model .{0,80}(not found|not exist|no longer)",
    r"(unknown|unsupported|unrecogni[sz]ed|unexpected)[ _](request )?(parameter|argument|field|property|value)",
    r"extra inputs are not permitted|extra_forbidden",  # pydantic, in front of many servers
    r"content[ _](policy|filter)|usage polic|safety|moderation|flagged|敏感|违规",
)
SETUP_STATUSES: Final = frozenset({401, 402, 403, 404, 405, 410})

# Values of finish_reason that OpenAI does not use. Compaction knows only OpenAI's "stop" and "length" (cut off).
CUT_FINISH_REASONS: Final = frozenset({"model_length", "model_context_window_exceeded"})
BROKEN_FINISH_REASONS: Final = frozenset({"abort", "error", "insufficient_system_resource", "network_error"})


_REFUSED: Final = "Set FALLBACK_CHAT_MODEL, or redact the messages."


class Reply(NamedTuple):
    """A server's reply of any status.

    ``headers`` ignores the case of its keys. ``cut`` is the error to raise if ``body`` is not complete.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: exceptions.ChatModelError | None = None


def rejection(status: int | None, reply: Reply, parameters: Mapping[str, Any]) -> exceptions.ChatModelError:
    """Return the error that ``reply`` tells of. ``parameters`` are those of the chat model.

    ``status`` is None if the reply has a status of success, but contains an error without a status.
    """
    document = messages.loads(reply.body)
    error = _error_object(document)
    words = _words(error)
    text = _text(error) if error else reply.body[:2000].decode(errors="replace")
    summary = _summary(status, error)

    if words & REFUSAL_WORDS or REFUSAL_TEXTS.search(text):
        return exceptions.ContentRefused(f"{summary}: it refuses the content. {_REFUSED}")
    # A proxy answers 413 to a body that is too large, and Groq to more than a minute's tokens. Smaller requests pass.
    says_too_long = status in {None, 400, 422, 429, 500} and CONTEXT_LENGTH_TEXTS.search(text)
    if status == 413 or words & CONTEXT_LENGTH_WORDS or says_too_long:
        return exceptions.ContextLengthExceeded(
            f"{summary}: the request is too large. If this repeats, use a model with a larger window."
        )
    # A firewall answers 403 to the content of one conversation, in HTML. That says nothing about the configuration.
    firewall = status == 403 and document is None
    if words & SETUP_WORDS or SETUP_TEXTS.search(text) or (status in SETUP_STATUSES and not firewall):
        return exceptions.ModelMisconfigured(f"{summary}. Check api_key, model, base_url and the account's quota.")
    if status is not None and 300 <= status < 400:
        return exceptions.ModelMisconfigured(f"{summary}, a redirect. Set base_url to the address that it leads to.")
    # 400 and 422 blame the request. If they name the model or a parameter, the configuration is wrong. Otherwise the
    # cause is unknown: it may be the messages, or a gateway that turns every error of its provider into 400. An
    # unavailable model is the safe guess: the failure is counted, tried again later, and reaches the fallback model.
    blamed = error.get("param")
    if status in {400, 422} and isinstance(blamed, str) and (blamed == "model" or blamed in parameters):
        return exceptions.ModelMisconfigured(f"{summary}: it refuses {blamed!r}. Correct the chat model's options.")
    message = f"{summary}. If this repeats, check the provider's status and rate limit."
    seconds = retry_after(reply.headers)
    if status is not None and 400 <= status < 500 and status not in {408, 429}:
        is_explained = status not in {400, 422} or NOT_LENGTH_TEXTS.search(" ".join([*words, text]))
        return exceptions.RequestRejected(message, retry_after=seconds, may_be_too_long=not is_explained)
    kind = exceptions.RateLimited if status == 429 else exceptions.ModelUnavailable
    return kind(message, retry_after=seconds)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause in seconds that a reply asks for, or None.

    It is in ``retry-after-ms``, or in ``Retry-After`` as a number of seconds or as a date.
    """
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
        if until.tzinfo is None:  # "-0000" is UTC: RFC 5322.
            until = until.replace(tzinfo=dt.UTC)
        return max((until - dt.datetime.now(dt.UTC)).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None


def _error_object(document: Any) -> Mapping[str, Any]:
    """Return the error in a body: under ``error`` (OpenAI), in a list (Gemini), or the whole body (vLLM)."""
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return {}
    error = document.get("error", document)
    return error if isinstance(error, dict) else {"message": error}


def _words(error: Mapping[str, Any]) -> frozenset[str]:
    """Return the codes and types of an error, in lower case, with those that a gateway copied from its provider."""
    outer = error.get("provider_specific_fields")
    inner = (part.get("innererror") for part in (error, outer) if isinstance(part, dict))
    sources = (error, *(part for part in inner if isinstance(part, dict)))
    words = (source.get(field) for source in sources for field in ("code", "type", "error_type"))
    return frozenset(word.lower() for word in words if isinstance(word, str))


def _text(value: Any, depth: int = 3) -> str:
    """Return the beginning of an error's text. Fields that may repeat the request (``input``, ``ctx``) are left out."""
    if isinstance(value, str):
        return value[:2000]
    if depth and isinstance(value, list):
        return "\n".join(_text(item, depth - 1) for item in value[:5])
    if depth and isinstance(value, dict):
        texts = [_text(value[field], depth - 1) for field in ("message", "msg", "detail", "error") if field in value]
        metadata = value.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("raw"), str):  # OpenRouter: the provider's error
            texts.append(metadata["raw"][:2000])
        return "\n".join(texts)
    return ""


def _summary(status: int | None, error: Mapping[str, Any]) -> str:
    """Return a summary of an error for a log: the status and one code, never the provider's text."""
    for field in ("code", "type"):
        word = error.get(field)
        if isinstance(word, str) and re.fullmatch(r"[A-Za-z][\w.-]{2,63}", word, re.ASCII):
            return f"The provider answered {status or 'an error'} ({word})"
    return f"The provider answered {status or 'an error'}"


def read(reply: Reply, parameters: Mapping[str, Any]) -> base.ChatResponse:
    """Return the answer in a reply of status 2xx. ``parameters`` are those of the chat model.

    Raises a :class:`~django_convmemory.exceptions.ChatModelError`.
    """
    if reply.cut:
        raise reply.cut
    document = messages.loads(reply.body)
    if not isinstance(document, dict):
        kind = reply.headers.get("content-type", "").partition(";")[0].strip()
        kind = kind if re.fullmatch(r"[\w.+-]{1,40}/[\w.+-]{1,40}", kind, re.ASCII) else "no content type"
        raise exceptions.BadModelOutput(
            f"The provider answered {reply.status} with a body that is not a JSON object ({kind}). Check base_url."
        )
    choice = _first(document.get("choices"))
    if document.get("error") and not choice:
        code = str(_error_object(document).get("code"))
        status = int(code) if re.fullmatch(r"[45]\d\d", code, re.ASCII) else None
        raise rejection(status, reply, parameters)
    if not choice:
        raise exceptions.BadModelOutput("The model's answer has no choices. Check base_url.")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise exceptions.BadModelOutput("The model's answer has no message. Check base_url.")

    finish_reason = _finish_reason(choice)
    if message.get("refusal"):
        raise exceptions.ContentRefused(f"The model refuses the content. {_REFUSED}")

    model = document.get("model")
    try:
        return base.ChatResponse(
            message=messages.ChatMessage.from_openai({"role": "assistant"} | message),
            usage=_usage(document.get("usage")),
            finish_reason=finish_reason,
            model=model if isinstance(model, str) and model.isprintable() else "",
        )
    except exceptions.InvalidMessage:
        # The text of this error may quote the model's answer.
        unusable = exceptions.BadModelOutput(
            "The model's message is malformed, or cannot be stored. If this repeats, try another model."
        )
    raise unusable


def _finish_reason(choice: Mapping[str, Any]) -> str:
    """Return the finish reason of a choice, "length" if its text was cut off; raise if the text is unusable."""
    finish_reason = choice.get("finish_reason")
    if not isinstance(finish_reason, str) or not finish_reason:
        raise exceptions.BadModelOutput(
            "The model's answer has no finish_reason, so it may be incomplete. If this repeats, check the server."
        )
    if finish_reason in BROKEN_FINISH_REASONS:
        raise exceptions.ModelUnavailable(
            f"The model broke off its answer (finish_reason {finish_reason}). "
            "If this repeats, check the provider's status."
        )
    # Gemini appends the kind of content: "content_filter: SAFETY". Zhipu uses "sensitive".
    if finish_reason.startswith("content_filter") or finish_reason == "sensitive":
        raise exceptions.ContentRefused(f"The provider's filter refuses the content. {_REFUSED}")
    return "length" if finish_reason in CUT_FINISH_REASONS else finish_reason


def _first(choices: Any) -> Mapping[str, Any]:
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _usage(usage: Any) -> base.Usage | None:
    prompt, cached, completion = base.reported(usage)
    if prompt is None or completion is None:
        return None
    return base.Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
