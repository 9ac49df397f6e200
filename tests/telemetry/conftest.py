from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_convmemory import observers
from django_convmemory.contrib.telemetry.observer import Telemetry, TelemetryOptions


@dataclasses.dataclass
class Reported:
    """What was reported to OpenTelemetry's own SDK."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    tracer_provider: TracerProvider

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """The finished spans whose name begins with ``name``, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: str) -> list[Any]:
        metric = self.metrics().get(name)
        return list(metric.data.data_points) if metric else []


Reporting = Callable[..., contextlib.AbstractContextManager[Reported]]


@contextlib.contextmanager
def reporting_to_memory(**options: Any) -> Iterator[Reported]:
    reported = Reported(InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider())
    reported.tracer_provider.add_span_processor(SimpleSpanProcessor(reported.exporter))
    meter_provider = MeterProvider([reported.reader], shutdown_on_exit=False)
    observer = Telemetry(
        tracer_provider=reported.tracer_provider, meter_provider=meter_provider, options=TelemetryOptions(**options)
    )
    observers.add(observer)
    try:
        yield reported
    finally:
        observers.remove(observer)
        reported.tracer_provider.shutdown()
        meter_provider.shutdown()


@pytest.fixture
def reporting() -> Reporting:
    """A function that turns telemetry on, with these options, and returns what it reports."""
    return reporting_to_memory


@pytest.fixture
def reported() -> Iterator[Reported]:
    with reporting_to_memory() as reported:
        yield reported
