"""The columns of a message. Everything that the ORM store does with them is derived from ``MESSAGE_COLUMNS``.

To add a column, add a field to :class:`~django_convmemory.models.Message`, a migration, and an entry to the table.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

from django_convmemory.core.counters import Batch, Entry, Row
from django_convmemory.core.values import Payload
from django_convmemory.messages import ChatMessage, FrozenDict, dumps, frozen_json

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
    """A column of a message.

    ``type`` is its type in PostgreSQL. ``value`` is a Python expression that makes its value. The names in it are those
    of the arguments of :func:`row_values`. An append leaves a column without ``value`` out.
    """

    name: str
    type: str
    kind: Kind
    value: str | None
    _: dataclasses.KW_ONLY
    # load() and history() read the column. It restores the field of ChatMessage that has the same name.
    read: bool = False
    # A redaction makes the value again from the emptied message. Then ``value`` may use ``message`` only.
    redacted: bool = False
    # The SQL of the value in a fork. None: the fork copies the value.
    fork: str | None = None


# The one place where a message becomes a row. The statements name the columns in this order.
MESSAGE_COLUMNS = (
    Column("role", "text", Kind.PLAIN, "message.role", read=True),
    Column("kind", "text", Kind.PLAIN, "message.kind", read=True),
    # Content that is not text is in ``wire``.
    Column("content", "text", Kind.PLAIN, "text_of(message)", read=True, redacted=True),
    Column("wire", "text", Kind.JSON, "wire_of(message)", read=True, redacted=True),
    Column("metadata", "text", Kind.JSON, "message.metadata", read=True, redacted=True),
    Column("usage", "text", Kind.JSON, "entry.usage"),
    Column("tokens", "int", Kind.PLAIN, "entry.tokens"),
    Column("tokens_through", "bigint", Kind.TOTAL, "row.tokens_through"),
    Column("position", "bigint", Kind.POSITION, "row.position"),
    Column("answers", "bigint", Kind.CALL, "row.answers"),
    # A fork has no idempotency keys: they belong to the appends to the original.
    Column("idempotency_key", "text", Kind.PLAIN, "keyed.key_hash if keyed else None", fork="NULL"),
    Column("payload_hash", "text", Kind.PLAIN, "payload_of(keyed) if keyed else ''", fork="''"),
    Column("created_at", "timestamptz", Kind.TIME, "entry.created_at"),
    Column("redacted_at", "timestamptz", Kind.PLAIN, None),
)


def text_of(message: ChatMessage) -> str | None:
    """Return the content of a message if it is text, or None."""
    content = message.content
    return content if isinstance(content, str) else None


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


def payload_of(batch: Batch) -> str:
    """Return what is stored with the idempotency key of ``batch``."""
    return Payload(batch.payload_hash, len(batch.entries)).text


APPENDED = tuple(column for column in MESSAGE_COLUMNS if column.value is not None)


def _expression(column: Column) -> str:
    if column.kind is Kind.JSON:
        return f"dumps(value) if (value := {column.value}) else None"
    return str(column.value)


# row_values(message, entry, row, keyed) returns the values of the columns ``APPENDED``. ``entry`` has the message, and
# ``row`` says where it goes. ``keyed`` is the batch if it has an idempotency key and the message is its first one.
# Otherwise it is None. All expressions are compiled into one function, because every append calls it: a function for
# each column would take four times as long.
row_values: Callable[[ChatMessage, Entry, Row, Batch | None], list[Any]] = eval(  # noqa: S307  only constants
    f"lambda message, entry, row, keyed: [{', '.join(f'({_expression(column)})' for column in APPENDED)}]",
    {"dumps": dumps, "payload_of": payload_of, "text_of": text_of, "wire_of": wire_of},
)


def redacted_values(message: ChatMessage) -> dict[str, Any]:
    """Return what a redaction of ``message`` stores, by column, as values for the ORM."""
    emptied = message.emptied()
    values = zip(APPENDED, row_values(emptied, Entry(emptied, 0), Row(0, 0, None), None), strict=True)
    return {
        column.name: json.loads(value) if column.kind is Kind.JSON and value is not None else value
        for column, value in values
        if column.redacted
    }


READ_NAMES = tuple(column.name for column in MESSAGE_COLUMNS if column.read)
# message_of() takes the columns role, kind, content, wire and metadata, and then these.
MORE_NAMES = READ_NAMES[5:]
_read = operator.attrgetter(*READ_NAMES)
_EMPTY = FrozenDict()


def message_of(
    role: str, kind: str, content: str | None, wire: Any, metadata: Any, more: Sequence[Any] = ()
) -> ChatMessage:
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


def message_of_values(values: Sequence[Any]) -> ChatMessage:
    """Return the message of a row of which ``values`` are the columns ``READ_NAMES``."""
    role, kind, content, wire, metadata, *more = values
    return message_of(role, kind, content, wire, metadata, more)


def message_of_row(row: Any) -> ChatMessage:
    """Return the message of a row of :class:`~django_convmemory.models.Message`."""
    return message_of_values(_read(row))


def _frozen(value: Any) -> FrozenDict:
    frozen: FrozenDict = frozen_json(json.loads(value) if isinstance(value, str) else value)
    return frozen
