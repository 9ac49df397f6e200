"""What a chat model is, to this app: one request in, one response or a classified error out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from django_convmemory import messages


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens that the provider says a call took."""

    prompt_tokens: int
    completion_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """The job behind a request for a summary, for models that do not read prompts.

    ``previous`` is the summary so far, or "". ``turns`` are what it is to take in, in order. The result may count
    ``max_tokens`` tokens at most, as ``count`` counts a text.
    """

    previous: str
    turns: Sequence[messages.ChatMessage]
    max_tokens: int
    count: Callable[[str], int]


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a model is asked: the messages of the prompt and, where it asks for a summary, the job itself."""

    messages: Sequence[messages.ChatMessage]
    fold: Fold | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ChatResponse:
    """What a model answered.

    ``finish_reason`` is the provider's word (``"stop"``, ``"length"``, ``"content_filter"``, …); ``model`` the name
    that the provider gives the model that answered, or "".
    """

    message: messages.ChatMessage
    usage: Usage | None = None
    finish_reason: str = "stop"
    model: str = ""


@runtime_checkable
class ChatModel(Protocol):
    """A model that answers chat requests.

    Both methods raise :class:`~django_convmemory.exceptions.ChatModelError` or one of its subclasses, and nothing
    else, when no usable answer came; both return or raise within a total deadline of their own.
    """

    @property
    def name(self) -> str:
        """The name that is stored with each summary."""

    @property
    def deadline(self) -> float:
        """The seconds within which a call returns or raises. The lease of a compaction is derived from it."""

    def chat(self, request: ChatRequest) -> ChatResponse:
        """Answer ``request``."""

    async def achat(self, request: ChatRequest) -> ChatResponse:
        """Answer ``request`` without blocking the event loop."""
