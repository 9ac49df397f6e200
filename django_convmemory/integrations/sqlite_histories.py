"""SQLite files in which the OpenAI Agents SDK or LangChain stores conversations, read as records. Neither is needed.

- A table of the SDK's ``SQLiteSession`` and ``AsyncSQLiteSession`` has the columns ``id``, ``session_id``,
  ``message_data`` and ``created_at``. Its usual name is ``agent_messages``.
- A table of LangChain's ``SQLChatMessageHistory`` has the columns ``id``, ``session_id`` and ``message``. Its usual
  name is ``message_store``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import operator
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
    """Whether the file is a SQLite database. A pipe is not: to look at it would use it up. Raises OSError."""
    if not pathlib.Path(path).is_file():
        return False
    with pathlib.Path(path).open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read(path: str) -> Generator[Record]:
    """Yield the sessions of a file. They belong to nobody. The file is not changed.

    Raises :class:`~django_convmemory.maintenance.transfer.records.BadRecord`.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{pathlib.Path(path).absolute().as_uri()}?mode=ro", uri=True)) as file:
            # So that an error can name the row with the other bytes.
            file.text_factory = lambda text: text.decode(errors="surrogateescape")
            tables = list(_tables(file))
            if not tables:
                raise BadRecord("tables", "there is none with conversations of the OpenAI Agents SDK or of LangChain.")
            _refuse_branches(file)
            for table, columns in tables:
                yield from _sessions(file, table, columns)
    except (sqlite3.Error, UnicodeError) as error:
        advice = "Is the file whole, and does no other program write to it?"
        raise BadRecord("the database", f"SQLite cannot read it ({error}). {advice}") from error


def _tables(file: sqlite3.Connection) -> Iterator[tuple[str, set[str]]]:
    """Yield the tables with conversations, each with its columns."""
    for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
        columns = {name for (name,) in file.execute("SELECT name FROM pragma_table_info(?)", [table])}
        if {"id", "session_id"} <= columns and len(columns & _FORMATS.keys()) == 1:
            yield table, columns


def _refuse_branches(file: sqlite3.Connection) -> None:
    """Raise BadRecord if a session of the SDK's ``AdvancedSQLiteSession`` has branches: an import would mix them."""
    columns = {name for (name,) in file.execute("SELECT name FROM pragma_table_info('message_structure')")}
    if not {"session_id", "branch_id"} <= columns:
        return
    statement = "SELECT session_id FROM message_structure GROUP BY session_id HAVING COUNT(DISTINCT branch_id) > 1"
    if branched := file.execute(statement).fetchone():
        raise BadRecord(
            "table message_structure",
            f"the session {branched[0]!r:.100} has several branches. Delete all but one, by the SDK's delete_branch().",
        )


def _sessions(file: sqlite3.Connection, table: str, columns: set[str]) -> Iterator[Record]:
    name = '"{}"'.format(table.replace('"', '""'))
    [column] = columns & _FORMATS.keys()
    time = "created_at" if "created_at" in columns else "NULL"
    # In one statement: there may be no index for a search by the session.
    rows = file.execute(
        f"SELECT session_id, id, {column}, {time}, MIN(id) OVER (PARTITION BY session_id) AS first FROM {name} "
        "ORDER BY first, session_id, id"
    )
    for key, of_session in itertools.groupby(rows, key=operator.itemgetter(0)):
        place = f"table {table}, session {key!r:.100}"
        messages: list[ChatMessage] = []
        times = []
        for _, row, item, created_at, _ in of_session:
            try:
                if not isinstance(key, (str, int)):
                    raise ValueError("it has no session id." if key is None else "its session id is not a string.")
                messages.append(_FORMATS[column](_decoded(item)))
            except ValueError as error:
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
    except RecursionError:
        raise ValueError("it is nested too deeply.") from None
    except (TypeError, ValueError):
        raise ValueError("it does not hold JSON.") from None
    if isinstance(decoded, dict) and "__enc__" in decoded:
        raise ValueError("EncryptedSession has encrypted it. Decrypt the items with the SDK first.")
    return decoded


def _time(value: Any) -> dt.datetime | None:
    """Return a time as SQLite's CURRENT_TIMESTAMP writes it, in UTC. None: it is not known, or cannot be stored."""
    try:
        time = dt.datetime.fromisoformat(value)
        time = time.replace(tzinfo=dt.UTC) if time.utcoffset() is None else time.astimezone(dt.UTC)
    except (TypeError, ValueError, OverflowError):
        return None
    return time if 1000 < time.year < 9999 else None
