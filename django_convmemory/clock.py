"""The database's clock, in UTC: what leases, due marks and retries are measured by.

Web servers and workers disagree about the time; the database agrees with itself. Django's ``Now()`` is in the server's
time zone on MariaDB and without fractions on SQLite, hence one expression of our own, in two forms: for the ORM, and as
text for the statements that are written by hand.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, Func
from django.utils import timezone


def sql(vendor: str) -> str:
    """Return the SQL of the present moment; on SQLite in the form in which Django stores times."""
    if vendor == "postgresql":
        return "STATEMENT_TIMESTAMP()"
    if vendor == "mysql":
        return "UTC_TIMESTAMP(6)"
    return _sqlite("'now'")


def _sqlite(arguments: str) -> str:
    # As Python writes a time, with microseconds or, where there are none, without: SQLite compares texts.
    return f"REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', {arguments}) || '000', '.000000', '')"


class Clock(Func):
    """The present moment plus ``seconds``, which may be negative and have fractions."""

    output_field = DateTimeField()

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = float(seconds)

    def as_sql(  # type: ignore[override]
        self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any
    ) -> tuple[str, tuple[Any, ...]]:
        if connection.vendor == "postgresql":
            # Not the statement's beginning: it may have waited for a row longer than a lease lasts.
            return "(CLOCK_TIMESTAMP() + %s * INTERVAL '1 second')", (self.seconds,)
        now = sql(connection.vendor)
        if connection.vendor == "mysql":
            return f"({now} + INTERVAL %s MICROSECOND)", (round(self.seconds * 1e6),)
        return _sqlite("'now', %s"), (f"{self.seconds:+.3f} seconds",)


def aware(moment: dt.datetime, using: str) -> dt.datetime:
    """Return a row's time in UTC, also where the site has no ``USE_TZ``."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=_zone(using))).astimezone(dt.UTC)


def naive(moment: dt.datetime, using: str) -> dt.datetime:
    """Return a time as the rows of a site without ``USE_TZ`` have it."""
    return moment.astimezone(_zone(using)).replace(tzinfo=None)


def _zone(using: str) -> dt.tzinfo:
    # Without USE_TZ a row's time is read as it is stored: in UTC, but where the database knows zones.
    return timezone.get_default_timezone() if connections[using].vendor == "postgresql" else dt.UTC
