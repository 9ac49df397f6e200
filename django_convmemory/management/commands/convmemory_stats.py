"""Shows the state of each memory: its sessions, its due sessions, and its recent model calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count, F, Max, Q, Sum

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.core import usage
from django_convmemory.core.options import Options
from django_convmemory.core.values import MAX_MODEL_NAME, AttemptOutcome
from django_convmemory.management import choices, durations
from django_convmemory.memory import memories
from django_convmemory.monitoring import figures, readiness
from django_convmemory.monitoring.readiness import Reason
from django_convmemory.stores import breakers

_IDLE = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=Clock())


class Command(BaseCommand):
    """``manage.py convmemory_stats``: shows for each alias its sessions, its compactions, and its recent model calls.

    - ``failing``: due sessions whose last attempt published nothing, and that no process is folding.
    - ``stalled``: sessions with ``max_attempts`` failed attempts or more. They are tried once an hour.
    - ``to_be_rebuilt``: sessions whose summary the fallback has made in part. It is rebuilt when the model answers.
    - ``replies``: the replies that were stored with their usage, and how much of their prompts came from the provider's
      cache.
    - ``pause``: why nobody calls the model now, since when, and for how long.
    - ``ready``: no session has been due for too long, and no outage or misconfiguration pauses the memory. Otherwise
      ``reasons`` say what is wrong, and with ``--fail-if-not-ready`` the exit code is 1.

    The command makes a few queries for each alias. They count rows. Only the usage of recent replies is loaded.
    """

    help = "Show for each memory its sessions, what is due, and the recent model calls with their cost."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        parser.add_argument("--json", action="store_true", help="Print JSON: an object with an entry for each alias.")
        parser.add_argument(
            "--since",
            default="24h",
            metavar="DURATION",
            help=f"How far back model calls are counted, such as {durations.EXAMPLES} (default: %(default)s).",
        )
        parser.add_argument(
            "--fail-if-not-ready",
            action="store_true",
            help="Exit with 1 if a memory is not ready, after the figures are printed.",
        )
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the figures of each alias."""
        using = choices.database(options)
        seconds = durations.seconds(options["since"], "--since")
        if broken := readiness.of_process(using):
            raise CommandError(" ".join(reason.message for reason in broken))
        reasons = readiness.of_work(figures.backlogs(using))
        stats = {
            alias: {
                **_readiness(alias, reasons),
                **_sessions(alias, using),
                "attempts": {"since_seconds": seconds, **_attempts(alias, using, seconds)},
                "replies": {"since_seconds": seconds, **_replies(alias, using, seconds)},
            }
            for alias in choices.aliases(options, using, removed=True)
        }
        if options["json"]:
            self.stdout.write(json.dumps(stats, ensure_ascii=False, indent=2))
        else:
            self.stdout.write("\n\n".join(_text(alias, values, options["since"]) for alias, values in stats.items()))
        if options["fail_if_not_ready"] and not all(values["ready"] for values in stats.values()):
            messages = {reason["message"] for values in stats.values() for reason in values["reasons"]}
            raise CommandError("\n".join(sorted(messages)))


def _readiness(alias: str, reasons: Sequence[Reason]) -> dict[str, Any]:
    own = [reason for reason in reasons if reason.alias == alias]
    return {"ready": not own, "reasons": [{"code": reason.code, "message": reason.message} for reason in own]}


def _sessions(alias: str, using: str) -> dict[str, Any]:
    rows = models.Session.objects.using(using).filter(alias=alias)
    # An alias that was removed from the settings gets no attempts and has no options: the default limit is used.
    max_attempts = memories[alias].options.max_attempts if alias in memories else Options().max_attempts
    counts = rows.aggregate(
        sessions=Count("pk"),
        messages=Sum("last_position", default=0),
        tokens=Sum(F("unpinned_tokens") + F("pinned_tokens"), default=0),
        due=Count("pk", filter=Q(due_since__isnull=False)),
        leased=Count("pk", filter=Q(lease_expires_at__gt=Clock())),
        failing=Count("pk", filter=Q(due_since__isnull=False) & _IDLE & (Q(attempts__gt=0) | ~Q(last_error=""))),
        stalled=Count("pk", filter=Q(attempts__gte=max_attempts)),
    )
    oldest = rows.due().order_by("due_since").values_list("due_since", Clock()).first()
    return {
        **counts,
        "oldest_due_seconds": round(max(0.0, (oldest[1] - oldest[0]).total_seconds()), 1) if oldest else None,
        "to_be_rebuilt": rows.filter(rebuild_after__isnull=False).count(),
        "pause": _pause(alias, using),
    }


def _pause(alias: str, using: str) -> dict[str, Any] | None:
    """Return why and until when nobody calls the alias's model, or None if it may be called.

    If ``seconds_left`` is 0, the pause has ended, and one call finds out whether the model answers again.
    """
    state = breakers.read(using, alias)
    if state.until is None or not (state.open or state.paused):
        return None
    return {
        "reason": state.reason,
        "error": state.error,
        "since": state.since.isoformat(timespec="seconds") if state.since else None,
        "seconds_left": round(max(0.0, (state.until - state.now).total_seconds()), 1),
        "failures": state.failures,
    }


def _attempts(alias: str, using: str, seconds: int) -> dict[str, Any]:
    rows = models.Attempt.objects.using(using).filter(alias=alias)
    fallback = memories[alias].fallback if alias in memories else None
    if fallback is not None and (model := memories[alias].model) is not None and model.name == fallback.name:
        fallback = None  # The names are equal: the calls are counted as calls of the primary model.
    began = durations.ago(seconds, rows)
    rows = rows.filter(started_at__gte=began) if began is not None else rows.none()
    outcomes = list(
        rows.order_by("outcome")
        .values("outcome")
        .annotate(
            count=Count("pk"),
            by_fallback=Count("pk", filter=Q(model=fallback.name[:MAX_MODEL_NAME]) if fallback else Q(pk__in=[])),
            prompt=Sum("prompt_tokens", default=0),
            completion=Sum("completion_tokens", default=0),
            cached=Sum("cached_tokens", default=0),
            total_cost=Sum("cost"),
            longest=Max("duration_seconds"),
        )
    )
    costs = [row["total_cost"] for row in outcomes if row["total_cost"] is not None]
    count = sum(row["count"] for row in outcomes)
    # The databases have no median function in common. So this reads the one or two rows in the middle.
    middle = list(
        rows.order_by("duration_seconds").values_list("duration_seconds", flat=True)[
            max(0, count - 1) // 2 : count // 2 + 1
        ]
    )
    return {
        "count": count,
        "by_fallback": sum(row["by_fallback"] for row in outcomes if row["outcome"] == AttemptOutcome.PUBLISHED),
        "outcomes": {row["outcome"]: row["count"] for row in outcomes},
        "prompt_tokens": sum(row["prompt"] for row in outcomes),
        "cached_tokens": sum(row["cached"] for row in outcomes),
        "completion_tokens": sum(row["completion"] for row in outcomes),
        "cost": float(sum(costs)) if costs else None,
        "median_seconds": round(sum(middle) / len(middle), 3) if middle else None,
        "longest_seconds": round(max(row["longest"] for row in outcomes), 3) if outcomes else None,
    }


def _replies(alias: str, using: str, seconds: int) -> dict[str, int]:
    """Return what providers reported about the replies that were stored with their usage."""
    rows = models.Message.objects.using(using).filter(session__alias=alias, usage__isnull=False)
    began = durations.ago(seconds, models.Session.objects.using(using).filter(alias=alias))
    # An append changes updated_at, so only the messages of these sessions are read.
    rows = rows.filter(session__updated_at__gte=began, created_at__gte=began) if began is not None else rows.none()
    totals = dict.fromkeys(("count", *usage.Usage._fields), 0)
    for reported in map(usage.read, rows.values_list("usage", flat=True).iterator(chunk_size=1000)):
        if reported is not None:
            totals["count"] += 1
            for name, tokens in reported._asdict().items():
                totals[name] += tokens
    return totals


def _text(alias: str, values: dict[str, Any], since: str) -> str:
    attempts, replies, pause = values["attempts"], values["replies"], values["pause"]
    lines = [
        ("ready", "yes" if values["ready"] else "no"),
        *((name, values[name]) for name in ("sessions", "messages", "tokens", "due")),
        ("oldest due (s)", values["oldest_due_seconds"]),
        *((name, values[name]) for name in ("leased", "failing", "stalled")),
        ("to be rebuilt", values["to_be_rebuilt"]),
        ("paused", pause["reason"] if pause else "no"),
        *([("  since", pause["since"]), ("  next call in (s)", pause["seconds_left"])] if pause else []),
        (f"attempts in {since}", attempts["count"]),
        *((f"  {outcome}", count) for outcome, count in attempts["outcomes"].items()),
        ("  by the fallback", attempts["by_fallback"]),
        ("prompt tokens", attempts["prompt_tokens"]),
        ("  cached tokens", attempts["cached_tokens"]),
        ("completion tokens", attempts["completion_tokens"]),
        ("cost", attempts["cost"]),
        ("median duration (s)", attempts["median_seconds"]),
        ("longest duration (s)", attempts["longest_seconds"]),
        (f"replies in {since}", replies["count"]),
        ("  prompt tokens", replies["prompt_tokens"]),
        ("  cached tokens", replies["cached_tokens"]),
        ("  completion tokens", replies["completion_tokens"]),
    ]
    cells = [(name, "-" if value is None else str(value)) for name, value in lines]
    left, right = (max(len(column) for column in columns) for columns in zip(*cells, strict=True))
    # An error is longer than the other values.
    error = [f"  last error: {pause['error']}"] if pause else []
    reasons = [f"  not ready: {reason['message']}" for reason in values["reasons"]]
    return "\n".join([alias, *(f"  {name:<{left}}  {value:>{right}}" for name, value in cells), *reasons, *error])
