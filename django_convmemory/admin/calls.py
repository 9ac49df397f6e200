"""The calls of models in the last days, by model and by day.

At most the newest ``MAX_CALLS`` are counted, whatever the table holds.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from decimal import Decimal
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Case, Count, Max, Min, Q, Sum, Value, When
from django.utils import formats, timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_convmemory import clock, models
from django_convmemory.admin import charts
from django_convmemory.rules.values import AttemptOutcome

DAYS = 30
MAX_CALLS = 50_000
# The outcomes that are no failures.
DONE = (AttemptOutcome.PUBLISHED, AttemptOutcome.SHORTEN, AttemptOutcome.DROPPED)
# The parts of a day's column, from the bottom up.
TOKENS = (("cached", _("in, from the provider’s cache")), ("in", _("in, not cached")), ("out", _("out")))


class Sums(NamedTuple):
    """What some calls took. ``seconds`` is their sum. ``cost`` is None if no price is known."""

    calls: int = 0
    failed: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    seconds: float = 0
    cost: Decimal | None = None

    @property
    def mean_seconds(self) -> float:
        return self.seconds / self.calls

    @property
    def tokens(self) -> tuple[int, int, int]:
        """The tokens of :data:`TOKENS`. A provider may count more cached tokens than tokens."""
        cached = min(self.cached, self.prompt)
        return cached, self.prompt - cached, self.completion


@dataclasses.dataclass
class Calls:
    """The calls of ``aliases`` today and in the ``DAYS - 1`` days before."""

    using: str
    aliases: list[str]

    @cached_property
    def days(self) -> list[dt.date]:
        today = dt.datetime.now(timezone.get_current_timezone()).date()
        return [today - dt.timedelta(days=number) for number in reversed(range(DAYS))]

    @cached_property
    def _newest(self) -> int:
        newest: int | None = models.Attempt.objects.using(self.using).aggregate(newest=Max("pk"))["newest"]
        return newest or 0

    @cached_property
    def _groups(self) -> list[tuple[int, str, dt.datetime, Sums]]:
        """The number of the day, the model, the time of the oldest call, and the sums of each day and model."""
        begins = [self._midnight(day) for day in self.days]
        # The newest day first, because most databases stop at the first condition that holds.
        later = [When(started_at__gte=begins[number], then=Value(number)) for number in reversed(range(1, DAYS))]
        rows: Any = models.Attempt.objects.using(self.using).filter(
            started_at__gte=begins[0], pk__gt=self._newest - MAX_CALLS, alias__in=self.aliases
        )
        groups = rows.annotate(day=Case(*later, default=Value(0))).order_by().values_list("day", "model")
        groups = groups.annotate(
            oldest=Min("started_at"),
            calls=Count("pk"),
            failed=Count("pk", filter=~Q(outcome__in=DONE)),
            prompt=Sum("prompt_tokens", default=0),
            cached=Sum("cached_tokens", default=0),
            completion=Sum("completion_tokens", default=0),
            seconds=Sum("duration_seconds", default=0.0),
            total=Sum("cost"),
        )
        return [(day, model, oldest, Sums(*sums)) for day, model, oldest, *sums in groups]

    def _midnight(self, day: dt.date) -> dt.datetime:
        """Return the time at which a day begins, in the form that rows have."""
        moment = dt.datetime.combine(day, dt.time.min, timezone.get_current_timezone())
        return moment if settings.USE_TZ else clock.naive(moment, self.using)

    @cached_property
    def since(self) -> dt.datetime | None:
        """The time of the oldest call that is counted, or None if all calls of these days are counted."""
        left_out = models.Attempt.objects.using(self.using).filter(pk__lte=self._newest - MAX_CALLS).order_by("-pk")
        at = left_out.values_list("started_at", flat=True).first()
        if at is None or at < self._midnight(self.days[0]):
            return None
        return min((oldest for _day, _model, oldest, _sums in self._groups), default=None)

    @cached_property
    def by_model(self) -> list[tuple[str, Sums]]:
        """The calls of each model, the most expensive model first."""
        by_model = collections.defaultdict(list)
        for _day, model, _oldest, sums in self._groups:
            by_model[model].append(sums)
        summed = [(model, _summed(sums)) for model, sums in by_model.items()]
        return sorted(summed, key=lambda each: (-(each[1].cost or Decimal()), -each[1].calls))

    @cached_property
    def by_day(self) -> list[tuple[str, Sums]]:
        """The calls of each day, the oldest day first, with the day as a text."""
        by_day = collections.defaultdict(list)
        for day, _model, _oldest, sums in self._groups:
            by_day[day].append(sums)
        return [(formats.date_format(day), _summed(by_day[number])) for number, day in enumerate(self.days)]

    @cached_property
    def total(self) -> Sums:
        return _summed([sums for _model, sums in self.by_model])

    @property
    def legend(self) -> tuple[tuple[str, Any], ...]:
        return TOKENS

    @property
    def tokens_chart(self) -> charts.Columns:
        return charts.columns([name for name, _label in TOKENS], [sums.tokens for _day, sums in self.by_day])

    @property
    def cost_chart(self) -> charts.Columns | None:
        """The cost of each day, or None if no price is known."""
        if self.total.cost is None:
            return None
        return charts.columns(["cost"], [[float(sums.cost or 0)] for _day, sums in self.by_day])


def _summed(several: list[Sums]) -> Sums:
    known = [sums.cost for sums in several if sums.cost is not None]
    counts: Any = [sum(column) for column in zip(*(sums[:-1] for sums in several), strict=True)]
    return Sums(*counts)._replace(cost=sum(known, Decimal()) if known else None)
