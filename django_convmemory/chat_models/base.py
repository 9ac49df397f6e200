"""The interface of a chat model: it takes a request and returns a response or raises a classified error."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, runtime_checkable

from django_convmemory import messages


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The tokens of a call, as the provider reports them.

    ``cached_tokens`` of the prompt came from the provider's cache. None: the provider does not report it.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


# What a row can hold.
_MOST_TOKENS = 2**31 - 1


def reported(usage: Any) -> tuple[int | None, int | None, int | None]:
    """Return the tokens of the prompt, those of them from the cache, and those of the answer, or None for each.

    ``usage`` is what OpenAI's chat completions and Responses, Anthropic and DeepSeek report, or what is like that.
    """
    if not isinstance(usage, Mapping):
        return None, None, None
    prompt = _tokens(usage, "prompt_tokens", "input_tokens")
    cached = _tokens(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens")
    for details in ("prompt_tokens_details", "input_tokens_details"):
        if cached is None and isinstance(usage.get(details), Mapping):
            cached = _tokens(usage[details], "cached_tokens")
    if prompt is not None and "prompt_tokens" not in usage and "cache_read_input_tokens" in usage:
        # Anthropic's input_tokens are only those that the cache neither read nor wrote.
        prompt += (cached or 0) + (_tokens(usage, "cache_creation_input_tokens") or 0)
        prompt = min(prompt, _MOST_TOKENS)
    if prompt is not None and cached is not None:
        cached = min(cached, prompt)
    return prompt, cached, _tokens(usage, "completion_tokens", "output_tokens")


def _tokens(values: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these values that is a number of tokens, or None."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
            return value
    return None


class Price(NamedTuple):
    """The price of a million tokens. ``cached_input`` is for tokens from the provider's cache. None: as ``input``."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None

    def of(self, usage: Usage) -> Decimal:
        """Return what a call with this usage costs."""
        cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        prompt = (usage.prompt_tokens - cached) * self.input + cached * cached_price
        return (prompt + usage.completion_tokens * self.output) / 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FoldData:
    """The data behind a request for a summary, for models that do not read prompts.

    ``previous`` is the current summary, or "". ``turns`` are the messages to add to it, in order. The new summary may
    have at most ``max_tokens`` tokens, as ``count`` counts a text.

    ``days`` has the day of each turn, in the time zone of the site. A day that is not known is None, and if none is
    known, ``days`` is empty. Raises ValueError if ``days`` has another length than ``turns``.

    ``fence`` is the word of the prompt that occurs in none of these texts, or "".
    """

    previous: str
    turns: Sequence[messages.ChatMessage]
    max_tokens: int
    count: Callable[[str], int]
    days: Sequence[dt.date | None] = ()
    fence: str = ""

    def __post_init__(self) -> None:
        if self.days and len(self.days) != len(self.turns):
            raise ValueError(
                f"days must have a day for each of the {len(self.turns)} turns, not {len(self.days)} days."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request to a model: the messages of the prompt and, if it asks for a summary, the data in ``fold``."""

    messages: Sequence[messages.ChatMessage]
    fold: FoldData | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ChatResponse:
    """The answer of a model.

    ``finish_reason`` is the provider's word, such as ``"stop"``, ``"length"`` or ``"content_filter"``. ``model`` is the
    provider's name of the model that answered, or "".
    """

    message: messages.ChatMessage
    usage: Usage | None = None
    finish_reason: str = "stop"
    model: str = ""


@runtime_checkable
class ChatModel(Protocol):
    """A model that answers chat requests.

    If there is no usable answer, ``chat`` and ``achat`` raise :class:`~django_convmemory.exceptions.ChatModelError` or
    a subclass, and no other exception. They return or raise within :attr:`deadline`.

    A model may also have a method ``prepare`` without arguments. A worker calls it when it starts. An import there does
    not count against the deadline of the first call. And it may have an attribute ``quotes_labels``: if it is true, the
    model's summaries label speakers, and put in quotes what a text has of such labels.
    """

    @property
    def name(self) -> str:
        """The name of the model, which is stored with each summary."""

    @property
    def deadline(self) -> float:
        """The longest time that a call takes, in seconds. The lease of a compaction is derived from it."""

    def chat(self, request: ChatRequest) -> ChatResponse:
        """Answer ``request``."""

    async def achat(self, request: ChatRequest) -> ChatResponse:
        """Answer ``request`` without blocking the event loop."""
