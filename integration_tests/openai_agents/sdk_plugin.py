"""A plugin of pytest: our session where the tests of the SDK make theirs."""

from __future__ import annotations

import hashlib
import inspect
import re
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import agents
import agents.extensions.memory
import pytest
from agents import SQLiteSession
from agents.extensions.memory import async_sqlite_session

from integration_tests import their_tests

their_tests.set_up_django()

from django_convmemory.contrib.openai_agents import ConvMemorySession  # noqa: E402  after the settings


def private_names(*sessions: Any) -> set[str]:
    return {name for session in sessions for name in dir(session) if name.startswith("_") and not name.endswith("__")}


PRIVATE = private_names(SQLiteSession("any"), async_sqlite_session.AsyncSQLiteSession("any"))


class Ours(ConvMemorySession):
    """Takes the arguments of ``SQLiteSession``. Each file, and each database in memory, has sessions of its own."""

    # The private names of SQLiteSession that a test has asked for.
    asked: ClassVar[set[str]] = set()

    def __init__(
        self, session_id: str, db_path: Any = ":memory:", *tables: str, session_settings: Any = None, **more: str
    ) -> None:
        place = uuid.uuid4().hex if str(db_path) == ":memory:" else str(db_path)
        key = hashlib.sha256(repr((place, session_id, tables, more)).encode()).hexdigest()
        super().__init__(key, session_settings=session_settings)
        self.session_id = session_id
        their_tests.counts["made"] += 1

    def __getattr__(self, name: str) -> Any:
        if name in PRIVATE:
            Ours.asked.add(name)
        raise AttributeError(name)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class AsyncOurs(Ours):
    async def close(self) -> None:  # type: ignore[override]
        """Do nothing: there is nothing to close."""


for module in (agents, agents.memory):
    vars(module)["SQLiteSession"] = Ours
for module in (agents.extensions.memory, async_sqlite_session):
    vars(module)["AsyncSQLiteSession"] = AsyncOurs

# What the source of a test says that is about SQLite and not about a session, and why the test is skipped.
SKIPPED = {
    r"\bsqlite3\b|aiosqlite|agent_messages|agent_sessions|_write_lock": "it looks into the database",
    r"super\(\)\._init_db|_quarantined_|session\._(get_)?connection\b": "it looks into SQLiteSession",
    r"is closed|rejects_empty|close_before": "a closed SQLiteSession refuses work",
    r"InvalidToken|authentication_rollback": "EncryptedSession authenticates inside a transaction of SQLiteSession",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        source = inspect.getsource(item.function)  # type: ignore[attr-defined]
        for pattern, reason in SKIPPED.items():
            if re.search(pattern, source):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    Ours.asked.clear()
    try:
        yield
    except (Exception, pytest.fail.Exception):
        if Ours.asked:
            pytest.skip(f"it needs what is private to SQLiteSession: {', '.join(sorted(Ours.asked))}")
        raise
