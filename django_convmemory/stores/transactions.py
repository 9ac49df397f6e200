"""Transactions that the store begins, and those of its caller."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet

T = TypeVar("T")
Rows = TypeVar("Rows", bound="QuerySet[Any]")

TRIES = 10
# In seconds: half of the longest pause before the second try, and the longest pause of all.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2
# PostgreSQL: serialization failure, deadlock. MariaDB: deadlock, record changed since it was read.
_SQLSTATES = frozenset({"40001", "40P01"})
_ERRNOS = frozenset({1213, 1020})


def run(using: str, work: Callable[[], T], *, savepoint: bool = False, atomic: bool = True) -> T:
    """Run ``work`` in a transaction on ``using``, and return what it returns.

    If no transaction is open, ``work`` runs in a new one. If the database aborts that to resolve a conflict with
    another transaction, ``work`` runs again, up to ``TRIES`` times. ``atomic=False`` begins no transaction. It is for
    reading, and for a single statement, which is a transaction by itself.

    If the caller has opened a transaction, ``work`` joins it, with ``savepoint`` under a savepoint. Errors are raised:
    only the caller can run its transaction again.
    """
    connection = connections[using]
    if connection.in_atomic_block or not connection.get_autocommit():
        with transaction.atomic(using=using) if savepoint else nullcontext():
            return work()
    for number in range(1, TRIES + 1):
        try:
            with transaction.atomic(using=using) if atomic else nullcontext():
                return work()
        except OperationalError as error:
            if number == TRIES or not given_up(error):
                raise
        time.sleep(random.uniform(0, min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE)))  # noqa: S311
    raise AssertionError("unreachable")


def latest(rows: Rows) -> Rows:
    """Return a query that reads ``rows`` as they are now.

    Inside a transaction MariaDB would read them as they were at its first read. Reading with a lock prevents that.
    """
    connection = connections[rows.db]
    return rows.select_for_update() if connection.vendor == "mysql" and connection.in_atomic_block else rows


def given_up(error: OperationalError) -> bool:
    """Whether the database aborted a transaction to resolve a conflict with another one. Then it can be tried again."""
    cause = error.__cause__
    number = cause.args[0] if cause is not None and cause.args else None
    # psycopg has a sqlstate, psycopg2 has a pgcode, and mysqlclient has a number.
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state in _SQLSTATES or number in _ERRNOS
