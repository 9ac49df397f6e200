"""What waits, and what the models' calls took, for all memories of the settings at once.

The database has these figures, so every process gives the same answer. Three statements read what waits and a fourth
one the calls, however many memories there are. They use indexes, and read the due sessions, those that wait for a
rebuild, and the recent calls.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, NamedTuple

from django.db.models import Count, Max, Min, Q, Sum

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.memory import memories
from django_convmemory.rules.pause import Reason
from django_convmemory.store.orm import ORMStore


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
    due = {
        row["alias"]: row
        for row in sessions.due()
        .values("alias")
        .annotate(
            due=Count("pk"),
            stalled=Count("pk", filter=failed),
            leased=Count("pk", filter=Q(lease_expires_at__gt=Clock())),
            oldest=Min("due_since"),
            moving=Min("due_since", filter=~failed),
            now=Max(Clock()),
        )
    }
    rebuilds = dict(sessions.filter(rebuild_after__isnull=False).values_list("alias").annotate(Count("pk")))
    pauses = _pauses(using, aliases)
    return {alias: _backlog(due.get(alias), rebuilds.get(alias, 0), pauses.get(alias, "")) for alias in aliases}


def _backlog(row: Any, rebuilds: int, paused: str) -> Backlog:
    if row is None:
        return Backlog(rebuilds=rebuilds, paused=paused)
    return Backlog(
        due=row["due"],
        oldest_due_seconds=_age(row["oldest"], row["now"]),
        oldest_moving_seconds=_age(row["moving"], row["now"]),
        stalled=row["stalled"],
        leased=row["leased"],
        rebuilds=rebuilds,
        paused=paused,
    )


def _age(since: object, now: object) -> float:
    if not isinstance(since, dt.datetime) or not isinstance(now, dt.datetime):
        return 0.0
    return round(max(0.0, (now - since).total_seconds()), 1)


def _pauses(using: str, aliases: list[str]) -> dict[str, str]:
    return dict(
        models.AliasState.objects.using(using).paused().filter(alias__in=aliases).values_list("alias", "reason")
    )


def recent_calls(using: str | None = None, *, seconds: float = 3600.0) -> list[Calls]:
    """Return the calls of models in the last ``seconds``, by memory and outcome."""
    rows = models.Attempt.objects.using(using or ORMStore().using)
    groups = (
        rows.filter(alias__in=list(memories), started_at__gte=Clock(-seconds))
        .order_by("alias", "outcome")
        .values("alias", "outcome")
        .annotate(
            calls=Count("pk"),
            seconds=Sum("duration_seconds", default=0.0),
            prompt_tokens=Sum("prompt_tokens", default=0),
            cached_tokens=Sum("cached_tokens", default=0),
            completion_tokens=Sum("completion_tokens", default=0),
            cost=Sum("cost", default=Decimal()),
        )
    )
    return [Calls(**group) for group in groups]


# Why a pause stops the work for long. A rate limit does so for some seconds.
LASTING = frozenset({Reason.OUTAGE.value, Reason.MISCONFIGURED.value})
