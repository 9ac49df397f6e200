"""Whole outages, minute by minute: how often the model is called, who folds, and who waits for how long."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_convmemory import models
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.maintenance import integrity
from tests.outages import MINUTE, POISON, SLOW, Provider, Simulation, State

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

# One seed by day, so that a change does not fail because of an old defect, and many at night.
SEEDS = int(os.environ.get("CONVMEMORY_TEST_SEEDS", "1"))
# Many simulated minutes. What the stores do in them is tested on each database in test_pause and test_rebuild.
LONG = pytest.mark.only_on("sqlite")


@pytest.fixture(params=[0, *(pytest.param(seed, marks=pytest.mark.release) for seed in range(1, SEEDS))])
def simulate(request: pytest.FixtureRequest, db: None) -> Iterator[Callable[..., Simulation]]:
    """Make a simulation with each seed in turn. It ends with the test."""
    with contextlib.ExitStack() as stack:

        def make(provider: Provider, **options: Any) -> Simulation:
            return stack.enter_context(contextlib.closing(Simulation(provider, seed=request.param, **options)))

        yield make


def outage(state: State, minutes: float) -> Callable[[float], State]:
    """Return the states of a provider that is in ``state`` at first, and up afterwards."""
    return lambda now: state if now < minutes * MINUTE else State.UP


def fallback_versions() -> int:
    return models.Summary.objects.filter(fallback=True).count()


def test_what_became_due_shortly_before_the_model_answers_waits_for_no_sweep(
    simulate: Callable[..., Simulation],
) -> None:
    provider = Provider(outage(State.DOWN, 5))
    simulation = simulate(provider)
    for number in range(10):
        simulation.make_due(f"old {number}")
    live = [f"live {number}" for number in range(30)]
    for number, key in enumerate(live):
        simulation.at(5 * MINUTE - 60 + 5 * number, functools.partial(simulation.make_due, key))

    simulation.run(15)

    answered = next(call for call in provider.calls if call >= 5 * MINUTE)
    waited = {key: simulation.folded[key] - answered for key in live if simulation.became_due[key] < answered}
    assert len(waited) > 5
    assert max(waited.values()) < 45


def test_an_outage_of_40_minutes(
    simulate: Callable[..., Simulation], record_property: Callable[[str, object], None]
) -> None:
    provider = Provider(outage(State.DOWN, 40))
    simulation = simulate(provider, fallback=ExtractiveChatModel())
    for number in range(60):
        simulation.make_due(str(number))

    simulation.run(30)
    assert fallback_versions() == 0
    simulation.run(35)
    assert models.Summary.objects.valid().filter(stand_in=True).count() == 60
    assert not models.Session.objects.due().exists()
    simulation.run(40)
    calls = len(provider.calls)
    record_property("an outage of 40 minutes with 60 due sessions: calls in the outage", calls)
    assert calls <= 40

    simulation.run(60)
    assert not simulation.memory.pause.until_answered
    assert not models.Session.objects.filter(rebuild_after__isnull=False).exists()
    assert not models.Summary.objects.valid().filter(fallback=True).exists()
    assert list(integrity.check(models.Session.objects.all())) == []
    made_again = next(sample.minute for sample in simulation.samples if sample.minute > 40 and not sample.stand_ins)
    record_property("the same: calls that made the 60 summaries again", len(provider.calls) - calls)
    record_property("the same: minutes until all were made again", round(made_again - 40, 1))


@LONG
def test_an_outage_of_10_minutes_with_300_sessions(
    simulate: Callable[..., Simulation], record_property: Callable[[str, object], None]
) -> None:
    provider = Provider(outage(State.DOWN, 10))
    simulation = simulate(provider, fallback=ExtractiveChatModel(), workers=8)
    for number in range(300):
        simulation.at(number * 1.5, functools.partial(simulation.make_due, str(number)))

    simulation.run(25)

    failed = sum(call < 10 * MINUTE for call in provider.calls)
    record_property("an outage of 10 minutes in which 300 sessions become due: calls in the outage", failed)
    assert failed <= 20
    assert fallback_versions() == 0
    assert len(simulation.folded) == 300
    # Each call takes two seconds, and there are eight workers.
    last = max(simulation.folded.values()) / MINUTE - 10
    record_property("the same: minutes until all were folded", round(last, 1))
    assert last <= 3 + 300 * provider.seconds / 8 / MINUTE
    assert len(provider.calls) == failed + 300


@LONG
def test_a_session_that_always_times_out_does_not_pause_the_alias(simulate: Callable[..., Simulation]) -> None:
    simulation = simulate(Provider(), workers=4)
    simulation.make_due("slow", word=SLOW)
    for number in range(200):
        simulation.at(number * 7.5, functools.partial(simulation.make_due, f"healthy {number}"))

    simulation.run(30)

    assert simulation.most_failures == 0
    assert not any(sample.paused for sample in simulation.samples)
    assert max(simulation.waits("healthy")) <= 1
    assert "slow" not in simulation.folded


@LONG
def test_two_hundred_sessions_that_always_fail_among_a_thousand(
    simulate: Callable[..., Simulation], record_property: Callable[[str, object], None]
) -> None:
    simulation = simulate(Provider(), workers=8)
    for number in range(1000):
        kind = {0: "bad", 5: "slow"}.get(number % 10, "healthy")
        simulation.make_due(f"{kind} {number}", word={"bad": POISON, "slow": SLOW}.get(kind, ""))
    for number in range(120):
        simulation.at(90.0 * number + 31, functools.partial(simulation.make_due, f"later {number}"))
    simulation.run(240)

    waits = {word: simulation.waits(word) for word in ("healthy", "later")}
    assert (len(waits["healthy"]), len(waits["later"])) == (800, 120)
    record_property(
        "200 of 1 000 sessions always fail: longest wait of another, minutes", round(max(waits["healthy"]), 1)
    )
    # The first attempts of all take a quarter of an hour: nobody can know which will fail.
    assert max(waits["healthy"]) <= 20
    later = sorted(waits["later"])
    record_property("the same: wait of a session that becomes due later, median and longest, minutes", later[60::59])
    assert later[60] <= 0.1
    assert later[-1] <= 6
    # After its attempts, each costs at most one call an hour.
    last_hour = dt.timedelta(hours=3)
    times: dict[int, list[dt.datetime]] = collections.defaultdict(list)
    for session_id, at in models.Attempt.objects.order_by("started_at").values_list("session_id", "started_at"):
        times[session_id].append(at)
    ended = simulation.began + last_hour
    waited = [
        after - before for calls in times.values() for before, after in itertools.pairwise(calls) if after > ended
    ]
    assert waited
    assert min(waited) >= dt.timedelta(minutes=58)
    paused = sum(sample.paused for sample in simulation.samples)
    record_property("the same: minutes of 240 in which the alias was paused", paused)
    assert paused <= 12


@LONG
def test_a_provider_that_takes_20_calls_a_minute(
    simulate: Callable[..., Simulation], record_property: Callable[[str, object], None]
) -> None:
    provider = Provider(calls_a_minute=20)
    simulation = simulate(provider, fallback=ExtractiveChatModel(), workers=8)
    for number in range(200):
        simulation.make_due(str(number))
    attempts: set[int] = set()
    unleased = models.Session.objects.filter(lease_token="")
    for minute in range(1, 30):
        simulation.at(minute * MINUTE, lambda: attempts.update(unleased.values_list("attempts", flat=True)))

    simulation.run(30)

    last = max(simulation.folded.values()) / MINUTE
    record_property("20 calls a minute, 200 sessions: minutes, and calls", (round(last, 1), len(provider.calls)))
    assert len(simulation.folded) == 200
    assert last <= 20
    assert attempts == {0}
    assert simulation.most_failures == 0
    assert not any(sample.paused for sample in simulation.samples)
    assert fallback_versions() == 0


def test_a_wrong_key(simulate: Callable[..., Simulation]) -> None:
    provider = Provider(outage(State.WRONG_KEY, 60))
    simulation = simulate(provider, fallback=ExtractiveChatModel())
    for number in range(60):
        simulation.make_due(str(number))

    simulation.run(60)

    # The workers that were free made the first calls at once.
    at_once = sum(call < provider.calls[0] + 30 for call in provider.calls)
    assert at_once <= simulation.workers
    # One call a minute.
    assert all(later - earlier >= 59 for earlier, later in itertools.pairwise(provider.calls[at_once - 1 :]))
    assert len(provider.calls) <= 60
    assert not simulation.folded
    simulation.run(64)
    assert len(simulation.folded) == 60
    assert fallback_versions() == 0
    assert len(provider.calls) <= 60 + 60
