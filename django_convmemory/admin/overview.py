"""How all memories are doing: what is stored, what was saved, what compaction is at, and what it took of late.

Nothing here walks a whole table. Sessions are counted where they are few and otherwise estimated from a sample, evenly
spread over their ids; of the calls of the model at most the newest ``MOST_CALLS`` are reckoned with; and what is due is
counted by its index, up to ``MOST_DUE``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Case, Count, F, Max, Min, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.functions import Coalesce
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_convmemory import clock, models
from django_convmemory.admin import charts
from django_convmemory.core.values import AttemptOutcome
from django_convmemory.memory import memories

# The sample: stretches of ids, and how many ids there are in each.
STRETCHES, STRETCH = 50, 100
MOST_CALLS = 50_000
MOST_DUE = 1000
# Sessions that are named.
FAILURES = 10

# What can be looked back on: the name, what it is called, and how many steps of how long it is drawn in.
PERIODS = {
    "1d": (_("24 hours"), 24, dt.timedelta(hours=1)),
    "7d": (_("7 days"), 28, dt.timedelta(hours=6)),
    "30d": (_("30 days"), 30, dt.timedelta(days=1)),
}
# Attempts that did their part, and those after which the session is as it was for a good reason.
_DONE = {AttemptOutcome.PUBLISHED, AttemptOutcome.SHORTEN, AttemptOutcome.DROPPED}


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """What the sessions hold. ``history`` is the tokens of all that was said, ``context`` of what models are sent."""

    sessions: int = 0
    messages: int = 0
    history: int = 0
    context: int = 0
    estimated: bool = False

    @property
    def saved(self) -> int:
        """Tokens that need not be sent."""
        return max(0, self.history - self.context)

    @property
    def saved_percent(self) -> int:
        return round(100 * self.saved / self.history) if self.history else 0

    @property
    def parts(self) -> list[charts.Piece]:
        return charts.stacked([("context", _("sent"), self.context), ("saved", _("saved"), self.saved)])


class Called(NamedTuple):
    """What a model was called for, how often, and what it took. ``cost`` is None where no price is known."""

    model: str
    calls: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal | None
    seconds: float


@dataclasses.dataclass
class Overview:
    """The figures of the memory ``alias``, or of all that are in the settings, over a period of :data:`PERIODS`."""

    using: str
    alias: str | None = None
    period: str = "1d"

    @cached_property
    def aliases(self) -> list[str]:
        return [self.alias] if self.alias else list(memories)

    @property
    def periods(self) -> Iterable[tuple[str, Any]]:
        return ((name, label) for name, (label, _steps, _step) in PERIODS.items())

    @property
    def period_label(self) -> Any:
        return PERIODS[self.period][0]

    # What is stored.

    @property
    def _sessions(self) -> models.SessionQuerySet:
        return models.Session.objects.using(self.using).filter(alias__in=self.aliases)

    @cached_property
    def stored(self) -> Stored:
        ends = models.Session.objects.using(self.using).aggregate(first=Min("pk"), last=Max("pk"))
        if ends["first"] is None:
            return Stored()
        rows, share = self._sessions, 1.0
        ids = ends["last"] - ends["first"] + 1
        if ids > STRETCHES * STRETCH:
            rows, share = rows.filter(_stretches(ends["first"], ids)), ids / (STRETCHES * STRETCH)
        version = models.Summary.objects.filter(session=OuterRef("pk"), version=OuterRef("current_version"))
        found = rows.annotate(summary_tokens=Coalesce(Subquery(version.values("tokens")[:1]), 0)).aggregate(
            sessions=Count("pk"),
            messages=Sum("last_position"),
            history=Sum(F("unpinned_tokens") + F("pinned_tokens")),
            unpinned=Sum("unpinned_tokens"),
            covered=Sum("covered_tokens"),
            pinned=Sum("pinned_tokens"),
            summarized=Sum("summary_tokens"),
        )
        total = {name: round(int(value or 0) * share) for name, value in found.items()}
        context = total["unpinned"] - total["covered"] + total["pinned"] + total["summarized"]
        return Stored(total["sessions"], total["messages"], total["history"], context, share > 1)

    # What is to be done.

    @cached_property
    def _due(self) -> list[models.Session]:
        rows = self._sessions.due().with_clock().order_by("alias", "due_since")
        return list(rows.only("due_since", "lease_expires_at", "last_error")[: MOST_DUE + 1])

    @property
    def due(self) -> int:
        """Sessions that are due, ``MOST_DUE`` at most."""
        return min(len(self._due), MOST_DUE)

    @property
    def due_is_more(self) -> bool:
        return len(self._due) > MOST_DUE

    @property
    def lag(self) -> dt.timedelta | None:
        """For how long the one of them that has waited longest has been due."""
        waited = [one.now - one.due_since for one in self._due if one.due_since]  # type: ignore[attr-defined]
        return max(waited, default=None)

    @cached_property
    def _failing(self) -> list[models.Session]:
        return [one for one in self._due if one.state == models.SessionState.FAILING]

    @property
    def failing(self) -> int:
        """How many of them are due again because they could not be folded."""
        return len(self._failing)

    @property
    def all_failing(self) -> models.SessionQuerySet:
        """All of them."""
        rows = models.Session.objects.using(self.using).filter(pk__in=[one.pk for one in self._failing])
        return rows.order_by("due_since")

    @cached_property
    def failures(self) -> list[models.Session]:
        """Those of them that have waited longest."""
        return list(self.all_failing.with_clock().select_related("owner")[:FAILURES])

    # What was done.

    @cached_property
    def steps(self) -> list[dt.datetime]:
        """When each step of the period begins."""
        _label, count, step = PERIODS[self.period]
        now = dt.datetime.now(dt.UTC) if settings.USE_TZ else clock.naive(dt.datetime.now(dt.UTC), self.using)
        return [now - step * number for number in range(count, 0, -1)]

    @cached_property
    def _newest(self) -> int:
        return models.Attempt.objects.using(self.using).aggregate(newest=Max("pk"))["newest"] or 0

    @cached_property
    def _calls(self) -> QuerySet[models.Attempt]:
        rows = models.Attempt.objects.using(self.using).filter(pk__gt=self._newest - MOST_CALLS)
        return rows.filter(alias__in=self.aliases, started_at__gte=self.steps[0])

    @cached_property
    def _counted(self) -> list[dict[str, Any]]:
        """The calls by step, outcome and model."""
        # The newest first: most calls are of late, and are found in the first branches.
        step = Case(
            *[
                When(started_at__gte=begins, then=Value(number))
                for number, begins in reversed(list(enumerate(self.steps)))
            ]
        )
        rows = self._calls.annotate(step=step).order_by().values("step", "outcome", "model")
        counted: Any = rows.annotate(
            calls=Count("pk"),
            prompt=Sum("prompt_tokens"),
            completion=Sum("completion_tokens"),
            total=Sum("cost"),
            seconds=Sum("duration_seconds"),
            longest=Max("due_seconds"),
            oldest=Min("started_at"),
        )
        return list(counted)

    @cached_property
    def since(self) -> dt.datetime | None:
        """Since when calls are reckoned with, where that is not the whole period: there are too many."""
        if self.calls < MOST_CALLS // 2:  # Ids may have gaps.
            return None
        before = models.Attempt.objects.using(self.using).filter(pk__lte=self._newest - MOST_CALLS)
        older = before.order_by("-pk").values_list("started_at", flat=True).first()
        return min(one["oldest"] for one in self._counted) if older and older >= self.steps[0] else None

    @property
    def calls(self) -> int:
        return sum(one["calls"] for one in self._counted)

    @property
    def published(self) -> int:
        return sum(one["calls"] for one in self._counted if one["outcome"] == AttemptOutcome.PUBLISHED)

    @property
    def failed(self) -> int:
        return sum(one["calls"] for one in self._counted if one["outcome"] not in _DONE)

    @cached_property
    def calls_chart(self) -> charts.Columns:
        """Calls that did their part and calls that failed, by step."""
        counts = [[0, 0] for _ in self.steps]
        for one in self._counted:
            counts[one["step"]][one["outcome"] not in _DONE] += one["calls"]
        return charts.columns(self.steps, ["done", "failed"], counts)

    @cached_property
    def lag_chart(self) -> charts.Columns:
        """The longest time, in seconds, that a session had been due when it was folded, by step."""
        longest = [[0.0] for _ in self.steps]
        for one in self._counted:
            longest[one["step"]][0] = max(longest[one["step"]][0], one["longest"] or 0.0)
        # A second or two is no delay, and should not look like one.
        return charts.columns(self.steps, ["lag"], longest, least=10)

    @cached_property
    def by_model(self) -> list[Called]:
        """What each model was called for, the dearest first."""
        found: dict[str, list[dict[str, Any]]] = {}
        for one in self._counted:
            found.setdefault(one["model"], []).append(one)
        return sorted((_called(model, rows) for model, rows in found.items()), key=_dearest)

    @property
    def cost(self) -> Decimal | None:
        return _summed(one.cost for one in self.by_model)

    @cached_property
    def outcomes(self) -> list[tuple[Any, int]]:
        """How many calls ended how, the most frequent first."""
        labels, counts = dict(models.Attempt.OUTCOMES), dict[str, int]()
        for one in self._counted:
            counts[one["outcome"]] = counts.get(one["outcome"], 0) + one["calls"]
        return [(labels.get(name, name), counts[name]) for name in sorted(counts, key=lambda name: -counts[name])]


def _stretches(first: int, ids: int) -> Q:
    """Return the condition that an id is in the sample: in one of the stretches, evenly from the first to the last."""
    found = Q(pk__in=[])
    for number in range(STRETCHES):
        begins = first + number * (ids - STRETCH) // (STRETCHES - 1)
        found |= Q(pk__gte=begins, pk__lt=begins + STRETCH)
    return found


def _called(model: str, rows: list[dict[str, Any]]) -> Called:
    return Called(
        model,
        calls=sum(one["calls"] for one in rows),
        failed=sum(one["calls"] for one in rows if one["outcome"] not in _DONE),
        prompt_tokens=sum(one["prompt"] or 0 for one in rows),
        completion_tokens=sum(one["completion"] or 0 for one in rows),
        cost=_summed(one["total"] for one in rows),
        seconds=sum(one["seconds"] or 0 for one in rows) / sum(one["calls"] for one in rows),
    )


def _summed(costs: Iterable[Decimal | None]) -> Decimal | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal()) if known else None


def _dearest(called: Called) -> tuple[Decimal, int]:
    return -(called.cost or Decimal()), -called.calls
