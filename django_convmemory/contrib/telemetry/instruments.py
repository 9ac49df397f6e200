"""The metrics: two of the semantic conventions, and our own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.db import connections
from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from django_convmemory.chat_models.base import Usage
from django_convmemory.contrib.telemetry import attributes
from django_convmemory.monitoring import figures

# The semantic conventions say these boundaries.
DURATION_BOUNDARIES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKEN_BOUNDARIES = tuple(4**power for power in range(14))


class Instruments:
    """The instruments of one provider. Without ``gauges`` nothing asks the database."""

    def __init__(self, provider: MeterProvider | None, *, gauges: bool) -> None:
        meter: Meter = metrics.get_meter("django_convmemory", meter_provider=provider)
        self.duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES,
        )
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKEN_BOUNDARIES,
        )
        self.cached_tokens = meter.create_counter(
            "convmemory.cached_tokens",
            unit="{token}",
            description="Tokens of the prompts of folds that came from the provider's cache.",
        )
        self.folds = meter.create_counter(
            "convmemory.folds", unit="{fold}", description="Runs of compaction, by outcome."
        )
        self.fold_duration = meter.create_histogram(
            "convmemory.fold.duration",
            unit="s",
            description="Duration of a run of compaction.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES,
        )
        self.omitted = meter.create_counter(
            "convmemory.omitted_messages",
            unit="{message}",
            description="Messages that a context had no room for and that no summary covered.",
        )
        if gauges:
            meter.create_observable_gauge(
                "convmemory.sessions.due",
                callbacks=[_due],
                unit="{session}",
                description="Sessions that wait to be folded.",
            )
            meter.create_observable_gauge(
                "convmemory.sessions.oldest_due",
                callbacks=[_oldest_due],
                unit="s",
                description="How long the longest waiting session has been due.",
            )

    def count_tokens(self, usage: Usage, known: Mapping[str, str | int]) -> None:
        """Record the tokens of a call with the attributes ``known``."""
        self.tokens.record(usage.prompt_tokens, {**known, "gen_ai.token.type": "input"})
        self.tokens.record(usage.completion_tokens, {**known, "gen_ai.token.type": "output"})


def _backlogs() -> dict[str, figures.Backlog]:
    """Read what waits. The thread of an exporter belongs to no request, so nothing else closes its connections."""
    try:
        return figures.backlogs()
    finally:
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close_if_unusable_or_obsolete()


def _due(options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(backlog.due, {attributes.ALIAS: alias}) for alias, backlog in _backlogs().items()]


def _oldest_due(options: CallbackOptions) -> Iterable[Observation]:
    return [
        Observation(backlog.oldest_due_seconds, {attributes.ALIAS: alias}) for alias, backlog in _backlogs().items()
    ]
