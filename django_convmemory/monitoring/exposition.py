"""The figures in Prometheus' text form.

The form is a few lines for each metric, so this needs no library. All figures come from the database, so the counters
and the files of ``prometheus_client``, which a site's processes share, would not help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from django_convmemory.monitoring.figures import Backlog, Calls

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


class Metric(NamedTuple):
    """A metric. All are gauges: stored calls are deleted after a while, so that their number falls, too."""

    name: str
    help: str
    samples: list[Sample]


def metrics(backlogs: Mapping[str, Backlog], calls: Iterable[Calls]) -> list[Metric]:
    """Return all metrics, also those that are 0 now."""
    calls = list(calls)

    def waiting(name: str, text: str, field: str) -> Metric:
        samples = [Sample({"alias": alias}, getattr(backlog, field)) for alias, backlog in backlogs.items()]
        return Metric(f"convmemory_{name}", text, samples)

    def recent(name: str, text: str, field: str) -> Metric:
        samples = [Sample({"alias": row.alias, "outcome": row.outcome}, float(getattr(row, field))) for row in calls]
        return Metric(f"convmemory_recent_{name}", text, samples)

    def tokens(kind: str, field: str) -> list[Sample]:
        totals = dict.fromkeys(backlogs, 0)
        for row in calls:
            totals[row.alias] = totals.get(row.alias, 0) + getattr(row, field)
        return [Sample({"alias": alias, "type": kind}, total) for alias, total in totals.items()]

    return [
        waiting("due_sessions", "Sessions that wait to be folded.", "due"),
        waiting("oldest_due_seconds", "How long the longest waiting session has been due.", "oldest_due_seconds"),
        waiting("oldest_moving_seconds", "The same, without sessions that are stalled.", "oldest_moving_seconds"),
        waiting("stalled_sessions", "Due sessions that have failed max_attempts times.", "stalled"),
        waiting("leased_sessions", "Due sessions that a process is folding.", "leased"),
        waiting("rebuilds", "Sessions whose summary is to be rebuilt.", "rebuilds"),
        Metric(
            "convmemory_paused",
            "Whether nobody calls the model now, and why.",
            [
                Sample({"alias": alias, "reason": backlog.paused}, int(bool(backlog.paused)))
                for alias, backlog in backlogs.items()
            ],
        ),
        recent("calls", "Calls of models in the last hour.", "calls"),
        recent("call_seconds", "What these calls took together.", "seconds"),
        recent("cost", "What these calls cost, in the currency of PRICE.", "cost"),
        Metric(
            "convmemory_recent_tokens",
            "Tokens of these calls. Cached tokens are also counted as input.",
            [
                *tokens("input", "prompt_tokens"),
                *tokens("cached", "cached_tokens"),
                *tokens("output", "completion_tokens"),
            ],
        ),
    ]


def text(metrics: Iterable[Metric]) -> str:
    """Return the metrics in Prometheus' text form."""
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
        lines += [f"{metric.name}{{{_labels(sample.labels)}}} {sample.value:.12g}" for sample in metric.samples]
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    """Escape what ends a label's value or a line. A lone surrogate, which is no UTF-8, becomes a question mark."""
    value = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value.encode(errors="replace").decode()
