"""Conversations whose messages carry markers, and a model that answers with the markers in its prompt."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from django_convmemory import models
from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store import Store
from django_convmemory.store.orm import ORMStore

MARKER = re.compile(r"\[\[(\d+)\]\]")


@dataclasses.dataclass
class MarkerModel:
    """Calls ``meanwhile``, then answers with the markers in its prompt, or if it has none, with a part of the texts."""

    meanwhile: Callable[[ChatRequest], Any] = lambda request: None
    name: str = "marker"
    deadline: float = 5.0
    requests: list[ChatRequest] = dataclasses.field(default_factory=list)

    def chat(self, request: ChatRequest) -> ChatResponse:
        self.requests.append(request)
        self.meanwhile(request)
        marks = " ".join(f"[[{mark}]]" for mark in MARKER.findall(request.messages[-1].text))
        return ChatResponse(ChatMessage.ai(f"seen {_without_marks(request, marks)}{marks}"))

    async def achat(self, request: ChatRequest) -> ChatResponse:
        return self.chat(request)


def _without_marks(request: ChatRequest, marks: str) -> str:
    assert request.fold is not None
    known = MARKER.sub("", request.fold.previous.removeprefix("seen "))
    turns = "" if marks else " ".join(map(spoken, request.fold.turns))
    # The longest ones tell most.
    words = sorted(dict.fromkeys(f"{known} {turns}".split()), key=len, reverse=True)
    return " ".join(word[:40] for word in words)[:500] + " "


def build(
    model: Any, limit: int = 60, *, store: Store | None = None, **options: Any
) -> ConversationSummaryBufferMemory:
    options.setdefault("scheduler", NullScheduler())
    options.setdefault("max_summary_tokens", 2000)
    return ConversationSummaryBufferMemory(store or ORMStore(), model, limit, **options)


def talk(memory: ConversationMemory, count: int, key: str = "s", words: int = 8) -> None:
    """Append messages that carry their position as a marker."""
    last = memory.store.load(memory.resolve(key), memory.strategy.view(), 0)
    start = last.counters.last_position if last else 0
    for number in range(start + 1, start + count + 1):
        make = ChatMessage.human if number % 2 else ChatMessage.ai
        memory.append(key, make(f"[[{number}]] " + "word " * words))


def session(key: str = "s") -> models.Session:
    return models.Session.objects.get(key=key)


def versions(key: str = "s") -> list[models.Summary]:
    return list(models.Summary.objects.filter(session__key=key).order_by("version"))


def outcomes() -> list[str]:
    return list(models.Attempt.objects.order_by("pk").values_list("outcome", flat=True))


def attempt(**columns: Any) -> models.Attempt:
    """Store a call of a model."""
    usual = {"alias": "default", "outcome": "published", "first_position": 1, "last_position": 2}
    return models.Attempt.objects.create(**usual | columns)


def covered(text: str) -> list[int]:
    return [int(mark) for mark in MARKER.findall(text)]


def keys_of(ids: Sequence[int]) -> list[str]:
    return [models.Session.objects.get(pk=session_id).key for session_id in ids]
