"""Schedulers: who folds a session once it is due.

The one that sends a Celery task is :class:`django_convmemory.tasks.CeleryScheduler`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from django_convmemory.conversation import ConversationMemory

logger = logging.getLogger(__name__)


# What a person can ask for: to fold what is due, or to make the summary anew.
Work = Literal["compact", "rebuild"]


class Scheduler(Protocol):
    """Sees to it that due sessions are folded."""

    @property
    def after_commit(self) -> bool:
        """Whether ``schedule`` waits for the caller's transaction to commit."""

    @property
    def hints(self) -> bool:
        """Whether ``schedule`` sends something that a sweep need not send again for some minutes."""

    def schedule(self, memory: ConversationMemory, session_id: int, *, delay: float = 0.0) -> None:
        """Have the session folded, in ``delay`` seconds or later. Must not raise for want of a broker."""

    def order(self, memory: ConversationMemory, session_id: int, work: Work) -> bool:
        """Have what a person asked for done soon, and return whether somebody is there to do it. As ``schedule``."""


class NullScheduler:
    """Leaves everything to the sweeper."""

    after_commit = True
    hints = False

    def schedule(self, memory: ConversationMemory, session_id: int, *, delay: float = 0.0) -> None:
        """Do nothing."""

    def order(self, memory: ConversationMemory, session_id: int, work: Work) -> bool:
        """Do nothing: the sweeper knows of what is due, and of nothing else."""
        return False


class InlineScheduler:
    """Folds at once, inside ``append``: for development and tests, as the libraries do that this app replaces.

    A request then waits for the model, also inside a transaction. A failure of the model is logged and recorded, and
    the session stays due.
    """

    after_commit = False
    hints = False

    def schedule(self, memory: ConversationMemory, session_id: int, *, delay: float = 0.0) -> None:
        """Fold the session now, unless it is to wait."""
        if delay:
            return
        try:
            memory.compact_id(session_id)
        except Exception:
            # The promise of append: nothing that a model or its backend does can make it fail. The traceback is here,
            # the error in the session's row.
            logger.exception("Compaction of session %s failed inside append.", session_id)

    def order(self, memory: ConversationMemory, session_id: int, work: Work) -> bool:
        """Do it now."""
        try:
            memory.carry_out(session_id, work)
        except Exception:
            logger.exception("What was asked for, to %s session %s, failed.", work, session_id)
        return True
