"""The charts of the overview: how the calls of models went over time, each with a table of its numbers."""

from __future__ import annotations

import bisect
import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from django.utils.translation import gettext_lazy as _

from django_convmemory import models
from django_convmemory.admin import charts
from django_convmemory.admin.periods import Span
from django_convmemory.core.values import AttemptOutcome

# The outcomes that are no failures.
DONE = {AttemptOutcome.PUBLISHED, AttemptOutcome.SHORTEN, AttemptOutcome.DROPPED}
PERCENTILES = (50, 95)
# A session that waits for less is not in the backlog: it takes a worker some seconds to begin.
BACKLOG_SECONDS = 60.0

Group = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Trend:
    """A chart and its table.

    - ``series`` has the name and the label of each part of a column, from the bottom up.
    - ``headings`` and ``rows`` are those of the table. A value is None if it is not known. ``total`` sums them up.
    - ``places`` is how the filter ``floatformat`` writes a value, unless the values are ``durations`` in seconds.
    """

    name: str
    title: Any
    chart: charts.Columns
    series: Sequence[tuple[str, Any]]
    headings: Sequence[Any]
    rows: Sequence[tuple[str, Sequence[Any]]]
    total: Sequence[Any] = ()
    durations: bool = False
    places: str = "0g"
    note: Any = ""


def outcomes(span: Span, groups: Iterable[Group]) -> Trend:
    """The calls of each step by outcome. The chart has three kinds of outcomes, and the table has all that occurred."""
    groups = list(groups)
    labels = dict(models.Attempt.OUTCOMES)
    occurred = {group["outcome"] for group in groups}
    known = [outcome for outcome in labels if outcome in occurred]
    ordered = known + sorted(occurred - set(known))
    kinds, counts = [[0, 0, 0] for _ in span.steps], [[0] * len(ordered) for _ in span.steps]
    for group in groups:
        kind = 2 if group["outcome"] not in DONE else 1 if group["outcome"] != AttemptOutcome.PUBLISHED else 0
        kinds[group["step"]][kind] += group["calls"]
        counts[group["step"]][ordered.index(group["outcome"])] += group["calls"]
    series = [("done", _("published")), ("unused", _("answered, not used")), ("failed", _("failed"))]
    return Trend(
        "calls",
        _("Model calls by outcome"),
        charts.columns(span.labels, [name for name, _label in series], kinds),
        series,
        [labels.get(outcome, outcome) for outcome in ordered],
        list(zip(span.labels, counts, strict=True)),
        [sum(column) for column in zip(*counts, strict=True)],
    )


def lag(span: Span, groups: Iterable[Group]) -> Trend:
    """The longest time, in seconds, that a session had been due when it was claimed, for each step."""
    longest = [[0.0] for _ in span.steps]
    for group in groups:
        longest[group["step"]][0] = max(longest[group["step"]][0], group["longest"] or 0.0)
    return Trend(
        "lag",
        _("Lag: the longest wait of a due session"),
        # At a shorter scale, a wait of a second or two would look like a delay.
        charts.columns(span.labels, ["lag"], longest, scale=10),
        [],
        [_("Longest wait")],
        list(zip(span.labels, longest, strict=True)),
        durations=True,
    )


def cost(span: Span, groups: Iterable[Group]) -> Trend:
    """The cost of the calls of each step, as far as prices are known."""
    costs: list[list[Decimal | None]] = [[None] for _ in span.steps]
    for group in groups:
        if group["total"] is not None:
            costs[group["step"]][0] = (costs[group["step"]][0] or Decimal()) + group["total"]
    known = [value for [value] in costs if value is not None]
    return Trend(
        "cost",
        _("Cost"),
        charts.columns(span.labels, ["cost"], [[float(value or 0)] for [value] in costs]),
        [],
        [_("Cost")],
        list(zip(span.labels, costs, strict=True)),
        [sum(known, Decimal()) if known else None],
        places=_places(max(known, default=Decimal())),
        note="" if known else _("No price is known. Set prices in the chat model’s options."),
    )


def _places(largest: Decimal) -> str:
    """Return how to write costs up to ``largest``, so that the smaller ones can be told apart."""
    return "2g" if largest >= 10 else "4g" if largest >= Decimal("0.1") else "6g"


def tokens(span: Span, groups: Iterable[Group]) -> Trend:
    """The tokens that models were sent, those of them from the provider's cache, and the tokens of the answers."""
    sums = [[0, 0, 0] for _ in span.steps]
    for group in groups:
        of_step = sums[group["step"]]
        cached = min(group["cached"] or 0, group["prompt"] or 0)
        of_step[0] += cached
        of_step[1] += (group["prompt"] or 0) - cached
        of_step[2] += group["completion"] or 0
    series = [("cached", _("in, from the provider’s cache")), ("in", _("in, not cached")), ("out", _("out"))]
    return Trend(
        "tokens",
        _("Tokens in and out"),
        charts.columns(span.labels, [name for name, _label in series], sums),
        series,
        [label for _name, label in series],
        list(zip(span.labels, sums, strict=True)),
        [sum(column) for column in zip(*sums, strict=True)],
    )


def latency(span: Span, groups: Iterable[Group]) -> Trend:
    """The median, and the 95th percentile, of the seconds that a call took, also of calls that failed.

    They have the nearest rank: of n calls in order, the percentile p is the first whose rank is at least n · p / 100.
    ``took`` of a group are its rounded seconds, in tenths.
    """
    counts = [Counter[int]() for _ in span.steps]
    for group in groups:
        counts[group["step"]][group["took"]] += group["calls"]
    seconds = [[_percentile(of_step, percentile) for percentile in PERCENTILES] for of_step in counts]
    names = [f"p{percentile}" for percentile in PERCENTILES]
    drawn = [[value or 0.0 for value in of_step] for of_step in seconds]
    return Trend(
        "latency",
        _("Latency of the models"),
        charts.columns(span.labels, names, drawn, stacked=False),
        [("p50", _("median")), ("p95", _("95th percentile"))],
        [_("median"), _("95th percentile")],
        list(zip(span.labels, seconds, strict=True)),
        durations=True,
        note=_("All calls count, including those that failed."),
    )


def _percentile(calls_by_tenths: Counter[int], percentile: int) -> float | None:
    below = 0
    for tenths in sorted(calls_by_tenths):
        below += calls_by_tenths[tenths]
        if below * 100 >= calls_by_tenths.total() * percentile:
            return tenths / 10
    return None


def backlog(
    span: Span,
    claimed: Iterable[tuple[int, dt.datetime, float]],
    due: Iterable[tuple[int, dt.datetime]],
) -> Trend:
    """How many sessions had been due for more than a minute at the end of each step.

    There is no record of it. It follows from the calls, each with its session, its time and the seconds for which the
    session had been due, and from the sessions that are ``due`` now, each with the time since when.
    """
    # As numbers, which are compared faster than times: there may be 50 000 calls.
    ends = [at.timestamp() for at in span.step_ends]
    # A session that was tried several times became due once: the last try counts.
    waits: dict[tuple[int, int], int] = {}
    for session_id, started_at, seconds in claimed:
        began = started_at.timestamp()
        key = session_id, bisect.bisect_left(ends, began - seconds + BACKLOG_SECONDS)
        waits[key] = max(waits.get(key, 0), bisect.bisect_left(ends, began))
    for session_id, since in due:
        waits[session_id, bisect.bisect_left(ends, since.timestamp() + BACKLOG_SECONDS)] = len(ends)
    changes = [0] * (len(ends) + 1)
    for (_session, first), last in waits.items():
        if first < last:
            changes[first] += 1
            changes[last] -= 1
    counts, count = [], 0
    for change in changes[:-1]:
        count += change
        counts.append([count])
    return Trend(
        "backlog",
        _("Backlog: sessions that had been due for more than a minute"),
        charts.columns(span.labels, ["lag"], counts, scale=10),
        [],
        [_("Sessions at the end")],
        list(zip(span.labels, counts, strict=True)),
        note=_(
            "There is no record of the backlog. It is reconstructed from the calls and from the sessions that are due "
            "now. Sessions that were cleared or deleted before a model was called for them are missing."
        ),
    )
