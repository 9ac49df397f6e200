"""Why a session waits to be folded, what happens next, and when."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import Any

from django.utils import formats, timezone
from django.utils.functional import cached_property

from django_convmemory import models
from django_convmemory.admin.pauses import PauseNotice
from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory

# A time that is nearer than this is shown without its date, and with its seconds.
_NEAR = dt.timedelta(hours=12)


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


# In these states something will happen to the session soon.
_LIVE = {
    WaitReason.COMPACTING,
    WaitReason.UNINDEXED,
    WaitReason.PAUSED,
    WaitReason.FAILING,
    WaitReason.SENT,
    WaitReason.DUE,
    WaitReason.UNMARKED,
}


@dataclasses.dataclass
class Status:
    """The state of a session's compaction, as the panel on its page shows it.

    - ``session`` must come from ``with_clock()``. ``pause`` is that of its alias.
    - ``seen`` is the version that was current when the page was loaded.
    - ``asked`` is the version that was current when a rebuild was requested, if one was.
    """

    session: models.Session
    pause: PauseNotice | None = None
    seen: int | None = None
    asked: int | None = None

    @cached_property
    def memory(self) -> ConversationMemory | None:
        """The session's memory, or None if its alias is not in the settings."""
        alias = self.session.alias
        return memories[alias] if alias in memories else None  # noqa: SIM401  memories has no get()

    @property
    def now(self) -> dt.datetime:
        now: dt.datetime = self.session.now  # type: ignore[attr-defined]
        return now

    @cached_property
    def reason(self) -> WaitReason:
        session, memory = self.session, self.memory
        if memory is None:
            return WaitReason.GONE
        if session.lease_expires_at is not None and session.lease_expires_at > self.now:
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
        times = (self.session.next_attempt_at, self.pause and self.pause.next_call)
        return max((time for time in times if time and time > self.now), default=None)

    @property
    def next_attempt(self) -> str | None:
        """The same as a text."""
        return None if self.next_attempt_at is None else moment(self.next_attempt_at, self.now)

    @property
    def next_call(self) -> str | None:
        """When a session of the paused alias, this one or another, tries the model. None: the next task or sweep."""
        at = self.pause.next_call if self.pause else None
        return None if at is None else moment(at, self.now)

    @property
    def stands_in(self) -> bool:
        """Whether the fallback folds the session although its memory is paused."""
        return self.pause is not None and self.pause.stands_in_for(self.session)

    @property
    def sent(self) -> str:
        """When the last task was sent."""
        return moment(self.session.queued_at, self.now)

    @property
    def leased_until(self) -> str:
        return moment(self.session.lease_expires_at, self.now)

    @property
    def is_due(self) -> bool:
        """Whether "Compact now" has something to do."""
        return self.reason not in (WaitReason.GONE, WaitReason.REBUILD, WaitReason.IDLE)

    @property
    def is_rebuilt(self) -> bool:
        """Whether a rebuild was requested that has not made a version yet."""
        return self.asked is not None and self.asked == self.session.current_version

    @property
    def live(self) -> bool:
        """Whether the page asks for the state again."""
        return self.reason in _LIVE or self.is_rebuilt

    @property
    def new_version(self) -> int | None:
        """The current version, if it was made since the page was loaded."""
        current = self.session.current_version
        return current if self.seen is not None and current != self.seen else None

    @cached_property
    def limit(self) -> int | None:
        """The tokens of the tail above which the session is due, or None if the threshold is not in tokens."""
        return self.memory.strategy.threshold.tokens if self.memory else None

    @property
    def tail_tokens(self) -> int:
        return self.session.unpinned_tokens - self.session.covered_tokens


def moment(at: Any, now: dt.datetime) -> str:
    """Return a time as a text: with seconds if it is near, and with the date if it is not."""
    local = timezone.localtime(at) if timezone.is_aware(at) else at
    return formats.date_format(local, "H:i:s" if abs(at - now) < _NEAR else "DATETIME_FORMAT")
