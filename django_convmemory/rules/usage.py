"""What a provider reported about a reply, in the forms of several providers."""

from __future__ import annotations

from typing import Any, NamedTuple

from django_convmemory.chat_models import base


class MessageUsage(NamedTuple):
    """The tokens of a request and its reply. ``cached_tokens`` of the prompt came from the provider's cache."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def read(usage: Any) -> MessageUsage | None:
    """Return the tokens in a stored ``usage``, or None if it names no tokens of a prompt.

    It knows the forms of OpenAI's chat completions and Responses, of Anthropic, and of DeepSeek.
    """
    prompt, cached, completion = base.reported(usage)
    return None if prompt is None else MessageUsage(prompt, cached or 0, completion or 0)
