"""The database's clock, in UTC. Leases, due marks and retries go by it.

The clocks of web servers and workers differ, but there is only one database. Django's ``Now()`` is in the server's time
zone on MariaDB, and has no fractions of seconds on SQLite. So this module has an expression of its own for the ORM, and
the same as text for the statements that are written by hand.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Func
from django.utils import timezone


def sql(vendor: str) -> str:
    """Return the SQL of the current time. On SQLite it has the form in which Django stores times."""
    if vendor == "postgresql":
        return "STATEMENT_TIMESTAMP()"
    if vendor == "mysql":
        return "UTC_TIMESTAMP(6)"
    return _sqlite("'now'")


def sql_later(vendor: str, name: str) -> str:
    """Return the SQL of the current time plus the parameter ``name``: see :func:`later`. For PostgreSQL and SQLite."""
    if vendor == "postgresql":
        return f"({sql(vendor)} + %({name})s * INTERVAL '1 second')"
    return _sqlite(f"'now', %({name})s")


def later(vendor: str, seconds: float) -> float | str:
    """Return ``seconds`` as a parameter of :func:`sql_later`."""
    return seconds if vendor == "postgresql" else f"{seconds:+.3f} seconds"


def _sqlite(arguments: str) -> str:
    # SQLite compares times as texts, so the form must be that of Python. It leaves out microseconds if they are zero.
    return f"REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', {arguments}) || '000', '.000000', '')"


class Clock(Func):
    """The current time plus ``seconds``, which may be negative and may have fractions."""

    output_field = DateTimeField()

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = float(seconds)

    def as_sql(  # type: ignore[override]
        self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any
    ) -> tuple[str, tuple[Any, ...]]:
        # Not the time at which the statement began: it may have waited for a row longer than a lease lasts.
        now = "CLOCK_TIMESTAMP()" if connection.vendor == "postgresql" else sql(connection.vendor)
        if not self.seconds:
            return now, ()
        if connection.vendor == "postgresql":
            return f"({now} + %s * INTERVAL '1 second')", (self.seconds,)
        if connection.vendor == "mysql":
            return f"({now} + INTERVAL %s MICROSECOND)", (round(self.seconds * 1e6),)
        return _sqlite("'now', %s"), (later("sqlite", self.seconds),)


def aware(moment: dt.datetime, using: str) -> dt.datetime:
    """Return the time of a row in UTC, even if ``USE_TZ`` is off."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=_zone(using))).astimezone(dt.UTC)


def naive(moment: dt.datetime, using: str) -> dt.datetime:
    """Return a time in the form that rows have if ``USE_TZ`` is off."""
    return moment.astimezone(_zone(using)).replace(tzinfo=None)


def storable(moment: dt.datetime, using: str) -> dt.datetime:
    """Return a time with a zone in the form in which the ORM stores it, even if ``USE_TZ`` is off.

    PostgreSQL always takes a zone. Without one, an hour in autumn could be either of two.
    """
    return moment if settings.USE_TZ or connections[using].vendor == "postgresql" else naive(moment, using)


def _zone(using: str) -> dt.tzinfo:
    # Without USE_TZ a row's time is read as it is stored: in UTC, except on PostgreSQL, which knows time zones.
    return timezone.get_default_timezone() if connections[using].vendor == "postgresql" else dt.UTC
