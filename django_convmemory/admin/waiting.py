"""Why sessions wait to be folded: which aliases are paused, and what happens to a session next, and when."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
from collections.abc import Iterable
from typing import Any

from django.utils.functional import cached_property

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.templatetags import convmemory


@dataclasses.dataclass
class PauseNotice:
    """What a page says of an alias's pause.

    - ``state`` is the row, with its ``now``. ``sessions`` are those that the user may see.
    - The template says what the other attributes mean.
    """

    state: models.AliasState
    sessions: models.SessionQuerySet

    @property
    def next_call(self) -> dt.datetime | None:
        """When the model is called next, or None if the next task or sweep calls it."""
        return self.state.paused_until if self.state.pause.paused else None

    @property
    def seconds_left(self) -> int:
        return math.ceil((self.next_call - self.state.pause.now).total_seconds()) if self.next_call else 0

    @property
    def stands_in(self) -> bool:
        """Whether the model has been silent for so long that the fallback folds what has waited as long."""
        memory = memories[self.state.alias]
        return memory.fallback is not None and self.state.pause.silent_for(memory.options.fallback_after)

    def stands_in_for(self, session: models.Session) -> bool:
        """Whether the fallback may fold ``session``."""
        waited_since = self.state.pause.now - dt.timedelta(seconds=memories[session.alias].options.fallback_after)
        return self.stands_in and session.due_since is not None and session.due_since <= waited_since

    @cached_property
    def waiting(self) -> int:
        """The number of due sessions that nobody folds, for the filter ``counted``."""
        due = self.sessions.filter(alias=self.state.alias).due().unleased().order_by()
        return due.values("pk")[: convmemory.MOST_COUNTED + 1].count()


def pauses(sessions: Any, aliases: Iterable[str]) -> list[PauseNotice]:
    """Return the pauses of those of ``aliases`` that make summaries, by alias.

    It takes one statement, and one for each pause whose sessions are counted.
    """
    summarizing = [alias for alias in aliases if alias in memories and memories[alias].summarizes]
    states = models.AliasState.objects.using(sessions.db).paused().filter(alias__in=summarizing)
    return [PauseNotice(state, sessions) for state in states.with_clock().order_by("alias")]


def failing_aliases(using: str, aliases: Iterable[str]) -> list[models.AliasState]:
    """Return the states of those of ``aliases`` whose last calls failed and that are not paused for it yet."""
    states = models.AliasState.objects.using(using)
    failed = states.filter(alias__in=list(aliases), failures__gt=0)
    return list(failed.exclude(pk__in=states.paused().values("pk")).order_by("alias"))


# One session.


class WaitReason(enum.StrEnum):
    """Why a session waits. ``why.html`` has a sentence for each."""

    GONE = "gone"
    COMPACTING = "compacting"
    UNINDEXED = "unindexed"
    PAUSED = "paused"
    FAILING = "failing"
    SENT = "sent"
    DUE = "due"
    UNMARKED = "unmarked"
    REBUILD = "rebuild"
    IDLE = "idle"


@dataclasses.dataclass
class Status:
    """The state of a session's compaction, as the panel on its page shows it.

    ``session`` must come from ``with_clock()``. ``pause`` is that of its alias.
    """

    session: models.Session
    pause: PauseNotice | None = None

    @cached_property
    def memory(self) -> ConversationMemory | None:
        """The session's memory, or None if its alias is not in the settings."""
        alias = self.session.alias
        return memories[alias] if alias in memories else None  # noqa: SIM401  memories has no get()

    @cached_property
    def reason(self) -> WaitReason:
        session, memory = self.session, self.memory
        if memory is None:
            return WaitReason.GONE
        if session.state == models.SessionState.COMPACTING:
            return WaitReason.COMPACTING
        if session.due_since is None:
            if session.is_over(memory.threshold):
                return WaitReason.UNMARKED
            return WaitReason.REBUILD if session.rebuild_after else WaitReason.IDLE
        if memory.model is None:
            return WaitReason.UNINDEXED
        if self.pause is not None:
            return WaitReason.PAUSED
        if session.last_error:
            return WaitReason.FAILING
        queued = session.queued_at is not None and session.queued_at >= session.due_since
        return WaitReason.SENT if queued else WaitReason.DUE

    @property
    def next_attempt_at(self) -> dt.datetime | None:
        """When the session may be tried again, or None if the next task or sweep may try it."""
        now = self.session.now  # type: ignore[attr-defined]
        times = (self.session.next_attempt_at, self.pause and self.pause.next_call)
        return max((time for time in times if time and time > now), default=None)

    @property
    def stands_in(self) -> bool:
        """Whether the fallback folds the session although its memory is paused."""
        return self.pause is not None and self.pause.stands_in_for(self.session)

    @property
    def is_due(self) -> bool:
        """Whether something will happen to the session soon, and "Compact now" has something to do."""
        return self.reason not in (WaitReason.GONE, WaitReason.REBUILD, WaitReason.IDLE)

    @cached_property
    def limit(self) -> int | None:
        """The tokens of the tail above which the session is due, or None if the threshold is not in tokens."""
        return self.memory.strategy.threshold.tokens if self.memory else None

    @property
    def tail_tokens(self) -> int:
        return self.session.unpinned_tokens - self.session.covered_tokens
