"""Exchanges: the runs of messages that may not be cut.

An exchange is one message, or an assistant message with tool calls and everything up to the last tool message that
answers it. A stored tool message knows the position of the assistant message that it answers, so that exchanges are
found without comparing ids, which repeat within real conversations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from django_convmemory.messages import ChatMessage

NO_RESULT = "[No result: the tool call was interrupted or is still running.]"
# Some providers refuse a message without content.
REDACTED = "[This message was removed.]"


class Turn(NamedTuple):
    """An unpinned message as planning sees it: no text.

    ``answers`` is the position of the assistant message that a tool message answers, None for any other.
    """

    position: int
    tokens: int
    answers: int | None


class _Placed(Protocol):
    @property
    def position(self) -> int: ...
    @property
    def answers(self) -> int | None: ...


def starts(turns: Sequence[_Placed], open_position: int = 0) -> list[int]:
    """Return the indexes in ``turns`` at which an exchange begins, ascending.

    ``turns`` are unpinned messages in order. Leading ones that belong to an exchange that began before the first of
    them have no start. ``open_position`` is the position of the assistant message whose exchange is open, or 0: that
    exchange reaches to the end.
    """
    ends = {turn.answers: index for index, turn in enumerate(turns) if turn.answers is not None}
    if not ends and not open_position:
        return list(range(len(turns)))  # as most are: each message is an exchange
    found = []
    inside = -1
    if turns:
        first = turns[0].position
        inside = max((end for position, end in ends.items() if position < first), default=-1)
        if 0 < open_position < first:
            return []
    for index, turn in enumerate(turns):
        if index <= inside:
            continue
        found.append(index)
        if turn.position == open_position:
            break
        inside = ends.get(turn.position, index)
    return found


class Placed(NamedTuple):
    """A stored message in its place.

    ``tokens`` as counted at append; ``answers`` as in :class:`Turn`.
    """

    position: int
    message: ChatMessage
    tokens: int
    answers: int | None = None


def redacted(message: ChatMessage) -> ChatMessage:
    """Return a message that was redacted as a model sees it: where there was content, one of ours says so."""
    return dataclasses.replace(message, content=REDACTED) if message.content == "" else message


def well_formed(rows: Iterable[Placed]) -> list[Placed]:
    """Return unpinned messages as a provider accepts them: every call with its result, every result with its call.

    Results stand directly after their call, in the order of the calls. Of a repeated result the last one counts. A call
    that has no result gets one of ours that says so, with position 0 and 0 tokens; a result without its call is left
    out.
    """
    rows = list(rows)
    results: dict[tuple[int, str], Placed] = {}
    for row in rows:
        if row.answers is not None and row.message.tool_call_id is not None:
            results[row.answers, row.message.tool_call_id] = row
    arranged = []
    for row in rows:
        if row.message.role == "tool":
            continue
        arranged.append(row)
        for call_id in dict.fromkeys(row.message.call_ids):
            result = results.get((row.position, call_id))
            arranged.append(result or Placed(0, ChatMessage.tool(NO_RESULT, call_id), 0, row.position))
    return arranged
