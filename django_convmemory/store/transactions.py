"""Transactions that the store begins, and those of its caller."""

from __future__ import annotations

import collections
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

from django.db import Error, IntegrityError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from django_convmemory import exceptions

T = TypeVar("T")
Rows = TypeVar("Rows", bound="QuerySet[Any]")

TRIES = 10
# How often work is run again because changes by other processes violate a constraint, and the longest pause before.
SETTLING_TRIES = 20
LONGEST_PAUSE = 0.05
# How often a transaction is begun if the connection is lost each time.
LOST_TRIES = 3
# A transaction holds the lock of a session's row, and an append to that session waits. So the database ends a
# transaction whose process has sent no statement for this many seconds, for example because it was stopped.
IDLE_SECONDS = 2
# The same for maintenance, which may compute for a while between two statements.
LONG_IDLE_SECONDS = 60
# In seconds: half of the longest pause before the second try, and the longest pause of all.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2
# In seconds. SQLite does not sleep longer at a time.
_LONGEST_TURN = 0.1
# PostgreSQL: serialization failure, deadlock. MariaDB: deadlock, record changed since it was read.
_SQLSTATES = frozenset({"40001", "40P01"})
_ERRNOS = frozenset({1213, 1020})
# PostgreSQL ended a transaction that was idle. MariaDB only closes the connection: gone away, lost during a statement.
_IDLE_SQLSTATE = "25P03"
_LOST_ERRNOS = frozenset({2006, 2013})


class _ConnectionLost(exceptions.ConnectionLost, OperationalError):
    pass


class _OutcomeUnknown(exceptions.OutcomeUnknown, OperationalError):
    pass


class StatementRefused(OperationalError):
    """A prepared statement is missing in the server's session. That ended the transaction, which can be run again."""


def run(
    using: str | BaseDatabaseWrapper,
    work: Callable[[], T],
    *,
    savepoint: bool = False,
    atomic: bool = True,
    idle: int = IDLE_SECONDS,
    happened: Callable[[], bool] | None = None,
) -> T:
    """Run ``work`` in a transaction on ``using``, and return what it returns. ``using`` may be the connection itself.

    If no transaction is open, ``work`` runs in a new one. If the database aborts that to resolve a conflict with
    another transaction, or because a prepared statement is missing, ``work`` runs again, up to ``TRIES`` times. The
    database also ends it if this process sends no statement for ``idle`` seconds. Then, and if the connection is lost
    before the COMMIT, ``work`` runs again on a new connection, up to ``LOST_TRIES`` times. So ``work`` changes nothing
    but the database. ``atomic=False`` begins no transaction. It is for reading, and for a single statement, which is a
    transaction by itself.

    If the caller has opened a transaction, ``work`` joins it, with ``savepoint`` under a savepoint. Errors are raised:
    only the caller can run its transaction again. Such a transaction may be idle as long as the caller likes.

    If the connection is lost during the COMMIT, ``happened`` looks whether the changes were stored. If not, or if it
    does no harm to make them twice, it returns False, and ``work`` runs again. Without a transaction, a connection that
    is lost at any moment counts as lost during the COMMIT.

    Raises :class:`.exceptions.ConnectionLost`, and without ``happened`` :class:`.exceptions.OutcomeUnknown`.
    """
    connection = connections[using] if isinstance(using, str) else using
    alias = connection.alias
    if is_open(connection):
        with transaction.atomic(using=alias) if savepoint else nullcontext():
            return work()
    if connection.vendor == "sqlite":
        return _run_in_turn(alias, work) if atomic else work()
    times_lost = 0
    for number in range(1, TRIES + 1):
        attempt: _Attempt[T] = _Attempt(connection, idle, committing=not atomic)
        try:
            return attempt.run(work) if atomic else work()
        except Error as error:
            if attempt.lost(error):
                times_lost += 1
                if attempt.was_stored(error, happened):
                    return attempt.result
                if times_lost == LOST_TRIES:
                    raise _ConnectionLost(
                        f"The connection to the database {alias!r} was lost in {LOST_TRIES} transactions in a row. "
                        f"The database closes it if a process sends nothing for {idle} s in a transaction. Find out "
                        f"what stops this process, or whether the database restarts. The last error: {error}".strip()
                    ) from error
                connection.ensure_connection()
                continue  # Without a pause: the connection is new.
            if attempt.committed or number == TRIES or not given_up(error):
                raise
        time.sleep(random.uniform(0, min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE)))  # noqa: S311
    raise AssertionError("unreachable")


# By alias. The process that forks may have held one.
_turns: collections.defaultdict[str, threading.RLock] = collections.defaultdict(threading.RLock)
if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_turns.clear)


def _run_in_turn(alias: str, work: Callable[[], T]) -> T:
    """Run ``work`` in a transaction of SQLite, which aborts none, and whose connections are not lost.

    SQLite has one writer at a time. Another one sleeps for 1 to 100 ms before it tries again, and so do many, while
    nobody writes. So the threads of this process take turns. A thread that has waited for ``_LONGEST_TURN`` goes on:
    the one before it may wait for another process, or it runs what the site does after a commit.
    """
    turn = _turns[alias]
    is_ours = turn.acquire(timeout=_LONGEST_TURN)
    try:
        with transaction.atomic(using=alias):
            return work()
    finally:
        if is_ours:
            turn.release()


def update(rows: QuerySet[Any], **changes: Any) -> int:
    """Change ``rows`` in one statement, which is a transaction by itself. Return their number."""
    changed: int = run(rows.db, lambda: rows.update(**changes), savepoint=True, atomic=False)
    return changed


def settled(work: Callable[[], T], what: object) -> T:
    """Run ``work`` again as long as changes by other processes violate a constraint, for example a unique name.

    Raises :class:`~django_convmemory.exceptions.SessionContended` in the end, or the IntegrityError if no value was
    taken: a foreign key of a table that Django does not know, for example, fails each time.
    """
    for number in range(1, SETTLING_TRIES + 1):
        try:
            return work()
        except IntegrityError as error:
            if number == SETTLING_TRIES and not is_taken(error):
                raise
            time.sleep(random.uniform(0, LONGEST_PAUSE))  # noqa: S311
    raise exceptions.SessionContended(f"Other processes change {what} all the time. Try again later.")


def close_old_connections() -> None:
    """Close the connections that are broken or too old, as Django does around a request.

    Unlike Django's function, it leaves a connection in a transaction open: a test may hold one around the caller.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether the caller has opened a transaction."""
    if connection.connection is None:
        connection.ensure_connection()  # It sets autocommit.
    return connection.in_atomic_block or not connection.autocommit


class _Attempt(Generic[T]):
    """One try of a transaction that the app begins, and how far it came."""

    def __init__(self, connection: BaseDatabaseWrapper, idle: int, *, committing: bool) -> None:
        self.connection = connection
        self.idle = idle
        # A statement outside of a transaction may be committed at any moment.
        self.committing = committing
        self.committed = False
        self.result: T
        self._driver: Any = connection.connection
        self._restores: dict[str, int] = {}

    def run(self, work: Callable[[], T]) -> T:
        connection = self.connection
        try:
            with transaction.atomic(using=connection.alias):
                # The first hook, so that the limit does not hold for what the other hooks begin.
                transaction.on_commit(self._after_commit, using=connection.alias)
                self._limit_idle()
                began = time.monotonic()
                self.result = work()
                if time.monotonic() - began > self.idle / 2:
                    # If the database has ended the transaction, this statement fails, and not the COMMIT. A failed
                    # COMMIT would not tell whether it happened.
                    _execute(connection, "SELECT 1")
                self.committing = True
            return self.result
        finally:
            self._restore()

    def lost(self, error: Error) -> bool:
        """Whether the connection was lost in this transaction, which has not been committed."""
        is_closed = bool(getattr(self._driver, "closed", False))
        is_lost = is_closed or sqlstate(error) == _IDLE_SQLSTATE or _errno(error) in _LOST_ERRNOS
        return is_lost and not self.committed

    def was_stored(self, error: Error, happened: Callable[[], bool] | None) -> bool:
        """Whether the work was stored although its connection was lost. Raises OutcomeUnknown if nobody can tell."""
        if self.connection.connection is self._driver:
            self.connection.close()
        if not self.committing or sqlstate(error) == _IDLE_SQLSTATE:
            return False
        if happened is None:
            raise _OutcomeUnknown(
                f"The connection to the database {self.connection.alias!r} was lost while a change was committed. It "
                "may have been stored or not: look at the session before you repeat it."
            ) from error
        return happened()

    def _after_commit(self) -> None:
        self.committed = True
        self._restore()

    def _limit_idle(self) -> None:
        connection = self.connection
        if connection.vendor == "postgresql":
            # Both end with the transaction, so that they are safe behind PgBouncer too. The second one is for a process
            # that is stopped while the database sends it a long message.
            _execute(
                connection,
                f"SELECT set_config('idle_in_transaction_session_timeout', '{self.idle}s', true), "
                f"set_config('tcp_user_timeout', '{self.idle}s', true)",
            )
        elif connection.vendor == "mysql" and connection.mysql_is_mariadb:  # type: ignore[attr-defined]
            own = _idle_limits(connection)
            limits = {name: min(seconds or self.idle, self.idle) for name, seconds in own.items()}
            if limits != own:
                self._restores = own
                _set_session(connection, limits)

    def _restore(self) -> None:
        """Give MariaDB's session its own limits again. A lost connection has none to restore."""
        own, self._restores = self._restores, {}
        if not own or self.connection.connection is not self._driver:
            return
        try:
            _set_session(self.connection, own)
        except Error:
            # What the transaction returned or raised matters more. A new connection has the right limits.
            self.connection.close()


# MariaDB's limits of a session, by its connection.
_own_limits: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
# If the second or the third is set, it takes the place of the first in transactions that have written, or have not. The
# last one is for a process that is stopped while the database sends it a long message.
_IDLE_LIMITS = (
    "idle_transaction_timeout",
    "idle_write_transaction_timeout",
    "idle_readonly_transaction_timeout",
    "net_write_timeout",
)


def _idle_limits(connection: BaseDatabaseWrapper) -> dict[str, int]:
    """Return MariaDB's limits of this session as the site has set them."""
    driver = connection.connection
    if driver not in _own_limits:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(f'@@{name}' for name in _IDLE_LIMITS)}")
            _own_limits[driver] = dict(zip(_IDLE_LIMITS, cursor.fetchone(), strict=True))
    return _own_limits[driver]


def _set_session(connection: BaseDatabaseWrapper, limits: dict[str, int]) -> None:
    _execute(connection, f"SET SESSION {', '.join(f'{name} = {seconds}' for name, seconds in limits.items())}")


def _execute(connection: BaseDatabaseWrapper, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def latest(rows: Rows) -> Rows:
    """Return a query that reads ``rows`` as they are now.

    Inside a transaction MariaDB would read them as they were at its first read. Reading with a lock prevents that.
    """
    return rows.select_for_update() if reads_earlier(rows.db) else rows


def reads_earlier(using: str) -> bool:
    """Whether a query would read rows as they were before, because the caller's transaction has read something."""
    connection = connections[using]
    return connection.vendor == "mysql" and connection.in_atomic_block


def given_up(error: Error) -> bool:
    """Whether the transaction can be tried again.

    The database has aborted it to resolve a conflict with another one, or because a prepared statement was missing.
    """
    is_conflict = sqlstate(error) in _SQLSTATES or _errno(error) in _ERRNOS
    return isinstance(error, StatementRefused) or (isinstance(error, OperationalError) and is_conflict)


def is_taken(error: Exception) -> bool:
    """Whether a unique value is taken, perhaps by another process a moment ago."""
    is_unique = "UNIQUE constraint failed" in str(error)
    return isinstance(error, IntegrityError) and (is_unique or sqlstate(error) == "23505" or _errno(error) == 1062)


def sqlstate(error: Error) -> str | None:
    """Return PostgreSQL's code of an error, or None."""
    # psycopg has a sqlstate, psycopg2 has a pgcode.
    cause = error.__cause__
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def _errno(error: Error) -> Any:
    """Return the number of an error of mysqlclient."""
    cause = error.__cause__
    return cause.args[0] if cause is not None and cause.args else None
