"""What a provider reported about a reply, in the forms of several providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class MessageUsage(NamedTuple):
    """The tokens of a request and its reply. ``cached_tokens`` of the prompt came from the provider's cache."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def read(usage: Any) -> MessageUsage | None:
    """Return the tokens in a stored ``usage``, or None if it names no tokens of a prompt.

    It knows the forms of OpenAI's chat completions and Responses, of Anthropic, and of DeepSeek.
    """
    if not isinstance(usage, Mapping):
        return None
    prompt = _number(usage, "prompt_tokens", "input_tokens")
    if prompt is None:
        return None
    cached = _number(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens")
    for details in ("prompt_tokens_details", "input_tokens_details"):
        if cached is None and isinstance(usage.get(details), Mapping):
            cached = _number(usage[details], "cached_tokens")
    if "prompt_tokens" not in usage and "cache_read_input_tokens" in usage:
        # Anthropic's input_tokens are only those that the cache neither read nor wrote.
        prompt += (cached or 0) + (_number(usage, "cache_creation_input_tokens") or 0)
    return MessageUsage(prompt, min(cached or 0, prompt), _number(usage, "completion_tokens", "output_tokens") or 0)


def _number(values: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these values that is a number of tokens, or None."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
