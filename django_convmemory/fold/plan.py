"""What a run folds: which messages of the tail, and where a chunk may end.

A run may be one of many that take turns with other sessions. So of a long tail it reads only the beginning, if that is
folded for certain: the messages after it are too many to stay.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from django_convmemory.fold.base import Fold
from django_convmemory.rules import exchanges
from django_convmemory.rules.exchanges import Turn

# So many messages are read at first.
_BEGINNING = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The next messages: ``turns``. The first ``split`` of them are folded, in chunks that end at one of ``ends``.

    ``is_all``: then nothing is left to fold.
    """

    turns: Sequence[Turn]
    ends: Sequence[int]
    is_all: bool

    @property
    def split(self) -> int:
        return self.ends[-1]


def of(fold: Fold) -> Plan:
    """Return what is folded next of the session as it was when it was claimed.

    Messages that came after the claim are left alone: the claim knows which exchange was open then.
    """
    turns = fold.memory.store.turns(fold.claim, _BEGINNING)
    if len(turns) == _BEGINNING:
        if ends := _certain(fold, turns):
            return Plan(turns, ends, is_all=False)
        turns = fold.memory.store.turns(fold.claim)
    starts = exchanges.starts(turns, fold.claim.counters.open_position)
    split = len(turns)
    if not fold.claim.rebuilding:
        user_starts = [start for start in starts if turns[start].role == "user"]
        split = fold.memory.strategy.plan([turn.tokens for turn in turns], starts, user_starts)
    return Plan(turns, [*[start for start in starts if start < split], split], is_all=True)


def _certain(fold: Fold, turns: Sequence[Turn]) -> list[int]:
    """Return the starts of exchanges in the beginning of a tail through which all is folded, whatever comes after it.

    A message of the assistant ends every exchange before it, so that none of these goes on after ``turns``. And what
    exceeds the threshold is folded.
    """
    spoken = [index for index, turn in enumerate(turns) if turn.role == "assistant" and turn.answers is None]
    if not spoken and any(turn.answers is not None for turn in turns):
        return []
    settled = spoken[-1] if spoken else len(turns) - 1
    counters, threshold = fold.claim.counters, fold.memory.strategy.threshold
    through = list(itertools.accumulate((turn.tokens for turn in turns), initial=0))
    ends = []
    for start in exchanges.starts(turns, counters.open_position):
        tokens, messages = counters.tail_tokens - through[start], counters.tail_count - start
        stays = not threshold.exceeded(tokens=tokens, messages=messages, settled=True)
        if start > settled or (stays and not fold.claim.rebuilding):
            break
        ends.append(start)
    return ends if ends and ends[-1] > 0 else []
