"""The script of docs/guides/moving.md moves SQLite files of the OpenAI Agents SDK and of LangChain."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import pathlib
import sqlite3
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_convmemory import models
from django_convmemory.contrib import responses_items
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.memory import memories
from django_convmemory.messages import thaw
from tests.guides.test_pages import module_of
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


def move(path: str, table: str) -> None:
    """Run the page's script. ``table`` is the name of one of its statements."""
    script = module_of("moving", "move_sqlite.py")
    script["move"](path, script[table])


def test_sessions_of_the_agents_sdk_are_moved(tmp_path: pathlib.Path) -> None:
    path = file_of(tmp_path, AGENTS, rows={"agent_messages": rows_of(ITEMS, "2024-05-01 10:00:00")})
    before = pathlib.Path(path).read_bytes()

    for _ in range(2):
        move(path, "AGENTS_SDK")
        for key, items in ITEMS.items():
            history = memories["default"].history(key, items=True)
            assert responses_items.items([stored.message for stored in history]) == items
            assert {stored.created_at for stored in history} == {dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)}
    assert pathlib.Path(path).read_bytes() == before


def test_messages_of_langchain_are_moved(tmp_path: pathlib.Path) -> None:
    move(file_of(tmp_path, LANGCHAIN, rows={"message_store": rows_of({"main": MESSAGES})}), "LANGCHAIN")

    history = [stored.message for stored in memories["default"].history("main", items=True)]
    assert [(message.format, thaw(message.item)) for message in history] == [("langchain", item) for item in MESSAGES]
    assert [message.role for message in memories["default"].load("main")] == ["system", "user", "assistant", "tool"]


def test_a_prompt_that_a_history_repeats_is_pinned_once(tmp_path: pathlib.Path) -> None:
    turn = [{"type": "system", "data": {"content": "Be brief."}}, {"type": "human", "data": {"content": "And now?"}}]
    rows = [(number, "talk", json.dumps(item)) for number, item in enumerate(turn * 70, 1)]

    move(file_of(tmp_path, LANGCHAIN, rows={"message_store": rows}), "LANGCHAIN")

    session = memories["default"].session("talk")
    assert [message.pinned for message in session.load()].count(True) == 1
    assert [thaw(stored.message.item) for stored in session.history(limit=200, items=True)] == turn * 70


@pytest.mark.parametrize(("data", "error"), [("{", ValueError), ("5", InvalidMessage)])
def test_the_session_that_cannot_be_moved_is_named(tmp_path: pathlib.Path, data: str, error: type[Exception]) -> None:
    rows = [*rows_of({"anna": ITEMS["anna"]}, None), (9, "ben", data, None)]

    with pytest.raises(error) as raised:
        move(file_of(tmp_path, AGENTS, rows={"agent_messages": rows}), "AGENTS_SDK")

    assert "session 'ben'" in raised.value.__notes__[0]
    assert [session.key for session in models.Session.objects.all()] == ["anna"]


def test_the_import_says_that_it_does_not_read_such_a_file(tmp_path: pathlib.Path) -> None:
    path = file_of(tmp_path, AGENTS, rows={"agent_messages": rows_of(ITEMS, None)})
    with pytest.raises(CommandError, match=r"this is a SQLite database, not JSON: docs/guides/moving\.md"):
        call_command("convmemory_import", path, stdout=io.StringIO())
