"""Statements of a conversion: short transactions that wait for locks only briefly, and let others pass."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import Error, connections, transaction

from django_convmemory.store import transactions

T = TypeVar("T")

# PostgreSQL: a lock was not available, a deadlock was resolved.
_GIVE_WAY = frozenset({"55P03", "40P01"})
# In seconds. A step holds locks for which the site waits. So the server ends a step whose process has sent nothing for
# so long, for example because it was stopped.
IDLE_SECONDS = 10
_IDLE_SQLSTATE = "25P03"
# In seconds, between two tries to get a lock.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 1.0


class PatientDatabase:
    """One PostgreSQL database, and how long a step may wait for a lock there, in milliseconds.

    While a step waits for a lock on a table, the site's statements queue behind it. So it gives up soon and tries
    again. ``lock_timeout`` should be shorter than the server's ``deadlock_timeout``, so that in a deadlock the step
    gives up, and not a request.
    """

    def __init__(self, using: str, lock_timeout: int) -> None:
        self.using = using
        self.lock_timeout = lock_timeout

    def quoted(self, *names: str) -> str:
        """Return the names, each quoted, as one qualified name."""
        return ".".join(map(connections[self.using].ops.quote_name, names))

    def rows(self, statement: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement, params)
            return list(cursor.fetchall()) if cursor.description else []

    def value(self, statement: str, params: Any = None) -> Any:
        """Execute a statement, and return the first column of its first row, or None."""
        rows = self.rows(statement, params)
        return rows[0][0] if rows else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction with the limits of a conversion. They end with the transaction."""
        with transaction.atomic(using=self.using):
            # Let the server write to the disk soon what the transaction has changed. By default, the operating system
            # holds the changes back. In a copy of ten million rows, gigabytes accumulated, and appends waited for the
            # disk for more than half a second.
            self.rows("SELECT set_config(name, '1MB', true) FROM pg_settings WHERE name = 'backend_flush_after'")
            self.take_time()
            self.rows(f"SET LOCAL lock_timeout = {self.lock_timeout}")
            self.rows(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
            yield

    def take_time(self) -> None:
        """Lift the site's limits of time until the transaction ends. Some steps read the whole table."""
        # The last one is known to PostgreSQL 17 and newer.
        self.rows(
            "SELECT set_config(name, '0', true) FROM pg_settings "
            "WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout')"
        )

    def give_way(self, work: Callable[[], T], waiting: Callable[[], None]) -> T:
        """Run ``work`` in a transaction until it gets its locks. Call ``waiting`` after each failure.

        If the server ended the transaction because this process was stopped, it runs again, too.
        """
        while True:
            try:
                with self.transaction():
                    return work()
            except Error as error:
                if transactions.sqlstate(error) == _IDLE_SQLSTATE:
                    connections[self.using].close()
                    continue
                if transactions.sqlstate(error) not in _GIVE_WAY:
                    raise
            waiting()
            # Random, so that it does not meet the same statement again and again.
            time.sleep(random.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))  # noqa: S311
