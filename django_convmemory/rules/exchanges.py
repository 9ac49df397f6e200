"""Exchanges: the runs of messages that may not be cut.

An exchange is one message, or an assistant message with tool calls and all messages up to the last tool message that
answers it. A stored tool message has the position of the assistant message that it answers. So exchanges are found
without comparing call ids, which repeat within real conversations.

Items of OpenAI's Responses API come one by one: thoughts, texts and calls of one response are messages of their own.
They are one exchange, too. Those after the first one have its position, and so have the results of all their calls.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_convmemory.messages import ChatMessage

NO_RESULT = "[No result: the tool call was interrupted or is still running.]"
# Some providers refuse a message without content.
REDACTED = "[This message was removed.]"


class Turn(NamedTuple):
    """An unpinned message without its text, for planning.

    ``answers`` is the position of the assistant message that a tool message answers, or at which the run of items began
    that the message continues. It is None for other messages.
    """

    position: int
    tokens: int
    answers: int | None
    role: str


def starts(turns: Sequence[Turn | MessageRef], open_position: int = 0) -> list[int]:
    """Return the indexes in ``turns`` at which an exchange begins, in ascending order.

    ``turns`` are unpinned messages in order. If an exchange began before the first turn, its messages have no start
    here. ``open_position`` is the position of the assistant message whose exchange is open, or 0. An open exchange
    reaches to the end.
    """
    ends = {turn.answers: index for index, turn in enumerate(turns) if turn.answers is not None}
    if not turns or not (ends or open_position):
        return list(range(len(turns)))  # The usual case: each message is an exchange.
    starts: list[int] = []
    first = turns[0].position
    if 0 < open_position < first:
        return starts
    inside = max((end for position, end in ends.items() if position < first), default=-1)
    for index, turn in enumerate(turns):
        if index <= inside:
            continue
        starts.append(index)
        if turn.position == open_position:
            break
        inside = ends.get(turn.position, index)
    return starts


class MessageRef(NamedTuple):
    """A stored message with its position.

    ``tokens`` were counted at append. ``answers`` is as in :class:`Turn`. ``created_at`` is read to fold the message,
    and ``tokens_through``, the total of the unpinned tokens, to cut a session after it.
    """

    position: int
    message: ChatMessage
    tokens: int
    answers: int | None = None
    created_at: dt.datetime | None = None
    tokens_through: int = 0

    @property
    def begins(self) -> int:
        """The position at which the exchange begins that the message continues, or its own."""
        return self.position if self.answers is None else self.answers


def redacted(message: ChatMessage) -> ChatMessage:
    """Return a redacted message as a model sees it: with a notice instead of the content."""
    return dataclasses.replace(message, content=REDACTED) if message.content == "" else message


def well_formed(rows: Iterable[MessageRef]) -> list[MessageRef]:
    """Return unpinned messages as a provider accepts them: every call with its result, every result with its call.

    Results stand directly after their call, in the order of the calls. The n-th result with an id answers the n-th call
    with it. If there are more results than calls, the last one counts. A call without a result gets a placeholder, with
    position 0 and 0 tokens. A result without its call is left out.
    """
    rows = list(rows)
    results: dict[tuple[int, str], list[MessageRef]] = {}
    calls: collections.Counter[tuple[int, str]] = collections.Counter()
    for row in rows:
        if row.answers is not None and row.message.tool_call_id is not None:
            results.setdefault((row.answers, row.message.tool_call_id), []).append(row)
        calls.update((row.begins, call_id) for call_id in row.message.call_ids)
    for call, found in results.items():
        if 0 < calls[call] < len(found):
            found[calls[call] - 1 :] = found[-1:]
    arranged = []
    for row in rows:
        if row.message.role == "tool":
            continue
        arranged.append(row)
        # One exchange can have several messages with calls. The results answer where it begins.
        for call_id in row.message.call_ids:
            answers = results.get((row.begins, call_id))
            missing = [] if answers else [MessageRef(0, ChatMessage.tool(NO_RESULT, call_id), 0, row.begins)]
            arranged.append((answers or missing).pop(0))
    return arranged
