"""The figures of the overview: what is stored, what folding saved, what is due, and what the models' calls took.

No figure walks a whole table:

- Up to some thousands of sessions, all are counted. Otherwise, a sample is, which is spread evenly over their ids.
- Of the calls, at most the newest ``MAX_CALLS`` are counted.
- Due sessions, and those that wait for a rebuild, are counted by their indexes, up to ``MAX_DUE``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Case, Count, Max, Min, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.functions import Coalesce
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_convmemory import clock, models
from django_convmemory.admin import charts
from django_convmemory.admin.pauses import Pause
from django_convmemory.admin.waiting import Status
from django_convmemory.core.values import AttemptOutcome
from django_convmemory.memory import memories

# The sample: the number of ranges of ids, and the number of ids in each range.
RANGES, RANGE_SIZE = 50, 100
MAX_CALLS = 50_000
MAX_DUE = 1000
# The largest number of failing and paused sessions, and of memories with due sessions, that are listed.
MAX_LISTED = 10
# The largest number of sessions to be rebuilt that are listed.
MAX_REBUILDS_LISTED = 5


class Period(NamedTuple):
    """A time to look back on, drawn in ``steps`` columns that stand for ``step`` each."""

    label: Any
    steps: int
    step: dt.timedelta


PERIODS = {
    "1d": Period(_("24 hours"), 24, dt.timedelta(hours=1)),
    "7d": Period(_("7 days"), 28, dt.timedelta(hours=6)),
    "30d": Period(_("30 days"), 30, dt.timedelta(days=1)),
}
# The outcomes that are no failures.
_DONE = {AttemptOutcome.PUBLISHED, AttemptOutcome.SHORTEN, AttemptOutcome.DROPPED}


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """What the sessions hold. ``history`` and ``context`` are tokens: of all messages, and of what models are sent."""

    sessions: int = 0
    messages: int = 0
    history: int = 0
    context: int = 0
    estimated: bool = False

    @property
    def saved(self) -> int:
        """The tokens of the history that are not sent."""
        return max(0, self.history - self.context)

    @property
    def saved_percent(self) -> int:
        return round(100 * self.saved / self.history) if self.history else 0

    @property
    def parts(self) -> list[charts.Piece]:
        return charts.stacked([("context", _("sent"), self.context), ("saved", _("saved"), self.saved)])


class ModelCalls(NamedTuple):
    """The calls of a model. ``seconds`` is the mean of a call. ``cost`` is None if no price is known."""

    model: str
    calls: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal | None
    seconds: float


@dataclasses.dataclass
class Overview:
    """The figures of one alias, or of all aliases in the settings, over one of :data:`PERIODS`."""

    using: str
    alias: str | None = None
    period: str = "1d"

    @cached_property
    def aliases(self) -> list[str]:
        return [self.alias] if self.alias else list(memories)

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
    def _due(self) -> list[models.Session]:
        rows = self._sessions.due().with_clock().order_by("alias", "due_since")
        return list(rows.only("due_since", "lease_expires_at", "last_error")[: MAX_DUE + 1])

    @property
    def due(self) -> int:
        """The number of due sessions, at most ``MAX_DUE``."""
        return min(len(self._due), MAX_DUE)

    @property
    def due_is_more(self) -> bool:
        return len(self._due) > MAX_DUE

    @cached_property
    def oldest_due(self) -> list[models.Session]:
        """The session of each alias that has been due for the longest time, longest due first."""
        condition = Q(pk__in=[])
        for alias in self.aliases:
            # A subquery for each alias, because the index has the due sessions of one alias in order.
            of_alias = models.Session.objects.filter(alias=alias).due().order_by("alias", "due_since", "pk")
            condition |= Q(pk=Subquery(of_alias.values("pk")[:1]))
        rows = models.Session.objects.using(self.using).filter(condition).with_clock()
        return sorted(rows, key=lambda session: (session.due_since, session.pk))

    def oldest_with(self, pauses: Iterable[Pause]) -> list[Status]:
        """Why each of them waits."""
        by_alias = {pause.state.alias: pause for pause in pauses}
        return [Status(session, by_alias.get(session.alias)) for session in self.oldest_due[:MAX_LISTED]]

    @property
    def lag(self) -> dt.timedelta | None:
        """The time since the first of them became due."""
        if not self.oldest_due:
            return None
        oldest: Any = self.oldest_due[0]
        wait: dt.timedelta = oldest.now - oldest.due_since
        return wait

    @cached_property
    def _stuck(self) -> dict[str, list[int]]:
        """The ids of the due sessions that failed, and of those that only wait for the end of a pause."""
        return {
            state: [session.pk for session in self._due if session.state == state]
            for state in (models.SessionState.FAILING, models.SessionState.PAUSED)
        }

    @property
    def failing(self) -> int:
        """The number of due sessions whose last attempt failed."""
        return len(self._stuck[models.SessionState.FAILING])

    @property
    def paused(self) -> int:
        """The number of the other due sessions whose alias is paused."""
        return len(self._stuck[models.SessionState.PAUSED])

    @property
    def stuck(self) -> int:
        return self.failing + self.paused

    @property
    def all_stuck(self) -> models.SessionQuerySet:
        """The failing and the paused sessions, longest due first."""
        ids = [session_id for state_ids in self._stuck.values() for session_id in state_ids]
        return models.Session.objects.using(self.using).filter(pk__in=ids).order_by("due_since")

    @cached_property
    def listed(self) -> list[models.Session]:
        """Those of them that are listed."""
        return list(self.all_stuck.with_clock().select_related("owner")[:MAX_LISTED])

    # Rebuilds.

    @cached_property
    def _to_be_rebuilt(self) -> list[models.Session]:
        rows = self._sessions.filter(rebuild_after__isnull=False).order_by("alias", "rebuild_after")
        return list(rows.only("alias", "key", "rebuild_after")[: MAX_DUE + 1])

    @property
    def to_be_rebuilt(self) -> int:
        """The number of sessions whose summary the fallback has made in part, at most ``MAX_DUE``."""
        return min(len(self._to_be_rebuilt), MAX_DUE)

    @property
    def to_be_rebuilt_is_more(self) -> bool:
        return len(self._to_be_rebuilt) > MAX_DUE

    @property
    def oldest_rebuilds(self) -> list[models.Session]:
        """Those of them that are rebuilt first."""
        rows: list[Any] = self._to_be_rebuilt
        return sorted(rows, key=lambda session: (session.rebuild_after, session.pk))[:MAX_REBUILDS_LISTED]

    # Calls.

    @cached_property
    def steps(self) -> list[dt.datetime]:
        """The time at which each step of the period begins."""
        _label, count, step = PERIODS[self.period]
        now = dt.datetime.now(dt.UTC) if settings.USE_TZ else clock.naive(dt.datetime.now(dt.UTC), self.using)
        return [now - step * number for number in range(count, 0, -1)]

    @cached_property
    def _newest(self) -> int:
        return models.Attempt.objects.using(self.using).aggregate(newest=Max("pk"))["newest"] or 0

    @cached_property
    def _calls(self) -> QuerySet[models.Attempt]:
        rows = models.Attempt.objects.using(self.using).filter(pk__gt=self._newest - MAX_CALLS)
        return rows.filter(alias__in=self.aliases, started_at__gte=self.steps[0])

    @cached_property
    def _groups(self) -> list[dict[str, Any]]:
        """The calls, grouped by step, outcome and model."""
        # The newest step first, because most calls are in the newest steps.
        newest_first = reversed(list(enumerate(self.steps)))
        step = Case(*[When(started_at__gte=begins, then=Value(number)) for number, begins in newest_first])
        rows = self._calls.annotate(step=step).order_by().values("step", "outcome", "model")
        groups: Any = rows.annotate(
            calls=Count("pk"),
            prompt=Sum("prompt_tokens"),
            completion=Sum("completion_tokens"),
            total=Sum("cost"),
            seconds=Sum("duration_seconds"),
            longest=Max("due_seconds"),
            oldest=Min("started_at"),
        )
        return list(groups)

    @cached_property
    def since(self) -> dt.datetime | None:
        """The time of the oldest call that is counted, or None if all calls of the period are counted."""
        if self.calls < MAX_CALLS // 2:  # Ids may have gaps.
            return None
        before = models.Attempt.objects.using(self.using).filter(pk__lte=self._newest - MAX_CALLS)
        older = before.order_by("-pk").values_list("started_at", flat=True).first()
        return min(group["oldest"] for group in self._groups) if older and older >= self.steps[0] else None

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

    @property
    def outcomes(self) -> list[tuple[Any, int]]:
        """Each outcome and its number of calls, the most frequent first."""
        labels = dict(models.Attempt.OUTCOMES)
        return [(labels.get(outcome, outcome), calls) for outcome, calls in self._by_outcome.most_common()]

    @cached_property
    def calls_chart(self) -> charts.Columns:
        """The calls of each step that did not fail, and those that failed."""
        counts = [[0, 0] for _ in self.steps]
        for group in self._groups:
            counts[group["step"]][group["outcome"] not in _DONE] += group["calls"]
        return charts.columns(self.steps, ["done", "failed"], counts)

    @cached_property
    def lag_chart(self) -> charts.Columns:
        """The longest time, in seconds, that a session had been due when it was claimed, for each step."""
        longest = [[0.0] for _ in self.steps]
        for group in self._groups:
            longest[group["step"]][0] = max(longest[group["step"]][0], group["longest"] or 0.0)
        # At a shorter scale, a wait of a second or two would look like a delay.
        return charts.columns(self.steps, ["lag"], longest, scale=10)

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


def _in_sample(first: int, ids: int) -> Q:
    """Return the condition that an id is in one of the ranges, which are evenly spread over ``ids`` ids."""
    condition = Q(pk__in=[])
    for number in range(RANGES):
        begins = first + number * (ids - RANGE_SIZE) // (RANGES - 1)
        condition |= Q(pk__gte=begins, pk__lt=begins + RANGE_SIZE)
    return condition


def _count_by_outcome(groups: Iterable[dict[str, Any]]) -> Counter[str]:
    counts = Counter[str]()
    for group in groups:
        counts[group["outcome"]] += group["calls"]
    return counts


def _failed(by_outcome: Counter[str]) -> int:
    return sum(calls for outcome, calls in by_outcome.items() if outcome not in _DONE)


def _model_calls(model: str, groups: list[dict[str, Any]]) -> ModelCalls:
    by_outcome = _count_by_outcome(groups)
    return ModelCalls(
        model,
        calls=by_outcome.total(),
        failed=_failed(by_outcome),
        prompt_tokens=sum(group["prompt"] or 0 for group in groups),
        completion_tokens=sum(group["completion"] or 0 for group in groups),
        cost=_sum_known(group["total"] for group in groups),
        seconds=sum(group["seconds"] or 0 for group in groups) / by_outcome.total(),
    )


def _sum_known(costs: Iterable[Decimal | None]) -> Decimal | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal()) if known else None
