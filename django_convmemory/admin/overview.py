"""The figures of the overview: what is stored, what folding saved, and what is due.

No figure walks a whole table:

- Up to some thousands of sessions, all are counted. Otherwise, a sample is, which is spread evenly over their ids.
- Due sessions, and those that wait for a rebuild, are counted by their indexes, up to ``MOST_COUNTED``.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Case, Count, Max, Min, OuterRef, Q, Subquery, Sum, Value, When
from django.db.models.functions import Coalesce
from django.utils import formats, timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_convmemory import clock, models
from django_convmemory.admin import charts
from django_convmemory.admin.waiting import PauseNotice, Status
from django_convmemory.memory import memories
from django_convmemory.rules.values import AttemptOutcome
from django_convmemory.templatetags import convmemory

# The sample: the number of ranges of ids, and the number of ids in each range.
RANGES, RANGE_SIZE = 50, 100
# The most sessions that are listed of those that fail or are paused, and of those to be rebuilt.
MAX_LISTED = 5


class Stored(NamedTuple):
    """What the sessions hold. ``history`` and ``context`` are tokens: of all messages, and of what models are sent."""

    sessions: int = 0
    messages: int = 0
    history: int = 0
    context: int = 0
    estimated: bool = False

    @property
    def saved_percent(self) -> int:
        """The share of the tokens of the history that are not sent."""
        return round(100 * max(0, self.history - self.context) / self.history) if self.history else 0


@dataclasses.dataclass
class Overview:
    """The figures of one alias, or of all aliases in the settings."""

    using: str
    alias: str | None = None

    @cached_property
    def aliases(self) -> list[str]:
        return [self.alias] if self.alias else list(memories)

    @cached_property
    def calls(self) -> CallTotals:
        return CallTotals(self.using, self.aliases)

    @property
    def _sessions(self) -> models.SessionQuerySet:
        return models.Session.objects.using(self.using).filter(alias__in=self.aliases)

    @cached_property
    def stored(self) -> Stored:
        ends = models.Session.objects.using(self.using).aggregate(first=Min("pk"), last=Max("pk"))
        if ends["first"] is None:
            return Stored()
        rows, scale = self._sessions, 1.0
        ids = ends["last"] - ends["first"] + 1
        if ids > RANGES * RANGE_SIZE:
            rows, scale = rows.filter(_in_sample(ends["first"], ids)), ids / (RANGES * RANGE_SIZE)
        current = models.Summary.objects.filter(session=OuterRef("pk"), version=OuterRef("current_version"))
        sums = rows.annotate(summary_tokens=Coalesce(Subquery(current.values("tokens")[:1]), 0)).aggregate(
            sessions=Count("pk"),
            messages=Sum("last_position"),
            unpinned=Sum("unpinned_tokens"),
            covered=Sum("covered_tokens"),
            pinned=Sum("pinned_tokens"),
            summaries=Sum("summary_tokens"),
        )
        total = {name: round(int(value or 0) * scale) for name, value in sums.items()}
        history = total["unpinned"] + total["pinned"]
        context = history - total["covered"] + total["summaries"]
        return Stored(total["sessions"], total["messages"], history, context, estimated=scale > 1)

    # Due sessions.

    @cached_property
    def due(self) -> list[models.Session]:
        rows = self._sessions.due().with_clock().order_by("alias", "due_since")
        return list(rows.only("due_since", "lease_expires_at", "last_error")[: convmemory.MOST_COUNTED + 1])

    @cached_property
    def stuck(self) -> list[int]:
        """The ids of the due sessions whose last attempt failed, or that wait for the end of a pause."""
        states = (models.SessionState.FAILING, models.SessionState.PAUSED)
        return [session.pk for session in self.due if session.state in states]

    @property
    def all_stuck(self) -> models.SessionQuerySet:
        """These sessions, longest due first."""
        return models.Session.objects.using(self.using).filter(pk__in=self.stuck).order_by("due_since")

    @cached_property
    def waiting(self) -> list[models.Session]:
        """The session of each alias that has been due for the longest time, and stuck ones, longest due first."""
        condition = Q(pk__in=self.stuck[:MAX_LISTED])
        for alias in self.aliases:
            # A subquery for each alias, because the index has the due sessions of one alias in order.
            of_alias = models.Session.objects.filter(alias=alias).due().order_by("alias", "due_since", "pk")
            condition |= Q(pk=Subquery(of_alias.values("pk")[:1]))
        rows = models.Session.objects.using(self.using).filter(condition).with_clock().select_related("owner")
        return sorted(rows, key=lambda session: (session.due_since, session.pk))

    def why(self, pauses: Iterable[PauseNotice]) -> list[Status]:
        """Why each of them waits."""
        by_alias = {pause.state.alias: pause for pause in pauses}
        return [Status(session, by_alias.get(session.alias)) for session in self.waiting]

    @property
    def lag(self) -> dt.timedelta | None:
        """The time since the first of them became due."""
        oldest: Any = self.waiting[0] if self.waiting else None
        return None if oldest is None else oldest.now - oldest.due_since

    # Rebuilds.

    @cached_property
    def to_be_rebuilt(self) -> list[models.Session]:
        """The sessions whose summary the fallback has made in part."""
        rows = self._sessions.filter(rebuild_after__isnull=False).order_by("alias", "rebuild_after")
        return list(rows.only("alias", "key", "rebuild_after")[: convmemory.MOST_COUNTED + 1])

    @property
    def oldest_rebuilds(self) -> list[models.Session]:
        """Those of them that are rebuilt first."""
        rows: list[Any] = self.to_be_rebuilt
        return sorted(rows, key=lambda session: (session.rebuild_after, session.pk))[:MAX_LISTED]


def _in_sample(first: int, ids: int) -> Q:
    """Return the condition that an id is in one of the ranges, which are evenly spread over ``ids`` ids."""
    condition = Q(pk__in=[])
    for number in range(RANGES):
        begins = first + number * (ids - RANGE_SIZE) // (RANGES - 1)
        condition |= Q(pk__gte=begins, pk__lt=begins + RANGE_SIZE)
    return condition


# The calls of models in the last days, by model and by day.


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
class CallTotals:
    """The calls of ``aliases`` today and in the ``DAYS - 1`` days before."""

    using: str
    aliases: list[str]
    legend = TOKENS

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
