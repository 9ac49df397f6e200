"""Durations as commands take them, ``90d``, ``12h``, ``30m`` or ``45s``, counted back by the database's clock."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from django_convmemory.clock import Clock

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
# Further back some databases have no dates.
_LONGEST = 36500 * _SECONDS["d"]


def seconds(text: str, option: str) -> int:
    """Return the seconds of the duration that ``option`` was given. Raises CommandError."""
    found = re.fullmatch(r"([0-9]{1,10})([dhms])", text)
    value = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < value <= _LONGEST:
        raise CommandError(
            f"{option} is {text!r:.100}. Write a whole number above 0, followed by d, h, m or s, as in 90d, 12h, 30m "
            "or 45s. The longest duration is 36500d.",
            returncode=2,
        )
    return value


def ago(seconds: float, rows: QuerySet[Any]) -> dt.datetime | None:
    """Return the database's time ``seconds`` ago, or None where there are no ``rows``.

    A value, so that all statements of a command mean the same moment, and an index can be used: PostgreSQL computes an
    expression of its clock anew for each row.
    """
    return next(iter(rows.order_by().values_list(Clock(-seconds), flat=True)[:1]), None)
