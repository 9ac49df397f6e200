"""The columns of a message. Everything that the ORM store does with them is derived from ``MESSAGE_COLUMNS``.

CONTRIBUTING.md has the recipe for a new column.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import operator
import uuid
from collections.abc import Sequence
from typing import Any

from django_convmemory import clock
from django_convmemory.messages import CHAT, ChatMessage, FrozenDict, dumps, frozen_json
from django_convmemory.rules import exchanges
from django_convmemory.rules.counters import Entry, Row
from django_convmemory.rules.segments import Indexable
from django_convmemory.rules.values import StoredMessage

# Stands for the position of a call that was made before the batch.
LEADING = -1


class Kind(enum.Enum):
    """How a value of a batch becomes the value of the row."""

    PLAIN = "It is stored as it is."
    JSON = "It is stored as JSON text. An empty value is stored as NULL."
    POSITION = "The session's last position is added."
    TOTAL = "The session's unpinned tokens are added."
    CALL = "It is a position too, but LEADING stands for the newest tool calls of the session."
    TIME = "None is replaced by the database's time."


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of a message, with its type in PostgreSQL."""

    name: str
    type: str
    kind: Kind = Kind.PLAIN
    _: dataclasses.KW_ONLY
    # load() and history() read the column. It restores the field of ChatMessage that has the same name.
    read: bool = False
    # A redaction makes the value again from the emptied message. Then the value depends on the message only.
    redacted: bool = False
    # An append leaves the column out.
    appended: bool = True


def wire_of(message: ChatMessage) -> dict[str, Any] | None:
    """Return the fields of the wire form that have no column of their own, or None."""
    wire: dict[str, Any] = {}
    if isinstance(message.content, tuple):
        wire["content"] = message.content
    if message.name is not None:
        wire["name"] = message.name
    if message.tool_calls:
        wire["tool_calls"] = message.tool_calls
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.extra:
        wire["extra"] = message.extra
    return wire or None


# The fields that the column ``wire`` can hold.
WIRE_FIELDS = frozenset({"content", "name", "tool_calls", "tool_call_id", "extra"})


# The statements name the columns in this order. row_values() makes their values.
MESSAGE_COLUMNS = (
    Column("role", "text", read=True),
    Column("kind", "text", read=True),
    # Content that is not text is in ``wire``.
    Column("content", "text", read=True, redacted=True),
    Column("wire", "text", Kind.JSON, read=True, redacted=True),
    Column("metadata", "text", Kind.JSON, read=True, redacted=True),
    # load() does not read an item: the message stands for it.
    Column("format", "text"),
    Column("item", "text", Kind.JSON, redacted=True),
    Column("usage", "text", Kind.JSON),
    Column("tokens", "int"),
    Column("tokens_through", "bigint", Kind.TOTAL),
    Column("position", "bigint", Kind.POSITION),
    Column("answers", "bigint", Kind.CALL),
    Column("reply_to", "bigint"),
    Column("cut_off", "text"),
    Column("public_id", "uuid"),
    Column("created_at", "timestamptz", Kind.TIME),
    Column("redacted_at", "timestamptz", appended=False),
)
APPENDED = tuple(column for column in MESSAGE_COLUMNS if column.appended)


def row_values(entry: Entry, row: Row, message_id: uuid.UUID) -> dict[str, Any]:
    """Return the values of the columns ``APPENDED``. This is the one place where a message becomes a row."""
    message = entry.message
    wire = wire_of(message)
    return {
        "role": message.role,
        "kind": message.kind,
        "content": message.content if isinstance(message.content, str) else None,
        "wire": dumps(wire) if wire else None,
        "metadata": dumps(message.metadata) if message.metadata else None,
        "format": None if message.format == CHAT else message.format,
        "item": dumps(message.item) if message.item else None,
        "usage": dumps(entry.usage) if entry.usage else None,
        "tokens": entry.tokens,
        "tokens_through": row.tokens_through,
        "position": row.position,
        "answers": row.answers,
        "reply_to": entry.reply_to,
        "cut_off": entry.cut_off,
        "public_id": message_id.hex,
        "created_at": entry.created_at,
    }


def redacted_values(message: ChatMessage) -> dict[str, Any]:
    """Return what a redaction of ``message`` stores, by column, as values for the ORM."""
    emptied = message.emptied()
    values = row_values(Entry(emptied, 0), Row(0, 0, None), uuid.UUID(int=0))
    redacted = {column.name: values[column.name] for column in MESSAGE_COLUMNS if column.redacted}
    return redacted | {name: json.loads(redacted[name]) for name in JSON_NAMES & redacted.keys() if redacted[name]}


READ_NAMES = tuple(column.name for column in MESSAGE_COLUMNS if column.read)
JSON_NAMES = frozenset(column.name for column in MESSAGE_COLUMNS if column.kind is Kind.JSON)
# message_of() takes the columns role, kind, content, wire and metadata, and then these.
MORE_NAMES = READ_NAMES[5:]
_read = operator.attrgetter(*READ_NAMES)
_EMPTY = FrozenDict()


def message_of(role: str, kind: str, content: str | None, wire: Any, metadata: Any, *more: Any) -> ChatMessage:
    """Return the message that a row holds. This is the one place where a row becomes a message.

    ``wire`` and ``metadata`` are JSON, or None: text if they come from a cursor, values if they come from the ORM.
    ``more`` has the values of the columns ``MORE_NAMES``.
    """
    if not (wire or metadata or more):
        return ChatMessage.restore(role, content, kind)
    rest = _frozen(wire) if wire else _EMPTY
    message = ChatMessage.restore(
        role,
        rest.get("content") if content is None else content,
        kind,
        rest.get("name"),
        rest.get("tool_calls", ()),
        rest.get("tool_call_id"),
        _frozen(metadata) if metadata else _EMPTY,
        rest.get("extra", _EMPTY),
    )
    if more:
        for name, value in zip(MORE_NAMES, more, strict=True):
            if value is not None:
                object.__setattr__(message, name, value)
    return message


def message_of_row(row: Any) -> ChatMessage:
    """Return the message of a row of :class:`~django_convmemory.models.Message`, with its item."""
    return with_item(message_of(*_read(row)), row.format, row.item)


def stored_of_row(row: Any) -> StoredMessage:
    """Return a row of :class:`~django_convmemory.models.Message` as a message for people to read, with its item."""
    stored = stored_message(*(getattr(row, name) for name in (*STORED_NAMES, *ITEM_NAMES)))
    return stored._replace(created_at=clock.aware(row.created_at, row._state.db or "default"))


# The columns that with_item() takes.
ITEM_NAMES = ("format", "item")


def with_item(message: ChatMessage, form: str | None, item: Any) -> ChatMessage:
    """Return a message that was just read, with the item for which it stands, if there is one."""
    if form is not None:
        object.__setattr__(message, "format", form)
        object.__setattr__(message, "item", _frozen(item) if item else None)
    return message


# The columns that stored_message() takes. ITEM_NAMES may follow.
STORED_NAMES = (
    *("position", "created_at", "tokens", "redacted_at", "public_id", "reply_to", "cut_off", "usage"),
    *READ_NAMES,
)


def stored_message(*row: Any) -> StoredMessage:
    """Return a row with the columns ``STORED_NAMES`` as a message for people to read."""
    position, created_at, tokens, redacted_at, public_id, reply_to, cut_off, usage, *stored = row
    message = message_of(*stored[: len(READ_NAMES)])
    if item := stored[len(READ_NAMES) :]:
        message = with_item(message, *item)
    turn = (reply_to, cut_off, _frozen(usage) if usage else None)
    return StoredMessage(position, created_at, message, tokens, redacted_at is not None, public_id, *turn)


# The columns that indexable() takes.
INDEXED_NAMES = ("position", "created_at", "redacted_at", "role", "kind", "content", "wire", *MORE_NAMES)


def indexable(values: Sequence[Any], *, whole: bool = True) -> Indexable:
    """Return a row with the columns ``INDEXED_NAMES`` as the index needs it.

    Unless ``whole``, only the beginning of the wire form was read, which is left out.
    """
    position, created_at, redacted_at, role, kind, content, wire, *more = values
    message = message_of(role, kind, content, wire if whole else None, None, *more)
    return Indexable(position, created_at, message, redacted_at is not None, whole)


def _frozen(value: Any) -> FrozenDict:
    frozen: FrozenDict = frozen_json(json.loads(value) if isinstance(value, str) else value)
    return frozen


def placed(rows: Any) -> list[exchanges.MessageRef]:
    """Return the messages of rows with the columns ``PLACED_NAMES``, by position."""
    rows_placed: list[exchanges.MessageRef] = []
    longer = bool(MORE_NAMES)  # Slicing each row for nothing would take a fifth of the time.
    restore, new = ChatMessage.restore, tuple.__new__  # A named tuple's own constructor takes three times as long.
    for row in rows:
        position, role, kind, content, wire, metadata, tokens, answers, redacted = row[:9] if longer else row
        if wire or metadata or longer:
            message = message_of(role, kind, content, wire, metadata, *row[9:])
        else:
            message = restore(role, content, kind)  # The usual case. A call more would take a tenth of the time.
        shown = exchanges.redacted(message) if redacted else message
        rows_placed.append(new(exchanges.MessageRef, (position, shown, tokens, answers, None, 0)))
    rows_placed.sort()  # By position, which is unique.
    return rows_placed
