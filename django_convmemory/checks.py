"""System checks: report problems with the settings and the database before a request meets them.

The ids W003, W007, W009 and W011 belonged to checks that are gone. They are never used again: a site may still silence
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core import checks
from django.db import connections, router

from django_convmemory import conf, models
from django_convmemory.fold import version
from django_convmemory.memory import ConversationMemory, memories

_NO_WORKER = (
    'Until this is repaired, nothing is summarized. To do without a worker, set "SCHEDULER": {"BACKEND": '
    '"django_convmemory.sweeping.ThreadScheduler"}, which folds in a thread of the web server, or choose the '
    'NullScheduler and run "manage.py convmemory_sweep --watch".'
)
# Schedulers have these attributes. The warnings say what follows, and what to do.
_NO_WORKERS = (
    (
        "folds_in_request",
        "convmemory.W002",
        "a request that appends waits for the model",
        (
            "Use django_convmemory.tasks.CeleryScheduler, or the NullScheduler with convmemory_sweep --watch. The "
            "DjangoTasksScheduler needs a backend in TASKS that a worker runs."
        ),
    ),
    (
        "folds_in_web_process",
        "convmemory.W013",
        "the processes that answer requests make the summaries too. If one ends, its summary comes minutes later",
        "Use django_convmemory.tasks.CeleryScheduler. If this is enough for your site, silence this check.",
    ),
)
# Before 0.1.0, the migration was rewritten several times. This column of a session came with the last change.
_NEWEST_COLUMN_OF_0_1_0 = "fold_window"
# A summary of so many tokens has room for an identifier, even if each character is a token.
_ROOM_FOR_ANY_COUNTER = 150


def register() -> None:
    """Register the checks of this app."""
    ours = (check_settings, check_scheduler, check_identifiers, check_atomic_requests, check_times, check_routers)
    for check in ours:
        checks.register(check, "convmemory")
    checks.register(check_database, checks.Tags.database)


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.E001 to E009, E012, E013 and E015: ``CONVMEMORY`` or ``CONVMEMORY_CURRENCY`` is invalid."""
    return [checks.Error(problem.message, hint=problem.hint, id=problem.id) for problem in conf.problems()]


def check_scheduler(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.W002 and W013: requests wait for the model, or summaries are made beside requests."""
    return [
        checks.Warning(
            f'CONVMEMORY["{memory.alias}"] uses the {type(memory.scheduler).__name__}: {what}.', hint=hint, id=check
        )
        for memory in ([] if settings.DEBUG else _memories())
        for attribute, check, what, hint in _NO_WORKERS
        if getattr(memory.scheduler, attribute, False)
    ]


def check_identifiers(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.W012: the summaries of an alias have no room for identifiers."""
    return [
        checks.Warning(
            f"memories[{memory.alias!r}] keeps identifiers, but none fits into its summaries: the line with them takes "
            f"up a sixth of max_summary_tokens at most, and max_summary_tokens is {largest}"
            f"{'' if memory.options.max_summary_tokens else ', by default a twelfth of max_context_tokens'}.",
            hint=f"Set max_summary_tokens to {least} or more, or keep_identifiers to False.",
            id="convmemory.W012",
        )
        for memory in _memories()
        if memory.summarizes
        and memory.options.keep_identifiers
        # The counter is asked about small limits only: it may have to read a vocabulary first.
        and (largest := memory.options.summary_tokens) < _ROOM_FOR_ANY_COUNTER
        and (least := version.least_summary_tokens(memory.requests)) > largest
    ]


def check_atomic_requests(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.W001: a view's transaction lasts while the view calls its model."""
    return [
        checks.Warning(
            f'DATABASES["{using}"] sets ATOMIC_REQUESTS: after append() the session stays locked until the view '
            "returns, also while the view calls its model.",
            hint="Put @transaction.non_atomic_requests on the views that call a model.",
            id="convmemory.W001",
        )
        for using in _session_databases()
        if connections[using].settings_dict.get("ATOMIC_REQUESTS")
    ]


def check_times(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.W006: times are shown in another time zone than they are stored in."""
    if settings.USE_TZ and not any(connections[using].settings_dict.get("TIME_ZONE") for using in _session_databases()):
        return []
    return [
        checks.Warning(
            "Times of sessions and messages are stored in UTC, but Django reads them in another time zone.",
            hint="Set USE_TZ = True, and remove TIME_ZONE from DATABASES. Only the displayed times are wrong.",
            id="convmemory.W006",
        )
    ]


def check_routers(**kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.E011 and W010: the database routers separate the sessions from their users, or from other tables."""
    all_checks = (_check_owners, _check_referring_tables, _check_other_databases)
    return [message for using in _session_databases() for check in all_checks for message in check(using)]


def _check_referring_tables(using: str) -> Iterator[checks.CheckMessage]:
    """A table with a foreign key to sessions, such as that of the embeddings, has to be where the sessions are."""
    same = [alias for alias in connections if _identity(alias) == _identity(using)]
    for relation in models.Session._meta.related_objects:
        refers = relation.related_model._meta
        if not any(router.allow_migrate_model(alias, relation.related_model) for alias in same):
            yield checks.Error(
                f'The database routers put sessions in "{using}", but do not allow the table of "{refers.label}" '
                "there, which refers to sessions.",
                hint=f'Let the routers treat the app "{refers.app_label}" as the app "convmemory".',
                id="convmemory.E011",
            )


def _check_owners(using: str) -> Iterator[checks.CheckMessage]:
    user = get_user_model()
    users = router.db_for_write(user)
    if users not in list(connections) or _identity(using) == _identity(users):
        return
    hint = (
        f'To have owners, put the app "convmemory" into "{users}". To keep sessions apart, give them a visitor= '
        "instead of an owner=. The documentation has a page about several databases that shows both."
    )
    if missing := [
        f'"{model._meta.label}" in "{database}"'
        for model, database in ((user, using), (models.Session, users))
        if not router.allow_migrate_model(database, model)
    ]:
        yield checks.Error(
            f'The database routers put sessions in "{using}" and users in "{users}". The table of sessions refers to '
            "users, and deleting a user looks for sessions. So each of these databases needs both tables, but the "
            f"routers do not allow {' and '.join(missing)}.",
            hint=f"{hint} In both cases, let allow_migrate of your routers allow these tables.",
            id="convmemory.E011",
        )
    else:
        yield checks.Warning(
            f'The database routers put sessions in "{using}" and users in "{users}". A session with an owner= is '
            "refused there, because the database has no such user.",
            hint=f"{hint} Then silence this check.",
            id="convmemory.W010",
        )


def _check_other_databases(using: str) -> Iterator[checks.CheckMessage]:
    for other in connections:
        has_sessions = other != using and router.allow_migrate_model(other, models.Session)
        if has_sessions and not router.allow_migrate_model(other, get_user_model()):
            yield checks.Warning(
                f'The database routers allow the tables of the app "convmemory" in "{other}", but not the users to '
                f'whom they refer. So "migrate --database {other}" fails on most databases.',
                hint=f'Let allow_migrate of your routers return False for the app "convmemory" and "{other}".',
                id="convmemory.W010",
            )


def _identity(using: str) -> tuple[Any, ...]:
    """Return which database this is: two aliases may lead to the same one."""
    connection = connections[using]
    return connection.vendor, *(connection.settings_dict.get(name) for name in ("NAME", "HOST", "PORT"))


def check_database(databases: Sequence[str] | None = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """convmemory.E016, W004, W005 and W008: the database that holds the sessions, and the memories' backends.

    These checks run only for the databases that are asked for, because some of them connect to the database.
    """
    asked = [using for using in _session_databases() if using in (databases or ())]
    # The other checks would fail on old tables.
    old_tables = [message for using in asked for message in _check_old_tables(using)]
    others = (_check_sqlite_locking, _check_misconfigured, _check_backends)
    return old_tables or [message for using in asked for check in others for message in check(using)]


def _check_old_tables(using: str) -> Iterator[checks.CheckMessage]:
    """convmemory.E016."""
    table, introspection = models.Session._meta.db_table, connections[using].introspection
    with connections[using].cursor() as cursor:
        if table not in introspection.table_names(cursor):
            return
        columns = {column.name for column in introspection.get_table_description(cursor, table)}
    if _NEWEST_COLUMN_OF_0_1_0 not in columns:
        yield checks.Error(
            f'The tables of conversations in the database "{using}" are from before release 0.1.0: "{table}" has no '
            f'column "{_NEWEST_COLUMN_OF_0_1_0}". No migration leads from them to this release.',
            hint='With the old code, run "manage.py convmemory_export --output FILE", and then "manage.py migrate '
            'convmemory zero", which drops the tables. With this code, run "manage.py migrate", and then "manage.py '
            'convmemory_import FILE".',
            id="convmemory.E016",
        )


def _check_sqlite_locking(using: str) -> Iterator[checks.CheckMessage]:
    """convmemory.W004."""
    connection = connections[using]
    if connection.vendor != "sqlite" or connection.is_in_memory_db():  # type: ignore[attr-defined]
        return
    transaction_mode = connection.settings_dict.get("OPTIONS", {}).get("transaction_mode") or "DEFERRED"
    with connection.cursor() as cursor:
        [journal_mode] = cursor.execute("PRAGMA journal_mode").fetchone()
    if journal_mode != "wal" or transaction_mode.upper() == "DEFERRED":
        yield checks.Warning(
            f'DATABASES["{using}"] is SQLite without a write-ahead log or without immediate transactions: readers and '
            'writers block each other, and append() may fail with "database is locked".',
            hint='Set OPTIONS = {"init_command": "PRAGMA journal_mode=WAL;", "transaction_mode": "IMMEDIATE", '
            '"timeout": 20}.',
            id="convmemory.W004",
        )


def _check_misconfigured(using: str) -> Iterator[checks.CheckMessage]:
    """convmemory.W005."""
    if models.AliasState._meta.db_table not in connections[using].introspection.table_names():
        return
    for memory in _memories():
        if memory.summarizes and memory.misconfigured:
            yield checks.Warning(
                f"memories[{memory.alias!r}] is paused, because its chat model is misconfigured: the key or the "
                "model's name is wrong, or the quota is used up. Until you correct this, no session of this alias is "
                "folded.",
                hint=f"Correct the key or the name, or raise the quota. The last error was: {memory.pause.error} "
                "One session is tried again about every minute. If it succeeds, the pause ends.",
                id="convmemory.W005",
            )


def _check_backends(using: str) -> Iterator[checks.CheckMessage]:
    """convmemory.W008."""
    for memory in _memories():
        for backend, hint in (
            (memory.model, "Until this is repaired, nothing is summarized."),
            (memory.counter, "Until this is repaired, tokens are estimated."),
            (memory.scheduler if memory.summarizes else None, _NO_WORKER),
            (memory.reranker, "Until this is repaired, searches have the order of the words."),
        ):
            if problem := getattr(backend, "problem", None):
                yield checks.Warning(
                    f"memories[{memory.alias!r}]: {problem.rstrip('.')}.", hint=hint, id="convmemory.W008"
                )


def _memories() -> list[ConversationMemory]:
    """Return all memories, or none if :func:`check_settings` reports an error."""
    return [] if conf.problems() else memories.all()


def _session_databases() -> list[str]:
    """Return the alias of the database to which sessions are written, if ``DATABASES`` has it."""
    using = router.db_for_write(models.Session)
    return [using] if using in list(connections) else []
