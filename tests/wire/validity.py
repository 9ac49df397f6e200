"""Loads conversations after each message, from each memory, and has the forms of providers with what they would say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from django_convmemory import memory as memory_classes
from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.context.assembly import Context
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.tokens import Utf8TokenCounter
from tests.wire import validators

# Messages between two folds. In between, folding lags behind.
LAG = 7
SYSTEM = "You are a helpful assistant."


class Forgetful:
    """Answers with the same summary each time."""

    name = "forgetful"
    deadline = 1.0

    def chat(self, request: ChatRequest) -> ChatResponse:
        return ChatResponse(ChatMessage.ai("They talked about a booking."))

    async def achat(self, request: ChatRequest) -> ChatResponse:
        return self.chat(request)


def memories(store: Callable[[], Store] = InMemoryStore, **options: Any) -> list[ConversationMemory]:
    """A memory of each class, with limits that the conversations exceed."""
    options = {"counter": Utf8TokenCounter(), "scheduler": NullScheduler(), "max_summary_tokens": 30, **options}
    return [
        memory_classes.ConversationBufferMemory(store(), **options),
        memory_classes.ConversationWindowMemory(store(), 7, **options),
        memory_classes.ConversationWindowMemory(store(), 8, 0.5, **options),
        memory_classes.ConversationTokenBufferMemory(store(), 330, **options),
        memory_classes.ConversationTokenBufferMemory(store(), 330, 0.5, **options),
        memory_classes.ConversationSummaryMemory(store(), Forgetful(), 3, **options),
        memory_classes.ConversationSummaryBufferMemory(
            store(), Forgetful(), 300, **{"max_context_tokens": 700, **options}
        ),
    ]


def contexts(
    memory: ConversationMemory,
    conversation: Sequence[Any],
    budgets: Sequence[int | None],
    system: Any = SYSTEM,
) -> Iterator[Context]:
    """The contexts after each message, with each budget. Every seventh message, the session is folded."""
    session = memory.session("s")
    session.clear()
    for number, message in enumerate(conversation, 1):
        session.append(message)
        if memory.summarizes and number % LAG == 0:
            session.compact()
        for budget in budgets:
            yield session.load(system=system if number % 2 else None, max_tokens=budget)


_Any: Literal["any"] = "any"
_OneSystem: Literal["one_system"] = "one_system"
_Alternating: Literal["alternating"] = "alternating"
FORMS: Mapping[str, Callable[[Context], Iterator[str]]] = {
    "chat, any": lambda context: validators.chat(_plain(context.to_openai(roles=_Any))),
    "chat, one_system": lambda context: _both(_plain(context.to_openai(roles=_OneSystem)), validators.one_system),
    "chat, alternating": lambda context: _both(
        _plain(context.to_openai(roles=_Alternating)), validators.strict_template
    ),
    "anthropic": lambda context: validators.anthropic(context.to_anthropic()),
    "anthropic, cache": lambda context: validators.anthropic(context.to_anthropic(cache_control=True)),
    "responses, any": lambda context: validators.responses(_plain(context.to_responses(roles=_Any))),
    "responses, one_system": lambda context: validators.responses(_plain(context.to_responses(roles=_OneSystem))),
    "responses, alternating": lambda context: validators.responses(_plain(context.to_responses(roles=_Alternating))),
}


def _plain(wire: Any) -> list[dict[str, Any]]:
    return list(wire)


def _both(wire: list[dict[str, Any]], template: Callable[..., Iterator[str]]) -> Iterator[str]:
    yield from validators.chat(wire)
    yield from template(wire)
