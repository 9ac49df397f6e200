"""Whether a process can serve, and whether the workers keep up, with the reasons if not.

These are two questions. A load balancer asks the first one: if a model is down, the web processes still serve. Alerts
and cron jobs ask the second one.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import NamedTuple

from django.db import Error, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_convmemory.monitoring import conf, figures
from django_convmemory.monitoring.figures import Backlog
from django_convmemory.store.orm import ORMStore


class Reason(NamedTuple):
    """Why something is not ready. The ``code`` is for programs, and tells a stranger nothing about the site's data."""

    code: str
    message: str
    alias: str = ""


def of_process(using: str | None = None) -> list[Reason]:
    """Return why this process cannot serve: the database cannot be read, or lacks a migration."""
    using = using or ORMStore().using
    try:
        missing = _missing_migrations(using)
    except Error as error:
        # Its text may have the address of the database, and its user.
        return [Reason("database", f"The database {using!r} cannot be read ({type(error).__name__}).")]
    if missing:
        return [Reason("migrations", f"The database {using!r} lacks {', '.join(missing)}. Run manage.py migrate.")]
    return []


def _missing_migrations(using: str) -> list[str]:
    recorder = MigrationRecorder(connections[using])
    applied = set(recorder.migration_qs.filter(app="convmemory").values_list("name", flat=True))
    module, _ = MigrationLoader.migrations_module("convmemory")
    if module is None:  # The site has switched them off.
        return []
    path = importlib.import_module(module).__path__
    return sorted({info.name for info in pkgutil.iter_modules(path) if info.name[0] not in "_~"} - applied)


def of_work(backlogs: dict[str, Backlog] | None = None) -> list[Reason]:
    """Return why the work does not get done: sessions are due for too long, or a model does not answer."""
    limit = conf.options().max_due_seconds
    reasons = []
    for alias, backlog in (figures.backlogs() if backlogs is None else backlogs).items():
        if backlog.paused in figures.LASTING:
            reasons.append(Reason("paused", f"memories[{alias!r}] is paused: {backlog.paused}.", alias))
        # A session that always fails would keep the rest from ever being ready. The metrics count it as stalled.
        if backlog.oldest_moving_seconds > limit:
            waits = f"A session of memories[{alias!r}] has been due for {backlog.oldest_moving_seconds:.0f} s"
            reasons.append(Reason("overdue", f"{waits}, which is more than {limit} s. Check the workers.", alias))
    return reasons
