"""The figures in Prometheus' text form, as Prometheus' own parser reads them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from django_convmemory import clock, models
from django_convmemory.contrib.monitoring import figures
from django_convmemory.contrib.monitoring.figures import Backlog
from django_convmemory.memory import memories
from django_convmemory.rules.pause import Reason
from django_convmemory.rules.values import AttemptOutcome
from tests.folding import attempt
from tests.outages import pause_alias

pytestmark = pytest.mark.django_db


def scraped(client: Client, authorized: dict[str, Any]) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples of each metric, by the values of their labels."""
    response = client.get("/convmemory/metrics/", **authorized)
    assert response.status_code == 200
    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parsed(response.content.decode())


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def due(key: str, seconds: float, **columns: Any) -> None:
    """Make a session that has been due for so long."""
    memory = memories[columns.pop("alias", "default")]
    memory.append(key, {"role": "user", "content": "Hello"})
    models.Session.objects.filter(key=key).update(due_since=clock.Clock(-seconds), **columns)


def called(outcome: AttemptOutcome = AttemptOutcome.PUBLISHED, *, age: float = 60, **columns: Any) -> None:
    attempt(outcome=outcome, started_at=clock.Clock(-age), **columns)


def test_an_idle_site_has_every_metric_of_each_memory(client: Client, authorized: dict[str, Any]) -> None:
    samples = scraped(client, authorized)

    assert samples["convmemory_due_sessions"] == {("default",): 0, ("other",): 0}
    assert samples["convmemory_oldest_due_seconds"] == {("default",): 0, ("other",): 0}
    assert samples["convmemory_paused"] == {("default", ""): 0, ("other", ""): 0}
    assert samples["convmemory_recent_tokens"]["default", "cached"] == 0


def test_what_waits_is_counted_by_memory(client: Client, authorized: dict[str, Any]) -> None:
    due("a", 500, attempts=9)
    due("b", 100, lease_expires_at=clock.Clock(60))
    due("c", 50)
    due("d", 30, alias="other")
    models.Session.objects.filter(key="c").update(rebuild_after=clock.Clock(5))
    pause_alias(memories["other"].store, Reason.OUTAGE, "secret", alias="other")

    samples = scraped(client, authorized)

    assert samples["convmemory_due_sessions"] == {("default",): 3, ("other",): 1}
    assert samples["convmemory_stalled_sessions"] == {("default",): 1, ("other",): 0}
    assert samples["convmemory_leased_sessions"] == {("default",): 1, ("other",): 0}
    assert samples["convmemory_rebuilds"] == {("default",): 1, ("other",): 0}
    assert samples["convmemory_paused"] == {("default", ""): 0, ("other", "outage"): 1}
    assert 500 <= samples["convmemory_oldest_due_seconds"]["default",] < 1000
    assert 100 <= figures.backlogs()["default"].oldest_moving_seconds < 500


def test_recent_calls_are_added_up_by_outcome(client: Client, authorized: dict[str, Any]) -> None:
    called(duration_seconds=2.5, prompt_tokens=100, cached_tokens=64, completion_tokens=10, cost=Decimal("0.25"))
    called(duration_seconds=1.5, prompt_tokens=50, completion_tokens=5, cost=Decimal("0.5"))
    called(AttemptOutcome.UNAVAILABLE, duration_seconds=60)
    called(alias="gone")
    called(age=7200)

    samples = scraped(client, authorized)

    assert samples["convmemory_recent_calls"] == {("default", "published"): 2, ("default", "unavailable"): 1}
    assert samples["convmemory_recent_call_seconds"] == {("default", "published"): 4, ("default", "unavailable"): 60}
    assert samples["convmemory_recent_cost"]["default", "published"] == 0.75
    tokens = samples["convmemory_recent_tokens"]
    assert [tokens["default", kind] for kind in ("input", "cached", "output")] == [150, 64, 15]


def test_the_figures_take_four_statements_for_any_number_of_memories(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(4):
        figures.backlogs()
        figures.recent_calls()


@pytest.mark.parametrize("alias", ['a"} 1\nb{c="', "back\\slash", "\\n", "line\nbreak", "ünï", "x" * 100_000])
def test_a_hostile_name_stays_one_label(alias: str) -> None:
    text = figures.text({alias: Backlog(due=3, paused=alias)}, [])

    samples = parsed(text)
    assert samples["convmemory_due_sessions"] == {(alias,): 3}
    assert samples["convmemory_paused"] == {(alias, alias): 1}


def test_a_lone_surrogate_can_be_sent() -> None:
    text = figures.text({"\ud800": Backlog(due=1)}, [])
    assert parsed(text.encode().decode())["convmemory_due_sessions"] == {("?",): 1}


@pytest.mark.parametrize("value", [0, 1, 0.1, 12_345_678_901, 1e15])
def test_numbers_keep_their_value(value: float) -> None:
    text = figures.text({"a": Backlog(oldest_due_seconds=value)}, [])
    assert parsed(text)["convmemory_oldest_due_seconds"] == {("a",): value}
