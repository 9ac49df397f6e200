"""The metrics, as OpenTelemetry's SDK collects them."""

from __future__ import annotations

from typing import Any

import pytest

from django_convmemory import clock, models
from django_convmemory.chat_models.base import ChatResponse, Usage
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.exceptions import ModelUnavailable
from django_convmemory.messages import ChatMessage
from tests.folding import build, talk
from tests.telemetry import conventions
from tests.telemetry.conftest import Reported, Reporting

pytestmark = pytest.mark.django_db

ANSWER = ChatResponse(
    ChatMessage.ai("They talked."), usage=Usage(prompt_tokens=1000, completion_tokens=50, cached_tokens=800)
)


def folded(*replies: Any) -> list[str]:
    """Fold a session with a model that gives ``replies``, and return the outcome for each."""
    memory = build(ScriptedChatModel(replies))
    talk(memory, 10)
    return [memory.compact("s") for _ in replies]


def test_the_metrics_of_calls_are_those_of_the_conventions(reported: Reported) -> None:
    assert folded(ModelUnavailable("down"), ANSWER) == ["stalled", "published"]

    metrics = reported.metrics()
    for name, (unit, boundaries, more) in conventions.METRICS.items():
        assert metrics[name].unit == unit
        for point in reported.points(name):
            assert tuple(point.explicit_bounds[:2]) == boundaries
            assert point.attributes.keys() >= conventions.CHAT_REQUIRED
            types = {key: type(value) for key, value in point.attributes.items()}
            assert types.items() <= (conventions.CALL | more).items()
    # Calls are timed, and folds are counted by how they end.
    counts = {
        point.attributes.get("error.type", ""): point.count
        for point in reported.points("gen_ai.client.operation.duration")
    }
    assert counts == {"": 1, "ModelUnavailable": 1}
    counts = {point.attributes["convmemory.outcome"]: point.value for point in reported.points("convmemory.folds")}
    assert counts == {"stalled": 1, "published": 1}
    assert sum(point.count for point in reported.points("convmemory.fold.duration")) == 2


def test_tokens_are_counted_as_the_provider_reports_them(reported: Reported) -> None:
    folded(ANSWER)

    sums = {point.attributes["gen_ai.token.type"]: point.sum for point in reported.points("gen_ai.client.token.usage")}
    assert sums == {"input": 1000, "output": 50}
    [cached] = reported.points("convmemory.cached_tokens")
    assert (cached.value, cached.attributes) == (800, {"convmemory.alias": "default"})


def test_an_answer_without_usage_counts_no_tokens(reported: Reported) -> None:
    folded("fine")

    assert reported.points("gen_ai.client.token.usage") == []
    assert reported.points("convmemory.cached_tokens") == []


def test_messages_without_room_are_counted(reported: Reported) -> None:
    memory = build(ScriptedChatModel())
    talk(memory, 10)

    omitted = [memory.load("s", max_tokens=40).omitted, memory.load("s", max_tokens=10_000).omitted]

    assert omitted[0] > 0
    [point] = reported.points("convmemory.omitted_messages")
    assert (point.value, point.attributes) == (sum(omitted), {"convmemory.alias": "default"})


def test_the_sessions_that_wait_are_measured(reported: Reported) -> None:
    talk(build(ScriptedChatModel()), 10)
    models.Session.objects.update(due_since=clock.Clock(-120))

    [due] = reported.points("convmemory.sessions.due")
    [oldest] = reported.points("convmemory.sessions.oldest_due")
    assert (due.value, due.attributes) == (1, {"convmemory.alias": "default"})
    assert 120 <= oldest.value < 3600


def test_without_gauges_nothing_asks_the_database(reporting: Reporting, django_assert_num_queries: Any) -> None:
    with reporting(gauges=False) as reported, django_assert_num_queries(0):
        assert "convmemory.sessions.due" not in reported.metrics()
