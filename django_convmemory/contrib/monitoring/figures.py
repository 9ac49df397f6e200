"""What waits, and what the models' calls took, for all memories of the settings at once, also for Prometheus.

The database has these figures, so every process gives the same answer. Three statements read what waits and a fourth
one the calls, however many memories there are. They use indexes, and read the due sessions, those that wait for a
rebuild, and the recent calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from django.db.models import Count, Max, Min, Q, Sum

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.memory import memories
from django_convmemory.rules.pause import Reason
from django_convmemory.store.orm import ORMStore

# Why a pause stops the work for long. A rate limit does so for some seconds.
LASTING = frozenset({Reason.OUTAGE.value, Reason.MISCONFIGURED.value})
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Backlog(NamedTuple):
    """What waits in one memory.

    - ``due`` sessions wait to be folded. The longest waiting one has waited for ``oldest_due_seconds``.
    - ``oldest_moving_seconds`` is the same without the ``stalled`` sessions: those have failed ``max_attempts`` times.
    - ``leased``: due sessions that a process is folding. ``rebuilds``: summaries that are to be rebuilt.
    - ``paused``: why nobody calls the model now, or "".
    """

    due: int = 0
    oldest_due_seconds: float = 0.0
    oldest_moving_seconds: float = 0.0
    stalled: int = 0
    leased: int = 0
    rebuilds: int = 0
    paused: str = ""


class Calls(NamedTuple):
    """The recent model calls of one memory that had one outcome."""

    alias: str
    outcome: str
    calls: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: Decimal


def backlogs(using: str | None = None) -> dict[str, Backlog]:
    """Return what waits, for each memory of the settings."""
    using = using or ORMStore().using
    aliases = list(memories)
    sessions = models.Session.objects.using(using).filter(alias__in=aliases).order_by()
    failed = Q(pk__in=[])
    for alias in aliases:
        failed |= Q(alias=alias, attempts__gte=memories[alias].options.max_attempts)
    by_alias = sessions.due().values("alias")
    rows = by_alias.annotate(
        due=Count("pk"),
        stalled=Count("pk", filter=failed),
        leased=Count("pk", filter=Q(lease_expires_at__gt=Clock())),
        oldest=Min("due_since"),
        moving=Min("due_since", filter=~failed),
        now=Max(Clock()),
    )
    due = {row["alias"]: row for row in rows}
    rebuilds = dict(sessions.filter(rebuild_after__isnull=False).values_list("alias").annotate(Count("pk")))
    paused = models.AliasState.objects.using(using).paused().filter(alias__in=aliases)
    pauses = dict(paused.values_list("alias", "reason"))
    return {alias: _backlog(due.get(alias, {}), rebuilds.get(alias, 0), pauses.get(alias, "")) for alias in aliases}


def _backlog(row: Mapping[str, Any], rebuilds: int, paused: str) -> Backlog:
    def age(name: str) -> float:
        since = row.get(name)
        return 0.0 if since is None else round(max(0.0, (row["now"] - since).total_seconds()), 1)

    counts = {name: row.get(name, 0) for name in ("due", "stalled", "leased")}
    backlog = Backlog(oldest_due_seconds=age("oldest"), oldest_moving_seconds=age("moving"), paused=paused)
    return backlog._replace(**counts, rebuilds=rebuilds)


def recent_calls(using: str | None = None, *, seconds: float = 3600.0) -> list[Calls]:
    """Return the calls of models in the last ``seconds``, by memory and outcome."""
    attempts = models.Attempt.objects.using(using or ORMStore().using)
    recent = attempts.filter(alias__in=list(memories), started_at__gte=Clock(-seconds))
    by_outcome = recent.order_by("alias", "outcome").values("alias", "outcome")
    groups = by_outcome.annotate(
        calls=Count("pk"),
        seconds=Sum("duration_seconds", default=0.0),
        prompt_tokens=Sum("prompt_tokens", default=0),
        cached_tokens=Sum("cached_tokens", default=0),
        completion_tokens=Sum("completion_tokens", default=0),
        cost=Sum("cost", default=Decimal()),
    )
    return [Calls(**group) for group in groups]


# The figures in Prometheus' text form: a few lines for each metric, so this needs no library. The counters and files of
# ``prometheus_client``, which a site's processes share, would not help, because all figures come from the database.

# The name of each metric, the figure that it has of each memory, or of each memory and outcome, and its help.
_OF_MEMORIES = (
    ("due_sessions", "due", "Sessions that wait to be folded."),
    ("oldest_due_seconds", "oldest_due_seconds", "How long the longest waiting session has been due."),
    ("oldest_moving_seconds", "oldest_moving_seconds", "The same, without sessions that are stalled."),
    ("stalled_sessions", "stalled", "Due sessions that have failed max_attempts times."),
    ("leased_sessions", "leased", "Due sessions that a process is folding."),
    ("rebuilds", "rebuilds", "Sessions whose summary is to be rebuilt."),
)
_OF_CALLS = (
    ("recent_calls", "calls", "Calls of models in the last hour."),
    ("recent_call_seconds", "seconds", "What these calls took together."),
    ("recent_cost", "cost", "What these calls cost, in the currency of PRICE."),
)
_TOKENS = (("input", "prompt_tokens"), ("cached", "cached_tokens"), ("output", "completion_tokens"))


def text(backlogs: Mapping[str, Backlog], calls: Sequence[Calls]) -> str:
    """Return the figures in Prometheus' text form, also those that are 0 now.

    All metrics are gauges: stored calls are deleted after a while, so that their number falls, too.
    """
    lines: list[str] = []

    def add(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], Any]]) -> None:
        lines.extend([f"# HELP convmemory_{name} {text}", f"# TYPE convmemory_{name} gauge"])
        lines.extend(f"convmemory_{name}{{{_labels(labels)}}} {value:.12g}" for labels, value in samples)

    for name, field, text in _OF_MEMORIES:
        add(name, text, [({"alias": alias}, getattr(backlog, field)) for alias, backlog in backlogs.items()])
    paused = [({"alias": alias, "reason": backlog.paused}, bool(backlog.paused)) for alias, backlog in backlogs.items()]
    add("paused", "Whether nobody calls the model now, and why.", paused)
    for name, field, text in _OF_CALLS:
        add(name, text, [({"alias": row.alias, "outcome": row.outcome}, getattr(row, field)) for row in calls])
    tokens = [
        ({"alias": alias, "type": kind}, sum(getattr(row, field) for row in calls if row.alias == alias))
        for kind, field in _TOKENS
        for alias in backlogs
    ]
    add("recent_tokens", "Tokens of these calls. Cached tokens are also counted as input.", tokens)
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    """Escape what ends a label's value or a line. A lone surrogate, which is no UTF-8, becomes a question mark."""
    value = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value.encode(errors="replace").decode()
