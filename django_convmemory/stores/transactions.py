"""Transactions of our own, and other people's."""

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
# Seconds: the longest pause before the second try, and before any.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2
# PostgreSQL: serialization failure, deadlock. MariaDB: deadlock, record changed since it was read.
_SQLSTATES = frozenset({"40001", "40P01"})
_ERRNOS = frozenset({1213, 1020})


def run(using: str, work: Callable[[], T], *, savepoint: bool = False, atomic: bool = True) -> T:
    """Run ``work`` in a transaction on ``using``, and return what it returns.

    Where none is open, one of our own is begun, committed, and tried again when the database gave it up to resolve a
    conflict with another. ``atomic=False`` begins none: for one statement, which is a transaction by itself, or for
    reading. Inside the caller's, ``work`` joins it (under a savepoint of its own where asked), and an error is the
    caller's: only they can run all of theirs again.
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
    """Have ``rows`` read as they are now, not as they were when the caller's transaction began to look (MariaDB)."""
    connection = connections[rows.db]
    return rows.select_for_update() if connection.vendor == "mysql" and connection.in_atomic_block else rows


def given_up(error: OperationalError) -> bool:
    """Whether the database gave a transaction up to resolve a conflict with another, so that it can be tried again."""
    cause = error.__cause__
    number = cause.args[0] if cause is not None and cause.args else None
    # psycopg has a sqlstate, psycopg2 a pgcode, mysqlclient a number.
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state in _SQLSTATES or number in _ERRNOS
