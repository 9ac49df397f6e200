"""What telemetry costs: the same operations without it and with it, by turns, in one process.

    python -m benchmarks.telemetry

The SDK samples every span and keeps nothing, so the exporter's cost is not in the figures.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult  # noqa: E402

from django_convmemory import observers  # noqa: E402
from django_convmemory.contrib.telemetry.observer import Telemetry, TelemetryOptions  # noqa: E402
from tests.folding import MarkerModel, build, talk  # noqa: E402

ROUNDS, OPERATIONS = 150, 4


class Nowhere(SpanExporter):
    """Keeps nothing."""

    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def main() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Nowhere()))
    meters = MeterProvider([InMemoryMetricReader()])
    telemetry = Telemetry(tracer_provider=provider, meter_provider=meters, options=TelemetryOptions(gauges=False))

    memory = build(MarkerModel())
    memory.append("parrot", {"role": "user", "content": "My parrot is called Coco."})
    talk(memory, 10, key="talk")
    folded = iter(range(10**6))

    def fold() -> None:
        key = f"fold-{next(folded)}"
        talk(memory, 6, key=key)
        began = time.perf_counter()
        memory.compact(key)
        fold.seconds = time.perf_counter() - began  # type: ignore[attr-defined]

    operations: dict[str, Callable[[], object]] = {
        "append": lambda: memory.append("long", {"role": "user", "content": "Hello"}),
        "load": lambda: memory.load("talk"),
        "search": lambda: memory.search("Coco", session="parrot"),
    }
    for name, operation in operations.items():
        report(name, telemetry, lambda operation=operation: timed(operation, OPERATIONS))
    report("compact", telemetry, lambda: (fold(), fold.seconds)[1])  # type: ignore[attr-defined]


def timed(operation: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - began) / count


def report(name: str, telemetry: Telemetry, measure: Callable[[], float]) -> None:
    measured: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        # In a random order: what the database does now and then falls on both.
        for on in random.sample([False, True], 2):
            if on:
                observers.add(telemetry)
            measured[on].append(measure())
            observers.remove(telemetry)
    before, after = statistics.median(measured[False]), statistics.median(measured[True])
    print(f"{name:<8} off {before * 1e6:8.0f} µs   on {after * 1e6:8.0f} µs   ratio {after / before:.3f}")


if __name__ == "__main__":
    main()
