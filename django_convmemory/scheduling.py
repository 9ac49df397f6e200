"""Schedulers: they have a session folded when it becomes due.

The scheduler that sends a Celery task is :class:`django_convmemory.tasks.CeleryScheduler`.
"""

from __future__ import annotations

import abc
import logging
from typing import Literal, Protocol, runtime_checkable

from django_convmemory.fold import base
from django_convmemory.fold.run import Result

logger = logging.getLogger(__name__)


# What can be requested: to fold what is due, also while the alias is paused (``retry``), to make the summary again, or
# to make again only what the fallback has made.
Work = Literal["compact", "retry", "rebuild", "replace_stand_ins"]
# The arguments of the task for a request. The first two are for the task that folds, the others for the rebuild.
REQUESTED: dict[Work, dict[str, bool]] = {
    "compact": {"asked": True},
    "retry": {"asked": True, "despite_pause": True},
    "rebuild": {},
    "replace_stand_ins": {"stand_ins": True},
}


class Memory(base.Memory):
    """The part of a :class:`~.handles.ConversationMemory` that schedulers use."""

    @abc.abstractmethod
    def compact_id(
        self, session_id: int, *, asked: bool = False, despite_pause: bool = False, swept: bool = False
    ) -> Result:
        """Fold what is due in the session, in this process."""

    @abc.abstractmethod
    def carry_out(self, session_id: int, work: Work, *, asked: bool = True) -> Result:
        """Do what was requested for the session, in this process."""


class Scheduler(Protocol):
    """Has due sessions folded."""

    @property
    def after_commit(self) -> bool:
        """Whether ``schedule`` is called after the caller's transaction has committed."""

    @property
    def queues(self) -> bool:
        """Whether ``schedule`` sends a task, so that a sweep need not send one for some minutes."""

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Have the session folded, in ``delay`` seconds or later. Must not raise if the broker is unavailable."""

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Have ``work`` done soon. Return False if nobody will do it. Must not raise, as ``schedule``."""


@runtime_checkable
class SendingScheduler(Scheduler, Protocol):
    """A scheduler that sends tasks."""

    def send(self, memory: Memory, session_id: int, *, delay: float = 0.0, swept: bool = False) -> bool:
        """Send a task that folds the session in ``delay`` seconds. Return whether it was sent. Never raises.

        ``swept``: when the task is done, it sends the next due session.
        """


class NullScheduler:
    """Leaves everything to the sweeper."""

    after_commit = True
    queues = False

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Do nothing."""

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Do nothing: the sweeper finds sessions that are due, but no requests."""
        return False


class InlineScheduler:
    """Folds at once, inside ``append``. For development and tests.

    A request then waits for the model, even inside a transaction. A failure of the model is logged and recorded, and
    the session stays due.
    """

    after_commit = False
    queues = False
    # A check warns of it.
    folds_in_request = True

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Fold the session now. With a ``delay``, leave it to the next append or sweep."""
        if delay:
            return
        try:
            memory.compact_id(session_id)
        except Exception:
            # No error of a model or its backend may make append fail. The session's row has the error, too.
            logger.exception("Compaction of session %s failed inside append.", session_id)

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Do ``work`` now."""
        try:
            memory.carry_out(session_id, work)
        except Exception:
            logger.exception("The request to %s session %s failed.", work, session_id)
        return True
