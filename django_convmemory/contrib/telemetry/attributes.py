"""The attributes of spans and metrics, by OpenTelemetry's semantic conventions for generative AI."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping

from django_convmemory.chat_models.base import ChatModel, ChatResponse
from django_convmemory.chat_models.openai import OpenAIChatModel

Attributes = Mapping[str, str | int | float | bool | list[str]]

OPERATION = "gen_ai.operation.name"
CONVERSATION = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
STORE = "gen_ai.memory.store.id"
ERROR = "error.type"
# Of this project.
ALIAS = "convmemory.alias"
OUTCOME = "convmemory.outcome"

_PORTS = {"http": 80, "https": 443}


def of_call(model: ChatModel) -> dict[str, str | int]:
    """Return the attributes of a call of ``model`` that are known before it answers."""
    attributes: dict[str, str | int] = {OPERATION: "chat", PROVIDER: provider(model)}
    if model.name:
        attributes["gen_ai.request.model"] = model.name
    return attributes | server(model)


def provider(model: ChatModel) -> str:
    """Return the provider, as far as the client tells. Another endpoint with OpenAI's interface is "openai" too."""
    if isinstance(model, OpenAIChatModel):
        return "openai"
    return type(model).__module__.partition(".")[0]


def server(model: ChatModel) -> dict[str, str | int]:
    """Return the host and the port that a model calls, or nothing if it does not say so."""
    try:
        parts = urllib.parse.urlsplit(getattr(model, "base_url", ""))
        port = parts.port or _PORTS.get(parts.scheme)
    except (TypeError, ValueError):
        return {}
    if not parts.hostname or port is None:
        return {}
    return {"server.address": parts.hostname, "server.port": port}


def of_response(response: ChatResponse) -> dict[str, str | int | list[str]]:
    """Return the attributes of an answer."""
    attributes: dict[str, str | int | list[str]] = {"gen_ai.response.finish_reasons": [response.finish_reason]}
    if response.model:
        attributes["gen_ai.response.model"] = response.model
    if (usage := response.usage) is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    return attributes


def error_type(error: BaseException) -> str:
    """Return the name of the error's class. Its text could quote a conversation."""
    return type(error).__qualname__
