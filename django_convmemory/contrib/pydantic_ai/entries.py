"""The messages of a session as entries of pydantic-ai, and the branches that a conversation has left.

A message of the history is in the core's table. Here it has its id only, with the position of its last row. A message
that somebody else appended has none: its id is the public id of its last row. When a conversation leaves a branch, the
messages after the fork in the road move here as a whole, and back when it returns to the branch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from django.db.models import QuerySet

from django_convmemory.contrib import framework_messages
from django_convmemory.contrib.pydantic_ai import messages
from django_convmemory.contrib.pydantic_ai.messages import Json
from django_convmemory.contrib.pydantic_ai.models import Entry
from django_convmemory.models import Message, Session
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.values import StoredMessage

_PAGE = 200
_saving = ContextVar("saving", default=False)


class Item(NamedTuple):
    """A message with the id of its entry and of the one before it. ``position``: of its last row, or None."""

    id: str
    parent_id: str | None
    message: Json
    position: int | None = None


@contextmanager
def saving() -> Iterator[None]:
    """Let :func:`follow` leave alone what is changed meanwhile: the store does it itself."""
    token = _saving.set(True)
    try:
        yield
    finally:
        _saving.reset(token)


def follow(using: str, session_id: int, first: int, last: int | None, copied_from: int | None, **kwargs: Any) -> None:
    """Copy the ids of messages that are copied, and remove those of messages that go, in the same transaction.

    The branches that the conversation has left go too: they may quote what was removed or redacted.
    """
    entries = Entry.objects.using(using)
    if copied_from is not None:
        ids = entries.filter(session_id=copied_from, position__lte=last).values_list("entry_id", "position")
        entries.bulk_create([Entry(session_id=session_id, entry_id=pk, position=at) for pk, at in ids])
    elif not _saving.get():
        if last is None:
            entries.filter(session_id=session_id, position__gte=first).delete()
        entries.filter(session_id=session_id, position=None).delete()


def history(
    memory: ConversationMemory, session: Session, *, through: int, after: int = 0, limit: int | None = None
) -> list[Item]:
    """Return the messages after the position ``after`` through ``through``, or only the last ``limit`` of them."""
    rows: list[StoredMessage] = []
    while True:
        page = memory.history(session, before=rows[0].position if rows else through + 1, limit=_PAGE, items=True)
        rows[:0] = page
        # The first message may be cut in two by the page, and the second has it as its parent.
        if len(page) < _PAGE or page[0].position <= after or (limit is not None and len(_joined(rows)) > limit + 1):
            break
    ids: dict[int | None, str] = {row.position: str(row.id) for row in rows}
    named = _entries(session).filter(position__lte=through)
    ids |= dict(named.filter(position__gte=rows[0].position if rows else 0).values_list("position", "entry_id"))
    items: list[Item] = []
    for message, position in _joined(rows):
        items.append(Item(ids[position], items[-1].id if items else None, message, position))
    items = [item for item in items if (item.position or 0) > after]
    return items if limit is None else items[len(items) - min(limit, len(items)) :]


def head(memory: ConversationMemory, session: Session) -> str | None:
    """Return the id of the last message, or None."""
    stored = _entries(session).filter(position=session.last_position).values_list("entry_id", flat=True).first()
    if stored is not None:
        return str(stored)
    last = history(memory, session, through=session.last_position, limit=1)
    return last[-1].id if last else None


def _joined(rows: list[StoredMessage]) -> list[tuple[Json, int | None]]:
    return messages.joined(framework_messages.readable(rows, messages.FORMAT))


def path(session: Session, entry_id: str | None) -> tuple[int, list[Item]]:
    """Return the position of the last message of the history on the way to an entry, and the left messages after it.

    Raises LookupError if the session does not have the entry.
    """
    entries = _entries(session)
    gone = entries.filter(position=None)
    known = {each.entry_id: each for each in gone} if gone.filter(entry_id=entry_id).exists() else {}
    left: list[Item] = []
    while entry_id is not None and entry_id in known:
        left.insert(0, Item(entry_id, known[entry_id].parent_id, known[entry_id].message))
        entry_id = known[entry_id].parent_id
    if entry_id is None:
        return 0, left
    rows = Message.objects.using(session._state.db).filter(session=session, public_id__in=public_ids(entry_id))
    position = entries.filter(entry_id=entry_id).values_list("position", flat=True).first()
    if position is None:  # Perhaps it is a message of somebody else.
        position = rows.values_list("position", flat=True).first()
    if position is None:
        raise LookupError(entry_id)
    return position, left


def _entries(session: Session) -> QuerySet[Entry]:
    return Entry.objects.using(session._state.db).filter(session=session)


def public_ids(entry_id: str) -> list[uuid.UUID]:
    """Return the public id that ``entry_id`` may be, if it may be one."""
    try:
        return [uuid.UUID(entry_id)]
    except ValueError:
        return []
