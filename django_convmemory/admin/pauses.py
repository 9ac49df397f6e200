"""What the staff sees of pauses: which aliases are paused, since when, and why."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Iterable

from django.utils.functional import cached_property

from django_convmemory import models
from django_convmemory.memory import memories

# The largest number of waiting sessions that is counted.
MAX_WAITING = 1000


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
    def _counted(self) -> int:
        due = self.sessions.filter(alias=self.state.alias).due().unleased().order_by()
        return due.values("pk")[: MAX_WAITING + 1].count()

    @property
    def waiting(self) -> int:
        """The number of due sessions that nobody folds, at most ``MAX_WAITING``."""
        return min(self._counted, MAX_WAITING)

    @property
    def waiting_is_more(self) -> bool:
        return self._counted > MAX_WAITING


def pauses(sessions: models.SessionQuerySet, aliases: Iterable[str]) -> list[PauseNotice]:
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
