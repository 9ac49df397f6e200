"""SQLite files of the OpenAI Agents SDK and of LangChain are imported by convmemory_import."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import io
import json
import os
import pathlib
import sqlite3
import threading
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_convmemory import models
from django_convmemory.integrations import responses_items
from django_convmemory.memory import memories
from django_convmemory.messages import thaw
from tests.response_items import called, returned, said, thought

pytestmark = pytest.mark.django_db

# As SQLiteSession of the SDK, and SQLChatMessageHistory of langchain-community, create them.
AGENTS = """
CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP, updated_at TIMESTAMP);
CREATE TABLE agent_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
"""
LANGCHAIN = "CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT);"

ITEMS = {
    "anna": [said("user", "Köln?"), thought("hm"), called("a"), returned("a", "1"), said("assistant", "A million.")],
    "ben": [said("user", "Hi."), {"role": "system", "content": "It is late."}, returned("lone", "?")],
}
MESSAGES = [
    {"type": "system", "data": {"content": "Be brief.", "type": "system"}},
    {"type": "human", "data": {"content": "What is Rust?", "type": "human"}},
    {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "f", "args": {}, "id": "a"}], "type": "ai"}},
    {"type": "tool", "data": {"content": "42", "tool_call_id": "a", "type": "tool"}},
]


def file_of(folder: pathlib.Path, *statements: str, rows: dict[str, list[tuple[Any, ...]]]) -> str:
    """Make a SQLite file with these rows in its tables, and return its name."""
    name = str(folder / "conversations.db")
    with contextlib.closing(sqlite3.connect(name)) as file:
        for statement in statements:
            file.executescript(statement)
        for table, values in rows.items():
            file.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)  # noqa: S608
        file.commit()
    return name


def rows_of(sessions: dict[str, list[Any]], *more: Any) -> list[tuple[Any, ...]]:
    """The rows of sessions whose messages came in turns."""
    longest = max(map(len, sessions.values()))
    turns = [(key, items[at]) for at in range(longest) for key, items in sessions.items() if at < len(items)]
    return [(number, key, json.dumps(item), *more) for number, (key, item) in enumerate(turns, 1)]


def load(*names: str, **options: Any) -> str:
    output = io.StringIO()
    call_command("convmemory_import", *names, stdout=output, **options)
    return output.getvalue()


def test_sessions_of_the_agents_sdk_are_imported(tmp_path: pathlib.Path) -> None:
    name = file_of(tmp_path, AGENTS, rows={"agent_messages": rows_of(ITEMS, "2024-05-01 10:00:00")})
    before = pathlib.Path(name).read_bytes()

    output = load(name)

    assert "2 sessions imported with 8 messages" in output
    for key, items in ITEMS.items():
        history = memories["default"].history(key, items=True)
        assert responses_items.items([stored.message for stored in history]) == items
        assert {stored.created_at for stored in history} == {dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)}
    assert pathlib.Path(name).read_bytes() == before
    assert "0 sessions imported with 0 messages, 2 already in the database" in load(name)


def test_messages_of_langchain_are_imported(tmp_path: pathlib.Path) -> None:
    name = file_of(tmp_path, LANGCHAIN, rows={"message_store": rows_of({"main": MESSAGES})})

    assert "1 session imported with 4 messages" in load(name)

    history = [stored.message for stored in memories["default"].history("main", items=True)]
    assert [(message.format, thaw(message.item)) for message in history] == [("langchain", item) for item in MESSAGES]
    assert [message.role for message in memories["default"].load("main")] == ["system", "user", "assistant", "tool"]


def test_tables_may_have_other_names(tmp_path: pathlib.Path) -> None:
    agents = AGENTS.replace("agent_messages", '"my ""items"""')
    langchain = LANGCHAIN.replace("message_store", "chats")
    rows = {'"my ""items"""': rows_of(ITEMS, None), "chats": rows_of({"main": MESSAGES})}

    assert "3 sessions imported with 12 messages" in load(file_of(tmp_path, agents, langchain, rows=rows))


def test_a_dry_run_stores_nothing(tmp_path: pathlib.Path) -> None:
    name = file_of(tmp_path, AGENTS, rows={"agent_messages": rows_of(ITEMS, None)})

    assert "2 sessions to import" in load(name, dry_run=True)
    assert not models.Session.objects.exists()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("{", "it does not hold JSON"),
        (b"\xff", "it does not hold JSON"),
        ("5", "An item must be a dict"),
        ("[" * 100_000 + "]" * 100_000, "it is nested too deeply"),
        ('{"__enc__": 1, "payload": "gAAAA"}', "EncryptedSession has encrypted it"),
        ('{"role": "user", "content": "a\\u0000b"}', "NUL"),
    ],
)
def test_a_row_that_cannot_be_imported_is_named(tmp_path: pathlib.Path, data: Any, error: str) -> None:
    rows = [*rows_of({"anna": ITEMS["anna"]}, None), (9, "ben", data, None)]
    name = file_of(tmp_path, AGENTS, rows={"agent_messages": rows})

    with pytest.raises(CommandError, match=rf"table agent_messages, session 'ben': row 9: .*{error}") as raised:
        load(name, no_compact=True)

    assert "The sessions before it are imported (1 session" in str(raised.value)
    assert [session.key for session in models.Session.objects.all()] == ["anna"]


def test_a_file_without_conversations_is_refused(tmp_path: pathlib.Path) -> None:
    name = file_of(tmp_path, "CREATE TABLE other (id INTEGER, session_id TEXT);", rows={})

    with pytest.raises(CommandError, match="none with conversations of the OpenAI Agents SDK or of LangChain"):
        load(name)


def test_a_file_that_is_cut_off_is_refused(tmp_path: pathlib.Path) -> None:
    name = file_of(tmp_path, AGENTS, rows={"agent_messages": rows_of(ITEMS, None)})
    whole = pathlib.Path(name).read_bytes()
    pathlib.Path(name).write_bytes(whole[:100])

    with pytest.raises(CommandError, match="SQLite cannot read it"):
        load(name)


def test_a_prompt_that_a_history_repeats_is_pinned_once(tmp_path: pathlib.Path) -> None:
    turn = [{"type": "system", "data": {"content": "Be brief."}}, {"type": "human", "data": {"content": "And now?"}}]
    rows = [(number, "talk", json.dumps(item)) for number, item in enumerate(turn * 70, 1)]

    call_command("convmemory_import", file_of(tmp_path, LANGCHAIN, rows={"message_store": rows}), stdout=io.StringIO())

    session = memories["default"].session("talk")
    assert [message.pinned for message in session.load()].count(True) == 1
    assert [thaw(stored.message.item) for stored in session.history(limit=200, items=True)] == turn * 70


def test_a_pipe_is_read_to_its_end(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    record = json.dumps({"key": "a", "messages": [said("user", "Köln?")]})
    writer = threading.Thread(target=lambda: pipe.write_text(record))
    writer.start()

    call_command("convmemory_import", str(pipe), stdout=io.StringIO())

    writer.join()
    assert [stored.message.text for stored in memories["default"].session("a").history()] == ["Köln?"]


def test_a_database_from_a_pipe_is_refused(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = pathlib.Path(file_of(tmp_path, AGENTS, rows={"agent_messages": rows_of(ITEMS, None)})).read_bytes()
    writer = threading.Thread(target=lambda: pipe.write_bytes(content))
    writer.start()

    with pytest.raises(CommandError, match=r"this is a SQLite database\. Import it by the name of its file"):
        call_command("convmemory_import", str(pipe))

    writer.join()


def test_a_row_without_a_session_is_an_error_and_not_lost(tmp_path: pathlib.Path) -> None:
    path = file_of(tmp_path, LANGCHAIN, rows={"message_store": [(1, None, json.dumps(MESSAGES[1]))]})
    with pytest.raises(CommandError, match="row 1: it has no session id"):
        call_command("convmemory_import", path)


def test_a_session_id_that_is_no_text_is_an_error(tmp_path: pathlib.Path) -> None:
    path = file_of(tmp_path, LANGCHAIN, rows={"message_store": [(1, b"anna", json.dumps(MESSAGES[1]))]})
    with pytest.raises(CommandError, match="row 1: its session id is not a string"):
        call_command("convmemory_import", path)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("7, 'anna', CAST(x'7b2261223a22ff227d' AS TEXT), NULL", "session 'anna': row 7: .* lone surrogate"),
        ('7, CAST(x\'ff\' AS TEXT), \'{"role": "user", "content": "a"}\', NULL', "session id .* lone surrogate"),
    ],
)
def test_a_text_that_is_not_utf_8_is_named(tmp_path: pathlib.Path, row: str, error: str) -> None:
    path = file_of(tmp_path, AGENTS, f"INSERT INTO agent_messages VALUES ({row});", rows={})  # noqa: S608
    with pytest.raises(CommandError, match=error):
        call_command("convmemory_import", path)


def test_a_file_that_another_program_has_locked_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, AGENTS, rows={"agent_messages": rows_of(ITEMS, None)})
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0))
        with pytest.raises(CommandError, match="does no other program write to it"):
            call_command("convmemory_import", path)


def test_a_table_of_another_program_with_the_name_of_the_branches_is_ignored(tmp_path: pathlib.Path) -> None:
    other = "CREATE TABLE message_structure (branch_id TEXT);"
    assert "2 sessions imported" in load(
        file_of(tmp_path, AGENTS, other, rows={"agent_messages": rows_of(ITEMS, None)})
    )


def test_a_session_with_branches_is_refused(tmp_path: pathlib.Path) -> None:
    structure = "CREATE TABLE message_structure (session_id TEXT, message_id INTEGER, branch_id TEXT);"
    rows: dict[str, list[tuple[Any, ...]]] = {
        "agent_messages": [(1, "anna", json.dumps(said("user", "one")), None)],
        "message_structure": [("anna", 1, "main"), ("anna", 1, "other")],
    }
    with pytest.raises(CommandError, match="'anna' has several branches"):
        call_command("convmemory_import", file_of(tmp_path, AGENTS, structure, rows=rows))


@pytest.mark.parametrize(
    "time", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "0001-01-01 00:00:00", "yesterday"]
)
def test_a_time_that_nobody_can_store_is_left_out(time: str, tmp_path: pathlib.Path) -> None:
    rows = {"agent_messages": [(1, "anna", json.dumps(said("user", "one")), time)]}
    call_command("convmemory_import", file_of(tmp_path, AGENTS, rows=rows), stdout=io.StringIO())
    assert models.Message.objects.get().created_at.year == dt.datetime.now(dt.UTC).year
