"""Schedulers: who folds a session once it is due.

The one that sends a Celery task is :class:`django_convmemory.tasks.CeleryScheduler`.
"""

from __future__ import annotations

import logging
from typing import Literal, Protocol

from django_convmemory.chat_models.base import ChatModel
from django_convmemory.core.compaction import Outcome, Result
from django_convmemory.core.options import Options
from django_convmemory.core.store import Store

logger = logging.getLogger(__name__)


# What a person can ask for: to fold what is due, or to make the summary anew.
Work = Literal["compact", "rebuild"]


class Memory(Protocol):
    """The part of a :class:`~.conversation.ConversationMemory` that schedulers use."""

    @property
    def alias(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def options(self) -> Options: ...
    @property
    def model(self) -> ChatModel | None: ...
    @property
    def fallback(self) -> ChatModel | None: ...

    def compact_id(self, session_id: int, *, force: bool = False) -> Result:
        """Fold what is due in the session, in this process."""

    def carry_out(self, session_id: int, work: Work) -> Outcome:
        """Do what a person requested for the session, in this process."""


class Scheduler(Protocol):
    """Sees to it that due sessions are folded."""

    @property
    def after_commit(self) -> bool:
        """Whether ``schedule`` waits for the caller's transaction to commit."""

    @property
    def hints(self) -> bool:
        """Whether ``schedule`` sends something that a sweep need not send again for some minutes."""

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Have the session folded, in ``delay`` seconds or later. Must not raise for want of a broker."""

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Have what a person asked for done soon, and return whether somebody is there to do it. As ``schedule``."""


class NullScheduler:
    """Leaves everything to the sweeper."""

    after_commit = True
    hints = False

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Do nothing."""

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Do nothing: the sweeper knows of what is due, and of nothing else."""
        return False


class InlineScheduler:
    """Folds at once, inside ``append``: for development and tests, as the libraries do that this app replaces.

    A request then waits for the model, also inside a transaction. A failure of the model is logged and recorded, and
    the session stays due.
    """

    after_commit = False
    hints = False

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Fold the session now, unless it is to wait."""
        if delay:
            return
        try:
            memory.compact_id(session_id)
        except Exception:
            # The promise of append: nothing that a model or its backend does can make it fail. The traceback is here,
            # the error in the session's row.
            logger.exception("Compaction of session %s failed inside append.", session_id)

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Do it now."""
        try:
            memory.carry_out(session_id, work)
        except Exception:
            logger.exception("What was asked for, to %s session %s, failed.", work, session_id)
        return True
