"""The drivers alone. No library on the same database can be faster."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

from contender import MESSAGES, Contender

SCHEMA = """
CREATE TABLE IF NOT EXISTS raw_session (
    name TEXT PRIMARY KEY, last_position BIGINT NOT NULL, tokens BIGINT NOT NULL, updated_at TEXT NOT NULL,
    summary TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS raw_message (
    session TEXT NOT NULL, position BIGINT NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (session, position));
"""


class Driver(Contender):
    """An append is two statements in a transaction: the session's counters and the message. A load is two as well."""

    # psycopg's default: it prepares a statement that is repeated so often.
    prepare_threshold: int | None = 5

    def __init__(self, place: str) -> None:
        super().__init__(place)
        if self.postgresql:
            import psycopg

            self.connection: Any = psycopg.connect(place, autocommit=True, prepare_threshold=self.prepare_threshold)
            self.connection.execute(SCHEMA)
            self.mark = "%s"
        else:
            self.connection = sqlite3.connect(
                f"{place}/raw.sqlite3", isolation_level=None, timeout=20, check_same_thread=False
            )
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.executescript(SCHEMA)
            self.mark = "?"

    def _run(self, statement: str, values: tuple[Any, ...]) -> Any:
        return self.connection.execute(statement.replace("?", self.mark), values)

    def fill(self, name: str, texts: list[str]) -> None:
        self._run("DELETE FROM raw_message WHERE session = ?", (name,))
        self._run("DELETE FROM raw_session WHERE name = ?", (name,))
        self._run("INSERT INTO raw_session VALUES (?, ?, 0, '', ?)", (name, len(texts), "Before. " * 100))
        rows = [(name, position, "user", text) for position, text in enumerate(texts, 1)]
        insert = "INSERT INTO raw_message (session, position, role, content) VALUES (?, ?, ?, ?)"
        cursor = self.connection.cursor()
        cursor.execute("BEGIN")
        cursor.executemany(insert.replace("?", self.mark), rows)
        cursor.execute("COMMIT")

    def append(self, session: str, role: str, text: str) -> Any:
        update = (
            "UPDATE raw_session SET last_position = last_position + 1, tokens = tokens + ?, updated_at = "
            "CURRENT_TIMESTAMP WHERE name = ? RETURNING last_position"
        )
        insert = "INSERT INTO raw_message (session, position, role, content) VALUES (?, ?, ?, ?)"
        if self.postgresql:
            with self.connection.transaction():
                [position] = self._run(update, (50, session)).fetchone()
                self._run(insert, (session, position, role, text))
            return
        self.connection.execute("BEGIN IMMEDIATE")
        [position] = self._run(update, (50, session)).fetchone()
        self._run(insert, (session, position, role, text))
        self.connection.execute("COMMIT")

    def load(self, session: str) -> Any:
        select = "SELECT summary, last_position FROM raw_session WHERE name = ?"
        [summary, last] = self._run(select, (session,)).fetchone()
        select = "SELECT role, content FROM raw_message WHERE session = ? AND position > ? ORDER BY position"
        messages = self._run(select, (session, last - MESSAGES)).fetchall()
        return [{"role": "system", "content": summary}, *({"role": role, "content": text} for role, text in messages)]


class Unprepared(Driver):
    """Plans each statement each time, as Django does by default because of connection poolers."""

    prepare_threshold = None


class Asynchronous(Driver):
    """In a thread, as asynchronous code calls such a driver."""

    async def append(self, session: str, role: str, text: str) -> None:
        await asyncio.to_thread(super().append, session, role, text)

    async def load(self, session: str) -> Any:
        return await asyncio.to_thread(super().load, session)
