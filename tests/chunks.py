"""What a model was sent of a conversation, and what either store has of its versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from django_convmemory import models
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.clock import Clock
from django_convmemory.maintenance import integrity
from django_convmemory.messages import spoken
from django_convmemory.observers import ModelCall, Run
from django_convmemory.operations.arguments import Named
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore

_TURNS = re.compile(r"^<(quoted-[0-9a-f]{12}) turns>\n(.*)\n</\1 turns>$", re.MULTILINE | re.DOTALL)


def transcript_of(request: ChatRequest) -> str:
    """The turns that a prompt quotes, without the summary."""
    match = _TURNS.search(request.messages[-1].text)
    assert match is not None, "the prompt has no turns"
    return match[2]


def spoken_in(request: ChatRequest) -> str:
    """What was said in the turns of a request, without labels."""
    assert request.fold is not None
    return "".join(map(spoken, request.fold.turns))


class Version(NamedTuple):
    number: int
    parent: int | None
    first: int
    last: int
    text: str
    part_end: int | None
    building: bool


def versions(memory: ConversationMemory, key: str = "s") -> list[Version]:
    """The valid versions of a session in either store, in order."""
    if isinstance(memory.store, InMemoryStore):
        stored = [row for row in memory.store.session(memory.resolve(key)).versions if row.valid]
        return [
            Version(
                row.value.version,
                row.parent_version,
                row.value.first_position,
                row.value.last_position,
                row.value.text,
                row.value.part_end,
                row.building,
            )
            for row in stored
        ]
    columns = ("version", "parent_version", "first_position", "last_position", "text", "part_end", "building")
    rows = models.Summary.objects.filter(session__key=key).valid().order_by("version")
    return [Version(*row) for row in rows.values_list(*columns)]


def covered_position(memory: ConversationMemory, key: str = "s") -> int:
    snapshot = memory.store.load(memory.resolve(key), memory.strategy.view(), 0)
    return snapshot.counters.covered_position if snapshot else 0


def assert_sound(memory: ConversationMemory) -> None:
    """``convmemory_check`` finds no damage, and nothing that is unfinished is shown."""
    if isinstance(memory.store, ORMStore):
        assert list(integrity.check(models.Session.objects.all())) == []
    unfinished = [version.text for version in versions(memory) if version.building]
    assert memory.load("s").summary not in unfinished or not unfinished


def expire(memory: ConversationMemory, key: str | Named = "s") -> None:
    """Let the lease of a session run out."""
    if isinstance(memory.store, InMemoryStore):
        memory.store.session(memory.resolve(key)).lease_expires_at = 0.0
    else:
        models.Session.objects.named(memory.resolve(key)).update(lease_expires_at=Clock(-1))


class Killed:
    """A worker that is killed after so many calls of its model: it neither publishes more nor releases its lease."""

    def __init__(self, memory: ConversationMemory, calls: int, key: str | Named = "s") -> None:
        assert memory.model is not None
        session_id = memory.store.find(memory.resolve(key))
        assert session_id is not None
        # Kept, because a run that is collected releases its lease.
        run = Run(alias=memory.alias, session_id=session_id, work="compact")
        self.steps = memory._steps(memory.model, run, asked=False)
        call: ModelCall = next(self.steps)
        for _ in range(calls):
            call = self.steps.send(call.model.chat(call.request))
        expire(memory, key)


def before_each_call(store: Store, monkeypatch: pytest.MonkeyPatch, do: Callable[[], Any]) -> None:
    """Call ``do`` between the making of each prompt and the check that comes last before the model's call."""
    extend = store.extend

    def extend_after(*args: Any, **kwargs: Any) -> bool:
        do()
        return extend(*args, **kwargs)

    monkeypatch.setattr(store, "extend", extend_after)
