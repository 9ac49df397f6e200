"""A worker process: its span of the fold has a link to the span in which the append made the session due."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import format_span_id, format_trace_id

from tests import processes, projects
from tests.projects import append_until_due, configured
from tests.telemetry.conftest import Reported
from tests.workers import worker_of

if TYPE_CHECKING:
    from pytest_django import Settings


pytestmark = pytest.mark.slow


@pytest.mark.django_db(transaction=True)
def test_the_trace_of_an_append_reaches_the_fold(
    broker_url: str, tmp_path: pathlib.Path, settings: Settings, reported: Reported
) -> None:
    apps = [*settings.INSTALLED_APPS, "django_convmemory.integrations.telemetry"]
    spans = tmp_path / "spans"

    def exported() -> dict[str, Any]:
        lines = spans.read_text().splitlines() if spans.exists() else []
        return {span["name"]: span for span in map(json.loads, lines)}

    with (
        worker_of(broker_url, tmp_path, app="tests.telemetry.celery_app", INSTALLED_APPS=apps) as worker,
        projects.current(worker.site),
    ):
        memory = configured(settings, worker.site)
        with reported.tracer_provider.get_tracer("site").start_as_current_span("request") as request:
            session = append_until_due(memory)
        processes.wait_until(lambda: "convmemory.compact" in exported(), "the fold is reported")

    fold, call = exported()["convmemory.compact"], exported()["chat fake"]
    context = request.get_span_context()
    [link] = fold["links"]
    assert link["context"]["trace_id"] == f"0x{format_trace_id(context.trace_id)}"
    assert link["context"]["span_id"] == f"0x{format_span_id(context.span_id)}"
    assert fold["attributes"]["gen_ai.conversation.id"] == str(session.public_id)
    assert fold["attributes"]["convmemory.outcome"] == "published"
    assert call["parent_id"] == fold["context"]["span_id"]
