"""The turn of a session: one request at a time answers a question in it."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

from django_convmemory.exceptions import QuestionChanged, TurnInProgress, TurnLost

# Note [A turn is in the session's row]
#
# A request that answers a question opens a turn: it writes a token and a time into the session's row, in the statement
# that stores the question. Each later step is a statement with conditions on that row:
#
# - The token is the same. Otherwise the turn has ended, or its time was over and another request has opened one.
# - The epoch and the last position are the same as after the step before. So nobody has removed or redacted a message,
#   and nobody has added one. PostgreSQL compares the columns of the row again if it had to wait for the row. It would
#   not read the messages again, so a condition on the messages themselves could miss a truncation.
#
# An expired turn goes on as long as nobody has opened another one.
#
# No lock is held, no thread keeps the turn alive, and a process that is killed blocks nobody for longer than the time
# of the turn.

# In seconds: when a request that was refused may try again. It waits for the open turn then, as long as it may.
_RETRY_AFTER = 5.0


class Does(enum.Enum):
    """What a step does with the turn."""

    BEGINS = "begins"
    GOES_ON = "goes on"
    ENDS = "ends"


class Step(NamedTuple):
    """What an append does with the turn of its session.

    ``token`` is that of the turn, which lasts for ``seconds`` from now on. The question is at the position
    ``question``, and 0 stands for a question that the append stores. The session must be at ``epoch`` and end at
    ``last_position``; an ``epoch`` of -1 stands for any state. What follows the position ``after`` is removed first.
    """

    token: str
    seconds: float
    does: Does
    question: int = 0
    epoch: int = -1
    last_position: int = 0
    after: int | None = None

    def check(self, token: str, *, open_seconds: float, epoch: int, last_position: int) -> None:
        """Raise the reason why the step cannot be made in a session with this turn, which is open for so long."""
        if self.does is Does.BEGINS:
            if token and open_seconds > 0:
                raise in_progress(open_seconds)
        elif token != self.token:
            raise lost()
        if self.epoch >= 0 and (self.epoch, self.last_position) != (epoch, last_position):
            raise changed()


class State(NamedTuple):
    """The state of a session that a turn depends on."""

    epoch: int
    last_position: int
    revision: int


def in_progress(seconds: float) -> TurnInProgress:
    """Return the error for a session in which a turn is open. If its process was killed, it ends in ``seconds``."""
    return TurnInProgress(
        "Another request answers in this session. Try again when it has ended. If its process was killed, that is in "
        f"{math.ceil(max(0.0, seconds))} seconds.",
        retry_after=min(max(0.0, seconds), _RETRY_AFTER),
    )


def lost() -> TurnLost:
    """Return the error for a turn that was not renewed in time."""
    return TurnLost("Another request answers in this session now, because this turn had lasted too long.")


def changed() -> QuestionChanged:
    """Return the error for a question that is not as it was."""
    return QuestionChanged(
        "The question was changed or removed, or messages were added after it, while it was answered. Read the session "
        "again."
    )
