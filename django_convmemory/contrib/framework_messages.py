"""What the adapters of agent frameworks share: which messages a framework is given, and how its messages are stored."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

from django.db import transaction

from django_convmemory.context.assembly import Context, Part
from django_convmemory.exceptions import InvalidArgument
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules import exchanges
from django_convmemory.rules.values import StoredMessage
from django_convmemory.store.orm import ORMStore

View = Literal["context", "history"]
Message = TypeVar("Message")  # of a framework

_PAGE = 500
# Reading so many rows too many costs less than another query.
_GAP = 50


class FrameworkMessage(NamedTuple):
    """A message for a framework.

    With an item, it is a message of the framework. Otherwise the adapter makes one from it. ``position`` and
    ``created_at`` are None for the summary, and for the notice instead of a missing result.
    """

    message: ChatMessage
    position: int | None = None
    created_at: dt.datetime | None = None


def check_view(view: str) -> None:
    """Raise :class:`~django_convmemory.exceptions.InvalidArgument` unless ``view`` is a view."""
    if view not in ("context", "history"):
        raise InvalidArgument(f"view must be 'context' or 'history', not {view!r:.100}.")


def given(session: SessionHandle, view: View, own_format: str, *, at: int | None = None) -> list[FrameworkMessage]:
    """Return the messages of the session for the framework whose items have the format ``own_format``.

    Of another framework's item, only the chat message is given. A thought in such an item is left out: only that
    framework can read it.

    ``view="history"`` gives all of them. ``"context"`` gives what fits into the budget of the memory: pinned messages,
    the summary, and whole exchanges. There, each result follows its call. A result without its call is left out. A
    call without a result gets a notice as its result, as soon as the conversation has gone on. With ``at`` it is the
    context of a session that ends at this position.
    """
    check_view(view)
    if view == "history":
        return readable(stored(session), own_format)
    context = session.memory.load_turn(session.session_name, at=at, recall=False)
    rows = _rows(session, [part.position for part in context.parts if part.position is not None])
    return list(_readable([_given(part, rows.get(part.position or 0)) for part in _in_order(context)], own_format))


def readable(rows: Iterable[StoredMessage], own_format: str) -> list[FrameworkMessage]:
    """Return stored messages for the framework, each as it is, as :func:`given` does."""
    messages = (
        FrameworkMessage(exchanges.redacted(row.message) if row.redacted else row.message, row.position, row.created_at)
        for row in rows
    )
    return list(_readable(messages, own_format))


def store(session: SessionHandle, messages: Sequence[ChatMessage]) -> None:
    """Append ``messages``, if there are any. System messages are pinned only if the session begins with them.

    Agents repeat their prompts, and send instructions in the middle of a conversation. Pinned, they would fill the
    context: they are never folded.
    """
    if messages:
        # Nothing is pinned after other messages. So if the last one is pinned, the session is still beginning.
        begins = messages[0].pinned and all(last.message.pinned for last in session.history(limit=1))
        session.append(*pinned_at_the_beginning(messages, begins=begins))


def assign(
    session: SessionHandle,
    lists: Iterable[Sequence[Message]],
    messages: Sequence[Message],
    as_chat: Callable[[Sequence[Message]], Sequence[ChatMessage]],
) -> None:
    """Let ``messages`` be the messages of the session, in one transaction if the store has transactions.

    If they begin with one of ``lists``, what the framework was given, the others are appended. So what was folded, or
    added by another process, stays.
    """
    for before in lists:
        if messages[: len(before)] == before:
            store(session, as_chat(messages[len(before) :]))
            return
    replacements = as_chat(messages)
    kept_in = session.memory.store
    with transaction.atomic(using=kept_in.using) if isinstance(kept_in, ORMStore) else contextlib.nullcontext():
        session.clear()
        store(session, replacements)


def pinned_at_the_beginning(messages: Iterable[ChatMessage], *, begins: bool = True) -> Iterator[ChatMessage]:
    """Yield ``messages``. Only those are pinned with which the session begins. ``begins``: it has no messages yet."""
    for message in messages:
        begins = begins and message.pinned
        if message.pinned and not begins:
            message = dataclasses.replace(message, role="user", name=message.role)
        yield message


def _in_order(context: Context) -> Iterator[Part]:
    """Yield the parts of ``context`` in the order in which the messages came, each result after its call."""
    blocks: list[list[Part]] = []
    for part in context.parts:
        if part.name == "tail" and part.message.role == "tool" and blocks:
            blocks[-1].append(part)
        else:
            blocks.append([part])
    tail = [block for block in blocks if block[0].name == "tail"]
    begin = tail[0][0].position if tail else None
    if tail:
        # Its results may still come.
        tail[-1][:] = [part for part in tail[-1] if part.position is not None]
    # A pinned message keeps its place as long as the messages around it are shown.
    leading = [block[0] for block in blocks if block[0].name != "tail" and _is_before(block[0], begin)]
    later = [block for block in blocks if block[0].name == "tail" or not _is_before(block[0], begin)]
    yield from leading
    for block in sorted(later, key=lambda block: block[0].position or 0):
        yield block[0]
        yield from sorted(block[1:], key=lambda part: (part.position is None, part.position))


def _readable(messages: Iterable[FrameworkMessage], own_format: str) -> Iterator[FrameworkMessage]:
    for each in messages:
        message = each.message
        if message.item is not None and message.format == own_format:
            yield each
        elif message.role == "tool" or message.content or message.tool_calls:  # No provider takes an empty message.
            yield each._replace(message=message.without_item())


def _is_before(part: Part, position: int | None) -> bool:
    return part.position is None or position is None or part.position < position


def _given(part: Part, row: StoredMessage | None) -> FrameworkMessage:
    if row is None:
        return FrameworkMessage(part.message, part.position)
    # The context shows a notice instead of a redacted message.
    return FrameworkMessage(part.message if row.message.item is None else row.message, row.position, row.created_at)


def _rows(session: SessionHandle, positions: list[int]) -> dict[int, StoredMessage]:
    """Return the stored messages at ``positions``, with their items. One that has been deleted since is missing."""
    positions = sorted(positions)
    gaps = [at for at, (before, after) in enumerate(itertools.pairwise(positions), 1) if after - before > _GAP]
    bounds = itertools.pairwise([0, *gaps, len(positions)])
    runs = [positions[start:end] for start, end in bounds if end]
    return {row.position: row for run in runs for row in stored(session, after=run[0] - 1, through=run[-1])}


def stored(session: SessionHandle, *, after: int = 0, through: int | None = None) -> Iterator[StoredMessage]:
    """Yield the stored messages after the position ``after``, with their items, at most through ``through``."""
    while through is None or after < through:
        limit = _PAGE if through is None else min(_PAGE, through - after)
        page = session.history(after=after, limit=limit, items=True)
        yield from page
        if len(page) < limit:
            return
        after = page[-1].position
