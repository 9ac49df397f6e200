"""Durations in the options of commands, such as ``90d``, and the time that long ago by the database's clock."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from django_convmemory.clock import Clock

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
# Some databases have no earlier dates.
_LONGEST_DAYS = 36500

EXAMPLES = "90d, 12h, 30m or 45s"


def seconds(text: str, option: str) -> int:
    """Return the seconds of the duration ``text``, which is the value of ``option``. Raises CommandError."""
    match = re.fullmatch(r"([0-9]{1,10})([dhms])", text)
    value = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < value <= _LONGEST_DAYS * _SECONDS["d"]:
        raise CommandError(
            f"{option} is {text!r:.100}. Write a whole number above 0, followed by d, h, m or s, as in {EXAMPLES}. "
            f"The longest duration is {_LONGEST_DAYS}d.",
            returncode=2,
        )
    return value


def older(rows: Any, column: str, seconds: float) -> Any:
    """Return those of ``rows`` whose time in ``column`` is longer than ``seconds`` ago."""
    before = ago(seconds, rows)
    return rows.none() if before is None else rows.filter(**{f"{column}__lt": before})


def ago(seconds: float, rows: QuerySet[Any]) -> dt.datetime | None:
    """Return the database's time ``seconds`` ago, or None if there are no ``rows``.

    It is a value and not an expression. So all statements of a command use the same moment, and PostgreSQL can use an
    index: it computes an expression of its clock again for each row.
    """
    return next(iter(rows.order_by().values_list(Clock(-seconds), flat=True)[:1]), None)
