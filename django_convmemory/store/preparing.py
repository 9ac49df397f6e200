"""Keeps the statements of append and load prepared in a session of PostgreSQL.

PostgreSQL takes longer to plan such a statement than to execute it, and Django does not let the driver prepare it. So
this module sends ``PREPARE`` once, and ``EXECUTE`` from then on.
"""

# Note [When a statement is prepared]
#
# A prepared statement belongs to a session of the server. A pooler such as PgBouncer may execute each transaction in
# another session. There the statement is missing, or another client has prepared one with the same name. So:
#
# - The app prepares a statement only if no pooler is in between. When a client connects, the server tells it the
#   process id of its session, so that the client can cancel a statement. A pooler makes up that id, because it has many
#   sessions. So the app compares the id with pg_backend_pid().
# - The name is a hash of the text. So the name cannot stand for another statement, whatever is in between.
# - If a statement is missing all the same, the site or a proxy has removed it, and nothing was executed. Outside of a
#   transaction the app sends the text instead. PostgreSQL has ended a transaction that was open: the app runs its own
#   again, and raises the error in one of the caller. In each case, this process does not prepare in that database any
#   more.
# - A site that sets prepare_threshold, or how cursors bind values, has decided for itself.

from __future__ import annotations

import functools
import hashlib
import logging
import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorDebugWrapper

from django_convmemory.store import transactions

logger = logging.getLogger(__name__)

# A connection sends the text this many times before it prepares a statement, as psycopg does. A connection that serves
# one request would not get back what preparing costs.
SENT_FIRST = 5
# A connection prepares at most this many statements. Each takes some tens of kilobytes of the server's memory.
MOST = 32
# A connection counts how often it has sent a statement, for this many statements, and then begins to count anew. There
# are thousands of texts of appends, of some kilobytes each.
COUNTED = 256
# After this many executions, a session plans its statements anew. PostgreSQL keeps a plan until the table is analyzed.
# A plan from when the table was small reads the whole table.
EXECUTED_PER_PLAN = 1000
# With one of these in OPTIONS, the site has decided what is prepared.
_DECIDED = frozenset({"prepare_threshold", "server_side_binding", "cursor_factory"})
# Errors before anything is executed: the statement is missing, it exists already, its result has other types now.
_REFUSED = frozenset({"26000", "42P05", "0A000"})

_Execute = Callable[[str, Any, bool, dict[str, Any]], Any]


@functools.lru_cache(maxsize=1024)
def _statement(text: str) -> tuple[str, str]:
    """Return what prepares a statement, and what executes it with the same parameters."""
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        placeholder = match[0]
        # Each %s is a parameter by itself. A name stands for the same parameter each time.
        key = f"{placeholder} {len(numbers)}" if placeholder == "%s" else placeholder
        return f"${numbers.setdefault(key, len(numbers) + 1)}"

    prepared = re.sub(r"%\(\w+\)s|%s", numbered, text).replace("%%", "%")
    name = f"convmemory_{hashlib.sha256(prepared.encode()).hexdigest()[:32]}"
    placeholders = ", ".join(key.partition(" ")[0] for key in numbers)
    return f"PREPARE {name} AS {prepared}", f"EXECUTE {name} ({placeholders})"


class _Session:
    """A session of the server, and the statements that it keeps prepared."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._backend_pid = connection.connection.info.backend_pid
        self._client_cursor: type = connection.Database.ClientCursor  # type: ignore[attr-defined]
        self._may_prepare: bool | None = None  # None: nobody has looked yet whether a pooler is in between.
        self._sent: dict[str, int] = {}
        # By the text of a statement, what executes it.
        self._prepared: dict[str, str] = {}
        self._executed = 0

    def wants(self, text: str, cursor: Any) -> bool:
        """Whether the statement is prepared, or should be. The driver's ``cursor`` is about to execute it."""
        # EXECUTE takes its values in the text, and a cursor that binds on the server sends them beside it.
        if not isinstance(cursor, self._client_cursor):
            return False
        if text in self._prepared:
            return True
        if self._may_prepare is False or len(self._prepared) == MOST:
            return False
        if len(self._sent) == COUNTED and text not in self._sent:
            self._sent.clear()
        self._sent[text] = self._sent.get(text, 0) + 1
        return self._sent[text] > SENT_FIRST

    def execute(self, text: str, execute: _Execute, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        """Execute ``sql``: as a prepared statement if it is ``text``. It is the innermost of Django's wrappers."""
        # The site's own wrappers come before this one, so they see the text, and may have changed it.
        if sql != text:
            return execute(sql, params, many, context)
        connection = context["connection"]
        try:
            if text not in self._prepared:
                if not self._is_direct(execute, context):
                    return execute(sql, params, many, context)
                preparing, executing = _statement(text)
                # If an interrupt ends this, nobody knows whether the server has prepared the statement. Another PREPARE
                # could end a transaction of the caller. So this session would prepare nothing more.
                self._may_prepare = False
                execute(preparing, None, many, context)
                self._may_prepare = True
                self._prepared[text] = executing
            self._executed += 1
            if self._executed % EXECUTED_PER_PLAN == 0:
                execute("DISCARD PLANS", None, many, context)
            return execute(self._prepared[text], params, many, context)
        except Error as error:
            if transactions.sqlstate(error) not in _REFUSED:
                raise
            _given_up.add(connection.alias)
            logger.warning(
                "A prepared statement of the database %r was refused, so this process sends statements as text now: %s",
                connection.alias,
                error,
            )
            if transactions.is_open(connection):
                raise transactions.StatementRefused(*error.args) from error.__cause__
            return execute(sql, params, many, context)

    def _is_direct(self, execute: _Execute, context: dict[str, Any]) -> bool:
        if self._may_prepare is None:
            execute("SELECT pg_backend_pid()", None, False, context)
            self._may_prepare = context["cursor"].fetchone()[0] == self._backend_pid
        return self._may_prepare


# By the driver's connection.
_sessions: weakref.WeakKeyDictionary[Any, _Session] = weakref.WeakKeyDictionary()
# The databases in which this process prepares nothing any more.
_given_up: set[str] = set()


def execute(cursor: Any, text: str, params: Mapping[str, Any]) -> None:
    """Execute a statement with Django's ``cursor``. On PostgreSQL, prepare it if that is safe and the text repeats."""
    connection = cursor.db
    session = None
    if (
        connection.vendor == "postgresql"
        and connection.alias not in _given_up
        # Django's log would show EXECUTE with the values, and not the text.
        and not isinstance(cursor, CursorDebugWrapper)
    ):
        session = _session(connection)
    if session is None or not session.wants(text, cursor.cursor):
        cursor.execute(text, params)
        return
    # Without execute_wrapper(), whose context manager takes a twentieth of a load.
    connection.execute_wrappers.append(functools.partial(session.execute, text))
    try:
        cursor.execute(text, params)
    finally:
        connection.execute_wrappers.pop()


def _session(connection: BaseDatabaseWrapper) -> _Session | None:
    driver = connection.connection
    session = _sessions.get(driver)
    if session is None and _may_be_direct(connection):
        session = _sessions[driver] = _Session(connection)
    return session


def _may_be_direct(connection: BaseDatabaseWrapper) -> bool:
    """Whether this is psycopg's own connection, and the site has left it to the app what is prepared."""
    psycopg = connection.Database  # type: ignore[attr-defined]
    options = connection.settings_dict.get("OPTIONS", {})
    return (
        psycopg.__name__ == "psycopg"
        and isinstance(connection.connection, psycopg.Connection)
        and not _DECIDED & options.keys()
        # A pool may reset a session with DISCARD ALL, which removes prepared statements.
        and "reset" not in (pool if isinstance(pool := options.get("pool"), dict) else ())
    )
