"""The calls of models in a span of time: their outcomes, tokens and costs.

At most the newest ``MAX_CALLS`` of the span are counted, whatever the table holds.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib.auth import get_user_model
from django.db.models import (
    Case,
    Count,
    F,
    FloatField,
    IntegerField,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Cast, Round
from django.utils.functional import cached_property

from django_convmemory import models
from django_convmemory.admin import periods, trends
from django_convmemory.core.values import AttemptOutcome
from django_convmemory.memory import memories

MAX_CALLS = 50_000
# A call gets its id when it ends, but its time is that of its beginning. So this many calls of a span may have larger
# ids than the last call that began in it.
_OUT_OF_ORDER = 1000
# The number of sessions, and of people, with the highest costs that are listed. At most so many of the newest calls are
# summed up for it, because each needs a look at its session.
TOP, MAX_RANKED = 10, 10_000


class ModelCalls(NamedTuple):
    """The calls of one model. ``seconds`` is the mean of a call. ``cost`` is None if no price is known."""

    model: str
    calls: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: Decimal | None
    seconds: float


class Spender(NamedTuple):
    """A session, or an owner of sessions, with the cost of its calls."""

    who: Any
    calls: int
    cost: float


@dataclasses.dataclass
class Calls:
    """The calls of one alias, or of all aliases in the settings.

    They are those of one of :data:`periods.PERIODS`, or of the days from ``first_day`` through ``last_day``.
    """

    using: str
    alias: str | None = None
    period: str = "1d"
    first_day: dt.date | None = None
    last_day: dt.date | None = None

    @cached_property
    def aliases(self) -> list[str]:
        return [self.alias] if self.alias else list(memories)

    @cached_property
    def span(self) -> periods.Span:
        if self.first_day or self.last_day:
            return periods.days(self.first_day, self.last_day, self.using)
        return periods.latest(self.period, self.using)

    @property
    def query(self) -> str:
        """The choices, as the query of an address."""
        chosen = {"alias": self.alias, "period": self.period, "from": self.first_day, "to": self.last_day}
        return urlencode({name: value for name, value in chosen.items() if value})

    @property
    def in_span(self) -> QuerySet[models.Attempt]:
        """All calls of the span."""
        rows = models.Attempt.objects.using(self.using).filter(started_at__gte=self.span.steps[0])
        return rows if self.span.ends is None else rows.filter(started_at__lt=self.span.ends)

    @cached_property
    def _newest(self) -> int:
        """The largest id that a call of the span may have."""
        rows = models.Attempt.objects.using(self.using)
        if self.span.ends is None:
            return rows.aggregate(newest=Max("pk"))["newest"] or 0
        last = Q(pk__in=[])
        for alias in self.aliases:
            # A subquery for each alias, because the index has the calls of one alias in order.
            before = models.Attempt.objects.filter(alias=alias, started_at__lt=self.span.ends)
            last |= Q(pk=Subquery(before.order_by("-alias", "-started_at").values("pk")[:1]))
        newest = rows.filter(last).aggregate(newest=Max("pk"))["newest"]
        return 0 if newest is None else newest + _OUT_OF_ORDER

    @cached_property
    def _calls(self) -> QuerySet[models.Attempt]:
        """The calls that are counted, each with the number of its step."""
        rows = self.in_span.filter(pk__gt=self._newest - MAX_CALLS, pk__lte=self._newest, alias__in=self.aliases)
        return rows.annotate(step=_step(self.span.steps, 0))

    @cached_property
    def _groups(self) -> list[dict[str, Any]]:
        """The calls, grouped by step, outcome, model and rounded duration."""
        rows: Any = self._calls.order_by().annotate(took=_rounded())
        groups = rows.values("step", "outcome", "model", "took").annotate(
            calls=Count("pk"),
            prompt=Sum("prompt_tokens"),
            cached=Sum("cached_tokens"),
            completion=Sum("completion_tokens"),
            total=Sum("cost"),
            seconds=Sum("duration_seconds"),
            longest=Max("due_seconds"),
            oldest=Min("started_at"),
        )
        return list(groups)

    @cached_property
    def since(self) -> dt.datetime | None:
        """The time of the oldest call that is counted, or None if all calls of the span are counted."""
        if self.calls < MAX_CALLS // 2:  # Ids may have gaps.
            return None
        left_out = self._last_before(self._newest - MAX_CALLS)
        return min(group["oldest"] for group in self._groups) if left_out else None

    def _last_before(self, pk: int) -> dt.datetime | None:
        """Return the time of the last call through this id, or None if it is not in the span."""
        before = models.Attempt.objects.using(self.using).filter(pk__lte=pk)
        at = before.order_by("-pk").values_list("started_at", flat=True).first()
        return at if at and at >= self.span.steps[0] else None

    @cached_property
    def _by_outcome(self) -> Counter[str]:
        return _count_by_outcome(self._groups)

    @property
    def calls(self) -> int:
        return self._by_outcome.total()

    @property
    def published(self) -> int:
        return self._by_outcome[AttemptOutcome.PUBLISHED]

    @property
    def failed(self) -> int:
        return _failed(self._by_outcome)

    @cached_property
    def outcomes_trend(self) -> trends.Trend:
        return trends.outcomes(self.span, self._groups)

    @cached_property
    def lag_trend(self) -> trends.Trend:
        return trends.lag(self.span, self._groups)

    @cached_property
    def cost_trend(self) -> trends.Trend:
        return trends.cost(self.span, self._groups)

    @cached_property
    def tokens_trend(self) -> trends.Trend:
        return trends.tokens(self.span, self._groups)

    @cached_property
    def latency_trend(self) -> trends.Trend:
        return trends.latency(self.span, self._groups)

    @property
    def long_waits(self) -> Iterable[tuple[int, dt.datetime, float]]:
        """The session, the time, and the seconds of each call for a session that had been due for long."""
        rows = self._calls.filter(due_seconds__gte=trends.BACKLOG_SECONDS, session__isnull=False).order_by()
        return rows.values_list("session_id", "started_at", "due_seconds")

    @cached_property
    def by_model(self) -> list[ModelCalls]:
        """The calls of each model, the most expensive model first."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for group in self._groups:
            groups.setdefault(group["model"], []).append(group)
        return sorted(
            (_model_calls(model, own_groups) for model, own_groups in groups.items()),
            key=lambda called: (-(called.cost or Decimal()), -called.calls),
        )

    @property
    def cost(self) -> Decimal | None:
        return _sum_known(called.cost for called in self.by_model)

    # The highest costs.

    @cached_property
    def ranked_since(self) -> dt.datetime | None:
        """The time of the last call that the highest costs leave out, or None if they count all calls of the span."""
        if self.calls <= MAX_RANKED // 2:  # Ids may have gaps.
            return None
        return self._last_before(self._newest - MAX_RANKED)

    @cached_property
    def top_sessions(self) -> list[Spender]:
        """The sessions with the highest costs. Those that were deleted are missing."""
        return self._top(models.Session.objects.select_related("owner"), F("session_id"))

    @cached_property
    def top_owners(self) -> list[Spender]:
        """The users whose sessions have the highest costs."""
        # Not a join: to find the owners of many calls, the database might read all sessions.
        owner = models.Session.objects.filter(pk=OuterRef("session_id")).values("owner_id")
        return self._top(get_user_model()._base_manager.all(), Subquery(owner))

    def _top(self, rows: QuerySet[Any], who: Any) -> list[Spender]:
        """Return those of ``rows`` with the highest costs. ``who`` is the primary key of the row of a call."""
        newest = self._calls.filter(pk__gt=self._newest - MAX_RANKED)
        costly: Any = newest.filter(session__isnull=False, cost__gt=0).annotate(who=who).order_by()
        # A sum of exact numbers would take the database twice as long.
        total = Sum(Cast("cost", FloatField()))
        groups = costly.values("who").annotate(calls=Count("pk"), total=total)
        # One more: the calls of sessions without an owner are a group, too.
        highest = list(groups.order_by("-total", "who").values_list("who", "calls", "total")[: TOP + 1])
        found = rows.using(self.using).in_bulk([pk for pk, _calls, _total in highest if pk is not None])
        return [Spender(found[pk], calls, total) for pk, calls, total in highest if pk in found][:TOP]


def _step(steps: list[dt.datetime], first: int) -> Any:
    """Return the expression of a call's step, one of ``steps``, whose numbers begin with ``first``.

    It halves the steps until one is left, so that the database compares a time with few of them.
    """
    if len(steps) == 1:
        return Value(first)
    half = len(steps) // 2
    later = When(started_at__gte=steps[half], then=_step(steps[half:], first + half))
    return Case(later, default=_step(steps[:half], first))


def _rounded() -> Any:
    """Return the expression of a call's duration in tenths of a second.

    From ten seconds on, it is rounded to whole seconds, so that there are few groups.
    """
    tenths = Cast(Round(F("duration_seconds") * 10), IntegerField())
    seconds = Cast(Round(F("duration_seconds")), IntegerField()) * 10
    return Case(When(duration_seconds__lt=10, then=tenths), default=seconds, output_field=IntegerField())


def _count_by_outcome(groups: Iterable[dict[str, Any]]) -> Counter[str]:
    counts = Counter[str]()
    for group in groups:
        counts[group["outcome"]] += group["calls"]
    return counts


def _failed(by_outcome: Counter[str]) -> int:
    return sum(calls for outcome, calls in by_outcome.items() if outcome not in trends.DONE)


def _model_calls(model: str, groups: list[dict[str, Any]]) -> ModelCalls:
    by_outcome = _count_by_outcome(groups)
    return ModelCalls(
        model,
        calls=by_outcome.total(),
        failed=_failed(by_outcome),
        prompt_tokens=sum(group["prompt"] or 0 for group in groups),
        cached_tokens=sum(group["cached"] or 0 for group in groups),
        completion_tokens=sum(group["completion"] or 0 for group in groups),
        cost=_sum_known(group["total"] for group in groups),
        seconds=sum(group["seconds"] or 0 for group in groups) / by_outcome.total(),
    )


def _sum_known(costs: Iterable[Decimal | None]) -> Decimal | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal()) if known else None
