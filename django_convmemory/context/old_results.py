"""Old results of tools give way: a context shows a short text in their place.

The positions of the results decide which ones give way. So nothing is stored or counted, and all processes show the
same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from django_convmemory.messages import FrozenDict
from django_convmemory.rules.exchanges import MessageRef
from django_convmemory.tokens import TokenCounter

CLEARED = "[This old result is not shown any more.]"


def cleared(rows: Sequence[MessageRef], newest: int, counter: TokenCounter) -> tuple[Sequence[MessageRef], int]:
    """Return well-formed ``rows`` with :data:`CLEARED` in place of old results.

    At least the ``newest`` results stay, and less than twice as many. Results that the model has not seen stay too. If
    some of them give way after the next reply, return also the position at which their exchange begins, otherwise 0.
    """
    positions = sorted([row.position for row in rows if row.message.role == "tool" and row.position])
    if len(positions) <= newest:
        return rows, 0
    first = _first_that_stays(positions, newest)
    seen_before = max([row.position for row in rows if row.message.role == "assistant"], default=0)
    shown, changing = list(rows), 0
    for index, row in enumerate(rows):
        if row.message.role != "tool" or not 0 < row.position < first:
            continue
        if row.position > seen_before:
            changing = row.answers or 0
        else:
            message = dataclasses.replace(row.message.without_item(), content=CLEARED, extra=FrozenDict())
            shown[index] = row._replace(message=message, tokens=counter.count(message))
    return shown, changing


def _first_that_stays(positions: Sequence[int], newest: int) -> int:
    """Return the position from which on results stay: a multiple of a step. So contexts begin alike between two steps.

    A step of ``newest`` positions has at most as many results, so less than twice as many stay. In a loop of single
    calls, every second message is a result. Then a step of twice the length has no more, and is taken less often.
    """
    for step in (2 * newest, newest):
        first = positions[-newest] // step * step
        if sum([position >= first for position in positions]) < 2 * newest:
            break
    return first
