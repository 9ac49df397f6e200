"""SQLite files in which the OpenAI Agents SDK or LangChain stores conversations, read as records. Neither is needed.

- A table of the SDK's ``SQLiteSession`` and ``AsyncSQLiteSession`` has the columns ``id``, ``session_id``,
  ``message_data`` and ``created_at``. Its usual name is ``agent_messages``.
- A table of LangChain's ``SQLChatMessageHistory`` has the columns ``id``, ``session_id`` and ``message``. Its usual
  name is ``message_store``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import pathlib
import sqlite3
from collections.abc import Callable, Generator, Iterator
from typing import Any

from django_convmemory.exceptions import InvalidMessage
from django_convmemory.integrations import langchain_items, responses_items
from django_convmemory.integrations.framework_messages import pinned_at_the_beginning
from django_convmemory.maintenance.transfer.records import BadRecord, Record, RecordedMessage
from django_convmemory.messages import ChatMessage, check_text

_MAGIC = b"SQLite format 3\0"
# The columns that hold an item, and what makes a message of it.
_FORMATS: dict[str, Callable[[Any], ChatMessage]] = {
    "message_data": responses_items.message,
    "message": langchain_items.message,
}


def is_sqlite(path: str) -> bool:
    """Whether the file is a SQLite database. Raises OSError."""
    with pathlib.Path(path).open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: str) -> Generator[Record]:
    """Yield the sessions of a file. They belong to nobody. The file is not changed.

    Raises :class:`~django_convmemory.maintenance.transfer.records.BadRecord`.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{pathlib.Path(path).absolute().as_uri()}?mode=ro", uri=True)) as file:
            tables = list(_tables(file))
            if not tables:
                raise BadRecord("tables", "there is none with conversations of the OpenAI Agents SDK or of LangChain.")
            for table, columns in tables:
                yield from _sessions(file, table, columns)
    except sqlite3.Error as error:
        raise BadRecord("the database", f"SQLite cannot read it ({error}). Is the file whole?") from error


def _tables(file: sqlite3.Connection) -> Iterator[tuple[str, set[str]]]:
    """Yield the tables with conversations, each with its columns."""
    for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
        columns = {name for (name,) in file.execute("SELECT name FROM pragma_table_info(?)", [table])}
        if {"id", "session_id"} <= columns and len(columns & _FORMATS.keys()) == 1:
            yield table, columns


def _sessions(file: sqlite3.Connection, table: str, columns: set[str]) -> Iterator[Record]:
    name = '"{}"'.format(table.replace('"', '""'))
    [column] = columns & _FORMATS.keys()
    time = "created_at" if "created_at" in columns else "NULL"
    keys = file.execute(f"SELECT session_id FROM {name} GROUP BY session_id ORDER BY MIN(id)").fetchall()
    statement = f"SELECT id, {column}, {time} FROM {name} WHERE session_id = ? ORDER BY id"
    for (key,) in keys:
        place = f"table {table}, session {key!r:.100}"
        messages: list[ChatMessage] = []
        times = []
        for row, item, created_at in file.execute(statement, [key]):
            try:
                messages.append(_FORMATS[column](_decoded(item)))
            except (ValueError, RecursionError) as error:
                raise BadRecord(place, f"row {row}: {error} Correct or delete the row in a copy of the file.") from None
            times.append(_time(created_at))
        recorded = list(map(RecordedMessage, pinned_at_the_beginning(messages), times))
        try:
            check_text(str(key), "the session id")
        except InvalidMessage as error:
            raise BadRecord(place, str(error)) from None
        yield Record(place=place, key=str(key), messages=recorded)


def _decoded(item: Any) -> Any:
    try:
        decoded = json.loads(item)
    except (TypeError, ValueError):
        raise ValueError("it does not hold JSON.") from None
    if isinstance(decoded, dict) and "__enc__" in decoded:
        raise ValueError("EncryptedSession has encrypted it. Decrypt the items with the SDK first.")
    return decoded


def _time(value: Any) -> dt.datetime | None:
    """Return a time as SQLite's CURRENT_TIMESTAMP writes it, in UTC. None: it is not known."""
    try:
        time = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time.replace(tzinfo=dt.UTC) if time.utcoffset() is None else time.astimezone(dt.UTC)
