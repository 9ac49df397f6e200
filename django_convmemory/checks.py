"""System checks: what is wrong with the settings, said at start and not in a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import connections, router

from django_convmemory import conf, models
from django_convmemory.memory import ConversationMemory, memories
from django_convmemory.schedulers import InlineScheduler


def register() -> None:
    """Register the checks of this app."""
    checks.register(check_settings, "convmemory")
    checks.register(check_scheduler, "convmemory")
    checks.register(check_atomic_requests, "convmemory")
    checks.register(check_times, "convmemory")
    checks.register(check_database, checks.Tags.database)


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.E001 to E009: ``CONVMEMORY`` cannot be used as it is."""
    return [checks.Error(one.message, hint=one.hint, id=one.id) for one in conf.problems()]


def check_scheduler(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.W002: requests wait for the model."""
    if settings.DEBUG:
        return []
    return [
        checks.Warning(
            f'CONVMEMORY["{alias}"] folds inside append(): a request then waits for the model.',
            hint="Use django_convmemory.tasks.CeleryScheduler, or the NullScheduler and convmemory_sweep --watch.",
            id="convmemory.W002",
        )
        for alias in _aliases()
        if isinstance(conf.read(alias).scheduler, InlineScheduler)
    ]


def check_atomic_requests(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.W001: a view's transaction spans its call of the model."""
    return [
        checks.Warning(
            f'DATABASES["{using}"] has ATOMIC_REQUESTS: after append() the session stays locked until the view '
            "returns, also while it calls its model.",
            hint="Put @transaction.non_atomic_requests on the views that chat.",
            id="convmemory.W001",
        )
        for using in _written()
        if connections[using].settings_dict.get("ATOMIC_REQUESTS")
    ]


def _aliases() -> list[str]:
    return [] if conf.shape_problem() else conf.aliases()


def _memories() -> list[ConversationMemory]:
    return [] if conf.problems() else memories.all()


def _written() -> list[str]:
    """Return the database that sessions are written to, where it can be looked at."""
    using = router.db_for_write(models.Session)
    return [using] if using in list(connections) else []


def check_times(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.W006: times are shown in another zone than they are stored in."""
    if settings.USE_TZ and all(not connections[using].settings_dict.get("TIME_ZONE") for using in _written()):
        return []
    return [
        checks.Warning(
            "Times of sessions and messages are stored in UTC, and Django reads them in another zone.",
            hint="Set USE_TZ = True, and no TIME_ZONE in DATABASES. Only what is shown is shifted.",
            id="convmemory.W006",
        )
    ]


def check_database(databases: Sequence[str] | None = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.W003 to W009, but W006: what only a database can tell, and the backends of the memories."""
    return [found for using in _written() if using in (databases or ()) for found in _check_database(using)]


def _check_isolation(using: str) -> list[checks.CheckMessage]:
    with connections[using].cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE '%isolation'")
        variables = dict(cursor.fetchall())
    level = variables.get("transaction_isolation") or variables.get("tx_isolation")
    if level != "REPEATABLE-READ" or variables.get("innodb_snapshot_isolation") == "ON":
        return []
    return [
        checks.Warning(
            f'DATABASES["{using}"] is at REPEATABLE READ: in a transaction of yours that appends, a load after it may '
            "show some of what others changed meanwhile, and not the rest.",
            hint='Leave "isolation_level" out of OPTIONS: Django\'s default is "read committed".',
            id="convmemory.W009",
        )
    ]


def _check_database(using: str) -> list[checks.CheckMessage]:
    connection = connections[using]
    found: list[checks.CheckMessage] = []
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@character_set_connection, @@character_set_database")
            if any(charset != "utf8mb4" for charset in cursor.fetchone()):
                found.append(
                    checks.Warning(
                        f'DATABASES["{using}"] does not use utf8mb4: emoji and rarer characters cannot be stored.',
                        hint='Set OPTIONS = {"charset": "utf8mb4"} and convert the database.',
                        id="convmemory.W003",
                    )
                )
            cursor.execute("SELECT @@max_allowed_packet")
            packet = cursor.fetchone()[0]
        largest = max((memory.options.max_message_bytes for memory in _memories()), default=0)
        if packet < 2 * largest:
            found.append(
                checks.Warning(
                    f'DATABASES["{using}"] takes {packet} bytes in a statement; a message of max_message_bytes, '
                    f"{largest}, can need twice its size.",
                    hint=f"Set max_allowed_packet of the server to {2 * largest} or more, or lower max_message_bytes.",
                    id="convmemory.W007",
                )
            )
        found += _check_isolation(using)
    elif connection.vendor == "sqlite" and not connection.is_in_memory_db():  # type: ignore[attr-defined]
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode")
            mode = connection.settings_dict.get("OPTIONS", {}).get("transaction_mode") or "DEFERRED"
            if cursor.fetchone()[0] != "wal" or mode.upper() == "DEFERRED":
                found.append(
                    checks.Warning(
                        f'DATABASES["{using}"] is SQLite without a write-ahead log or immediate transactions: readers '
                        "and writers shut each other out, and appends may fail with 'database is locked'.",
                        hint='Set OPTIONS = {"init_command": "PRAGMA journal_mode=WAL;", '
                        '"transaction_mode": "IMMEDIATE", "timeout": 20}.',
                        id="convmemory.W004",
                    )
                )
    if models.Attempt._meta.db_table in connection.introspection.table_names():
        found += [
            checks.Warning(
                f"memories[{memory.alias!r}]: the chat model says that it is misconfigured, and nothing is folded.",
                hint="Check the model's name, the key and the quota. What it said is in the last_error of the sessions "
                "that are due. It is tried again every minute or two.",
                id="convmemory.W005",
            )
            for memory in _memories()
            if memory.summarizes and memory.misconfigured
        ]
    found += [
        checks.Warning(
            f"memories[{memory.alias!r}]: {problem.rstrip('.')}.",
            hint=f"Until this is mended {consequence}.",
            id="convmemory.W008",
        )
        for memory in _memories()
        for backend, consequence in (
            (memory.model, "nothing is summarized"),
            (memory.counter, "tokens are estimated"),
            (memory.scheduler if memory.summarizes else None, "nothing is summarized but by convmemory_sweep"),
        )
        for problem in [getattr(backend, "problem", None)]
        if problem
    ]
    return found
