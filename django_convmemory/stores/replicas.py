"""Reads that a replica may answer.

The database routers name the replica: it is the database to which they send reads of ``Session``. A replica lags. So
the app reads the revision of the session from the database that is written. It reads the replica only if the replica
has the session at that revision. A search in many sessions compares epochs and positions instead: see
``searching.searchable_among``.

# Note [A replica at the same revision]

Every change of a session raises its revision in the same transaction, and the row stays locked until the COMMIT. So two
databases that have a session at the same revision have the same messages. A replica may replay the next change between
this check and the read. Then the answer is the one that a read a moment later would give.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import Error, connections, router

from django_convmemory import models
from django_convmemory.core.values import SessionName

T = TypeVar("T")

logger = logging.getLogger(__name__)

# In seconds: how long this process leaves a failed replica alone, so that not every request waits for its timeout.
PAUSE = 10.0

# The end of the pause of each replica, by the monotonic clock.
_paused_until: dict[str, float] = {}


def read_session(using: str, name: SessionName, work: Callable[[str], T]) -> T:
    """Return what ``work`` reads of the session ``name`` in the database that it is given.

    That is the replica of ``using`` if the replica has the session as it is in ``using``, and otherwise ``using``.
    """
    if _replica_of(using) is not None:
        sessions = models.Session.objects.using(using).named(name)
        for session_id, revision in sessions.values_list("pk", "revision"):
            return read_row(using, session_id, revision, work)
    return work(using)


def read_row(using: str, session_id: int, revision: int, work: Callable[[str], T]) -> T:
    """Return what :func:`read_session` returns, for a session that is at this revision in ``using``."""

    def read(replica: str) -> tuple[T] | None:
        sessions = models.Session.objects.using(replica).filter(pk=session_id, revision=revision)
        return (work(replica),) if sessions.exists() else None

    return (_from_replica(using, read) or (work(using),))[0]


def read_unchecked(using: str, work: Callable[[str], T]) -> T:
    """Return what ``work`` reads in the replica of ``using``, which may lag. The caller checks whether it does.

    Without a replica that answers, ``work`` reads ``using``.
    """
    return (_from_replica(using, lambda replica: (work(replica),)) or (work(using),))[0]


def _from_replica(using: str, read: Callable[[str], tuple[T] | None]) -> tuple[T] | None:
    """Return what ``read`` returns, or None if there is no replica, or it fails."""
    replica = _replica_of(using)
    if replica is None:
        return None
    try:
        return read(replica)
    except Error as error:
        # It may be down, cancel a query that conflicts with its recovery, or lack a column of the last migration.
        _paused_until[replica] = time.monotonic() + PAUSE
        logger.warning("The replica %r failed, so the database %r is read for %d s: %s", replica, using, PAUSE, error)
        connection = connections[replica]
        # Unless it has broken, it stays: the site may be reading rows from it.
        if connection.connection is not None and not (connection.in_atomic_block or connection.is_usable()):
            connection.close()
        return None


def _replica_of(using: str) -> str | None:
    """Return the replica of ``using``. None: there is none, it has failed lately, or others write another database."""
    if using != router.db_for_write(models.Session):
        return None
    replica = router.db_for_read(models.Session)
    if replica == using or time.monotonic() < _paused_until.get(replica, 0.0):
        return None
    return replica
