"""The time that the overview looks back on, in steps that its charts draw as columns."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from typing import Any, NamedTuple

from django.conf import settings
from django.utils import formats, timezone
from django.utils.dateparse import parse_date
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_convmemory import clock


class Period(NamedTuple):
    """A time to look back on, drawn in ``steps`` columns that stand for ``step`` each."""

    label: Any
    steps: int
    step: dt.timedelta


_HOUR, _DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
PERIODS = {
    "1d": Period(_("24 hours"), 24, _HOUR),
    "7d": Period(_("7 days"), 28, 6 * _HOUR),
    "30d": Period(_("30 days"), 30, _DAY),
}
# The steps of days that were chosen, and the largest number of columns: the first step that needs no more is taken.
_STEPS = (_HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY, 364 * _DAY)
_MAX_COLUMNS = 62
# The days before the last one if only the last one was chosen.
_DAYS_BEFORE = 29
# Other years are no years of a call, and near the ends of the calendar a time zone has no time.
_YEARS = range(2000, 2200)


@dataclasses.dataclass(frozen=True)
class Span:
    """A span of time. ``steps`` has the time at which each step begins. ``ends`` is None if it goes on until now."""

    steps: list[dt.datetime]
    step: dt.timedelta
    ends: dt.datetime | None = None

    @cached_property
    def labels(self) -> list[str]:
        """The steps as texts. Each is in many places of a page, and a template would take long for all of them."""
        local = [timezone.localtime(at) if timezone.is_aware(at) else at for at in self.steps]
        return [formats.date_format(at, "DATETIME_FORMAT") for at in local]

    @property
    def step_ends(self) -> list[dt.datetime]:
        """The time at which each step ends."""
        return [*self.steps[1:], self.ends or self.steps[-1] + self.step]


def latest(name: str, using: str) -> Span:
    """Return one of :data:`PERIODS`, until now."""
    _label, count, step = PERIODS[name]
    now = _in_rows(dt.datetime.now(dt.UTC), using)
    return Span([now - step * number for number in range(count, 0, -1)], step)


def days(first: dt.date | None, last: dt.date | None, using: str) -> Span:
    """Return the days from ``first`` through ``last``, in the current time zone. One of them may be None."""
    now = _in_rows(dt.datetime.now(dt.UTC), using)
    today = dt.datetime.now(timezone.get_current_timezone()).date()
    last = last or max(today, first or today)
    first = first or last - dt.timedelta(days=_DAYS_BEFORE)
    first, last = min(first, last), max(first, last)
    begins, ends = _midnight(first, using), _midnight(last + dt.timedelta(days=1), using)
    until = min(ends, now) if begins < now else ends
    step = next((step for step in _STEPS if (until - begins) <= step * _MAX_COLUMNS), _STEPS[-1])
    count = max(1, math.ceil((until - begins) / step))
    return Span([begins + step * number for number in range(count)], step, until)


def day(text: str | None) -> dt.date | None:
    """Return the day of a text like ``2026-05-13``, or None."""
    try:
        parsed = parse_date(text or "")
    except ValueError:
        return None
    return parsed if parsed is not None and parsed.year in _YEARS else None


def _midnight(of: dt.date, using: str) -> dt.datetime:
    return _in_rows(dt.datetime.combine(of, dt.time.min, timezone.get_current_timezone()), using)


def _in_rows(moment: dt.datetime, using: str) -> dt.datetime:
    """Return a time in the form that rows have."""
    return moment if settings.USE_TZ else clock.naive(moment, using)
