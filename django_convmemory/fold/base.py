"""A fold, which is one run for one session, and what its steps share.

Each step is a module. In their order: :mod:`.chunk` chooses what is folded next, :mod:`.request` builds the request,
:mod:`.call` chooses the model and calls it, :mod:`.validate` judges the answer, and :mod:`.version` makes and publishes
the new version. :mod:`.run` repeats them, from the claim to the release.
"""

from __future__ import annotations

import abc
import dataclasses
import datetime as dt
import time
from collections.abc import Generator
from typing import Any, TypeVar

from django_convmemory.chat_models.base import ChatModel, ChatResponse, Price
from django_convmemory.exceptions import ChatModelError
from django_convmemory.fold.request import Requests
from django_convmemory.observers import ModelCall, Run
from django_convmemory.rules.options import Options
from django_convmemory.rules.pause import Admission, Situation
from django_convmemory.rules.strategies import Strategy, Threshold
from django_convmemory.rules.values import Claim, Release, Scope
from django_convmemory.store import Store

T = TypeVar("T")

# A lease lasts for one model call, and so many seconds to write.
_WRITING = 30.0

# A step that calls a model yields the call. It is sent the response, or the error is thrown into it. So the same code
# serves a worker that blocks and an event loop that must not.
Steps = Generator[ModelCall, ChatResponse, T]


class LeaseLost(Exception):
    """The lease expired, or the session changed: another process may fold it now."""


class Memory(abc.ABC):
    """What a fold uses of a memory. :class:`.ConversationMemory` describes the attributes."""

    alias: str
    store: Store
    strategy: Strategy
    options: Options
    requests: Requests
    model: ChatModel | None
    fallback: ChatModel | None
    price: Price | None
    threshold: Threshold

    @property
    @abc.abstractmethod
    def aliases(self) -> tuple[str, ...]:
        """The aliases whose sessions wait for the same workers."""

    @abc.abstractmethod
    def queues(self, delay: float) -> bool:
        """Whether a task will fold the session in ``delay`` seconds if the result of the run says ``again``."""

    @abc.abstractmethod
    def schedule(self, session_id: int, delay: float = 0.0) -> None:
        """Have a session folded in ``delay`` seconds."""

    @abc.abstractmethod
    def published(self, claim: Claim) -> None:
        """Tell the site that a version of the summary was published."""

    @abc.abstractmethod
    def failed(self, claim: Claim, error: Exception) -> None:
        """Tell the site that no model could make a version."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Fold:
    """One run of a memory for one session.

    - ``model`` is that of the memory, which has one.
    - ``run`` is what observers are told.
    - ``gives_way``: a worker runs it, which is for all. So it leaves the rest to another run if others wait.
    - ``claim`` is replaced after each version that is published.
    - ``window``, in tokens, shrinks if the model says that a chunk was too long. ``known_window`` is the most that it
      was found to take. ``has_guessed``: the window has shrunk once because of an error that may have meant that.
    - ``own_error`` and ``fallback_error`` are those of the models with the current chunk. ``others_answered``: the own
      model failed, but has folded another session meanwhile.
    - ``probe_until``: until then this run is the only one that may ask the alias's own model. ``recovered``: its
      answer ended the alias's pause.
    """

    memory: Memory
    model: ChatModel
    run: Run
    gives_way: bool = False
    admission: Admission = dataclasses.field(init=False)
    claim: Claim = dataclasses.field(init=False)
    started: float = 0.0
    lease: float = dataclasses.field(init=False)
    window: int = dataclasses.field(init=False)
    known_window: int | None = None
    has_guessed: bool = False
    own_error: ChatModelError | None = None
    fallback_error: ChatModelError | None = None
    others_answered: bool = False
    probe_until: dt.datetime | None = None
    recovered: bool = False

    def __post_init__(self) -> None:
        self.lease = lease_seconds(self.model, self.memory.fallback)
        self.window = self.memory.options.chunk_tokens(self.memory.threshold.tokens)

    def begin(self, claim: Claim) -> None:
        """Begin to fold with ``claim``."""
        self.claim, self.started = claim, time.monotonic()
        if claim.window is not None:
            self.window, self.known_window = min(self.window, claim.window), claim.window
        self.run.public_id = claim.public_id

    def release(self, **how: Any) -> bool:
        """Release the lease: see :class:`.Release`. Return whether the session is still due."""
        return self.memory.store.release(self.claim, self.memory.threshold, Release(**how))

    def others_wait(self, scope: Scope) -> bool:
        """Whether sessions that are not of ``scope`` wait for a worker."""
        return self.memory.store.others_wait(scope, self.memory.aliases)

    def is_crowded(self) -> bool:
        """Whether a scope of the session has as many workers as it may have while others wait."""
        store, most = self.memory.store, self.memory.options.max_runs_per_owner
        scopes = [scope for scope in store.scopes(self.run.session_id) if scope.whose != "session"]
        return any(store.leases(scope) >= most and self.others_wait(scope) for scope in scopes)

    @property
    def seconds(self) -> float:
        """How long the fold has been running."""
        return time.monotonic() - self.started

    @property
    def due_seconds(self) -> float:
        """How long the session has been due."""
        return self.claim.due_seconds + self.seconds

    @property
    def situation(self) -> Situation:
        """What decides about the models."""
        return Situation(
            self.admission,
            self.claim.attempts,
            self.due_seconds,
            self.claim.rebuilding,
            self.memory.fallback is not None,
            self.memory.options.max_attempts,
            self.memory.options.fallback_after,
            self.others_answered,
        )

    @property
    def previous(self) -> str:
        """What a model wrote of the current summary."""
        return self.claim.summary.model_text if self.claim.summary else ""


def lease_seconds(model: ChatModel, fallback: ChatModel | None) -> float:
    """Return how many seconds a lease lasts: one model call, and 30 seconds to write. Each call renews it before."""
    return max(model.deadline, fallback.deadline if fallback is not None else 0.0) + _WRITING
