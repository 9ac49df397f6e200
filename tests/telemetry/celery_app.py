"""The Celery app of a worker that writes its spans to the file ``spans``, one JSON object on each line."""

import pathlib
import tempfile
from typing import Any

from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from tests.celery_app import app

__all__ = ["app"]


@worker_process_init.connect
def export_spans(**kwargs: Any) -> None:
    spans = (pathlib.Path(tempfile.gettempdir()) / "spans").open("a")
    provider = TracerProvider()
    provider.add_span_processor(
        SimpleSpanProcessor(ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(indent=None) + "\n"))
    )
    trace.set_tracer_provider(provider)
