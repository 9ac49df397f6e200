"""What a memory makes of the breaker: which errors pause an alias, who probes, and who waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from django_convmemory import exceptions, models
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.clock import Clock
from django_convmemory.fold.failures import LONGEST_OUTAGE_WAIT
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.breaker import Reason
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.orm import ORMStore
from tests.folding import MarkerModel, build, keys_of, outcomes, session, talk, versions
from tests.outages import skip

DOWN = exceptions.ModelUnavailable("503")


class Outage:
    """Raises ``error`` in each call of a model, until it is None."""

    def __init__(self, error: Exception | None = DOWN) -> None:
        self.error = error

    def __call__(self, request: ChatRequest) -> None:
        if self.error is not None:
            raise self.error


def memory_with(outage: Outage, *keys: str, **options: Any) -> ConversationMemory:
    """Return a memory whose sessions ``keys`` are due, in this order."""
    memory = build(MarkerModel(outage), **options)
    for key in keys:
        talk(memory, 10, key=key)
    return memory


def calls(memory: ConversationMemory) -> int:
    assert isinstance(memory.model, MarkerModel)
    return len(memory.model.requests)


def compact(memory: ConversationMemory, *keys: str) -> list[str]:
    """Compact the sessions as tasks do, when the time of their next attempts has come. Return the outcomes."""
    results = []
    for key in keys:
        models.Session.objects.update(next_attempt_at=None)
        results.append(str(memory.compact_id(session(key).pk).outcome))
    return results


def seconds_left(memory: ConversationMemory) -> float:
    state = memory.store.breaker("default")
    assert state.until is not None
    return (state.until - state.now).total_seconds()


def end_pause() -> None:
    models.AliasState.objects.update(until=Clock(-1))


@pytest.mark.django_db
def test_the_third_failing_session_opens_the_breaker() -> None:
    memory = memory_with(Outage(), *"abcd")

    compact(memory, "a", "a", "a", "b")
    assert not memory.paused
    assert calls(memory) == 4
    compact(memory, "c", "d", "a")

    assert memory.paused
    assert calls(memory) == 5
    assert memory.breaker.error == "ModelUnavailable: 503"
    # Nothing is counted against a session that was not tried.
    assert (session("d").attempts, session("d").last_error) == (0, "")


@pytest.mark.django_db
def test_it_pauses_for_20_40_and_60_seconds() -> None:
    memory = memory_with(Outage(), *"abc")
    compact(memory, *"abc")
    pauses = []
    for _ in range(4):
        state = memory.breaker
        assert state.until is not None
        pauses.append((state.until - state.now).total_seconds())
        end_pause()
        compact(memory, "a")

    assert calls(memory) == 3 + 4
    for seconds, shortest in zip(pauses, (20, 40, 60, 60), strict=True):
        assert shortest - 5 < seconds <= shortest * 1.25


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("retry_after", "shortest", "longest"), [(300.0, 295, 375), (1e12, 3595, 4500), (-5.0, 15, 25)]
)
def test_it_pauses_for_retry_after_within_reason(retry_after: float, shortest: float, longest: float) -> None:
    memory = memory_with(Outage(exceptions.ModelUnavailable("503", retry_after=retry_after)), *"abc")
    compact(memory, *"abc")

    state = memory.breaker
    assert state.until is not None
    assert shortest < (state.until - state.now).total_seconds() <= longest


@pytest.mark.django_db
@pytest.mark.parametrize(
    "answer",
    [
        None,
        exceptions.ContentRefused("no"),
        exceptions.BadModelOutput("blank"),
        exceptions.ContextLengthExceeded("long"),
    ],
    ids=["a summary", "a refusal", "a bad text", "too long"],
)
def test_any_answer_closes_it(answer: Exception | None) -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    end_pause()
    outage.error = answer

    models.Session.objects.update(next_attempt_at=None)
    assert memory.compact_id(session("a").pk).recovered

    assert not memory.breaker.open
    assert memory.breaker.failures == 0
    outage.error = None
    assert compact(memory, "b", "c") == ["published", "published"]


@pytest.mark.django_db
def test_only_the_first_answer_is_a_recovery() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    end_pause()
    outage.error = None

    models.Session.objects.update(next_attempt_at=None)
    assert [memory.compact_id(session(key).pk).recovered for key in "abc"] == [True, False, False]


@pytest.mark.django_db
def test_a_rejected_request_says_nothing_about_the_model() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abcd")
    compact(memory, "a", "b")
    outage.error = exceptions.RequestRejected("400")
    compact(memory, *"cdcd")

    assert (memory.breaker.failures, memory.breaker.open) == (2, False)
    outage.error = DOWN
    compact(memory, "c")
    assert memory.paused


@pytest.mark.django_db
def test_a_rejected_probe_does_not_close_it() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    end_pause()
    outage.error = exceptions.RequestRejected("400")

    compact(memory, "a", "b")

    assert calls(memory) == 4
    assert memory.breaker.open
    assert 0 < seconds_left(memory) <= 25


@pytest.mark.django_db
@pytest.mark.parametrize(("retry_after", "longest"), [(None, 25), (300.0, 375)])
def test_a_probe_that_meets_a_rate_limit_pauses_for_it_and_nobody_stands_in(
    retry_after: float | None, longest: float
) -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc", fallback=ExtractiveChatModel())
    compact(memory, *"abc")
    skip(1700.0)
    outage.error = exceptions.RateLimited("429", retry_after=retry_after)

    compact(memory, "a")

    assert longest * 0.75 <= seconds_left(memory) <= longest
    skip(200.0)
    assert memory.breaker.silent_seconds < 300
    compact(memory, *"bc")
    assert not any(versions(key) for key in "abc")


@pytest.mark.django_db
def test_a_rate_limit_after_the_probe_was_answered_pauses_the_alias() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc", max_chunk_tokens=100)
    talk(memory, 40, key="a")
    compact(memory, *"abc")
    end_pause()
    answers = iter([None, exceptions.RateLimited("429")])
    assert isinstance(memory.model, MarkerModel)

    def answer_once(request: ChatRequest) -> None:
        outage.error = next(answers)
        outage(request)

    memory.model.meanwhile = answer_once

    compact(memory, "a")

    assert memory.breaker.reason == Reason.RATE_LIMIT
    assert memory.paused


@pytest.mark.django_db
def test_a_rate_limit_pauses_the_alias_for_seconds_and_lets_all_go_on() -> None:
    outage = Outage(exceptions.RateLimited("429"))
    memory = memory_with(outage, *"abc", max_attempts=1, fallback=ExtractiveChatModel())
    compact(memory, *"abc")

    assert calls(memory) == 1
    assert (session("a").attempts, memory.breaker.failures) == (0, 0)
    state = memory.breaker
    assert state.until is not None
    assert 0 < (state.until - state.now).total_seconds() <= 6.25
    assert memory.sweep() == []
    end_pause()
    outage.error = None
    models.Session.objects.update(next_attempt_at=None)
    assert keys_of(memory.sweep()) == ["a", "b", "c"]
    assert compact(memory, *"abc") == ["published"] * 3
    assert not any(versions(key)[0].fallback for key in "abc")


@pytest.mark.django_db
def test_a_rate_limit_in_an_outage_does_not_shorten_it() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    end_pause()
    outage.error = exceptions.RateLimited("429", retry_after=1.0)

    compact(memory, *"abc")

    assert calls(memory) == 4
    assert memory.breaker.reason == Reason.OUTAGE
    assert memory.paused


@pytest.mark.django_db
def test_failures_of_the_fallback_do_not_count() -> None:
    memory = memory_with(Outage(exceptions.ContentRefused("no")), *"abcd", fallback=MarkerModel(Outage()))

    compact(memory, *"abcd")

    assert outcomes() == ["refused", "unavailable"] * 4
    assert (memory.breaker.failures, memory.breaker.open) == (0, False)


@pytest.mark.django_db
def test_asked_waits_for_the_pause_and_despite_pause_does_not() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    outage.error = None

    assert memory.compact("a") == "stalled"
    assert memory.compact_id(session("a").pk, asked=True).outcome == "stalled"
    assert calls(memory) == 3
    assert memory.compact("a", despite_pause=True) == "published"
    assert not memory.paused


@pytest.mark.django_db
def test_an_operators_failing_call_makes_the_pause_longer() -> None:
    memory = memory_with(Outage(), *"abc")
    compact(memory, *"abc")

    assert memory.compact("a", despite_pause=True) == "stalled"

    assert (calls(memory), memory.breaker.failures) == (4, 4)
    assert memory.paused


class HintingScheduler(NullScheduler):
    """Says that a task will come, and sends none."""

    queues = True


@pytest.mark.django_db
def test_a_task_that_finds_a_pause_lets_the_sweep_find_its_session() -> None:
    memory = memory_with(Outage(), *"abcd", scheduler=HintingScheduler())
    models.Session.objects.update(due_since=Clock(-100))
    assert len(memory.sweep()) == 4
    models.Session.objects.update(queued_at=Clock(-10))
    compact(memory, *"abc")

    assert compact(memory, "d") == ["stalled"]

    assert memory.sweep() == []
    end_pause()
    assert keys_of(memory.sweep()) == ["d"]


@pytest.mark.django_db
def test_after_a_pause_the_sweep_sends_the_session_with_the_fewest_attempts() -> None:
    memory = memory_with(Outage(), *"abcde")
    compact(memory, "a", "b", "c")
    models.Session.objects.update(next_attempt_at=None)
    models.Session.objects.exclude(key="d").update(due_since=Clock(-5))

    assert memory.sweep(queued_for=300) == []
    order = []
    for _ in range(5):
        end_pause()
        order += keys_of(memory.sweep(limit=100, queued_for=300))

    # By attempts, then by the time at which they became due.
    assert order == ["e", "d", "a", "b", "c"]


@pytest.mark.django_db
def test_a_session_waits_five_minutes_at_most_after_a_failure_of_the_provider() -> None:
    memory = memory_with(Outage(exceptions.ModelUnavailable("503", retry_after=3000.0)), "a", max_attempts=2)

    for _ in range(12):
        models.Session.objects.update(next_attempt_at=None)
        assert memory.compact_id(session("a").pk, despite_pause=True).delay <= LONGEST_OUTAGE_WAIT
    assert session("a").attempts == 12


@pytest.mark.django_db
def test_a_probe_whose_session_is_not_due_leaves_the_probe_to_another() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    talk(memory, 1, key="short")
    end_pause()
    outage.error = None

    assert compact(memory, "short", "a") == ["not_due", "published"]


@pytest.mark.django_db
def test_a_probe_whose_session_is_busy_leaves_the_probe_to_another() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    models.Session.objects.filter(key="b").update(lease_token="x", lease_expires_at=Clock(60))
    end_pause()
    outage.error = None

    assert compact(memory, "b", "a") == ["busy", "published"]


@pytest.mark.django_db
def test_a_probe_whose_process_is_told_to_end_before_it_calls_leaves_the_probe_to_another() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    end_pause()
    models.Session.objects.update(next_attempt_at=None)

    class Stopping(ORMStore):
        def messages(self, *arguments: Any) -> Any:
            raise KeyboardInterrupt

    store, memory.store = memory.store, Stopping()
    with pytest.raises(KeyboardInterrupt):
        memory.compact("a")
    memory.store = store
    outage.error = None

    assert compact(memory, "b") == ["published"]


@pytest.mark.django_db
def test_while_a_probe_calls_the_model_nobody_else_does() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    end_pause()
    seen: list[str] = []

    def meanwhile(request: ChatRequest) -> None:
        if not seen:
            seen.append("")
            seen[0] = memory.compact("b")

    assert isinstance(memory.model, MarkerModel)
    memory.model.meanwhile = meanwhile
    models.Session.objects.update(next_attempt_at=None)

    assert memory.compact("a") == "published"
    assert seen == ["stalled"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_on("postgresql", "mariadb")
def test_of_many_threads_one_probes() -> None:
    store, barrier = ORMStore(), threading.Barrier(12)
    store.open_breaker("default", Reason.OUTAGE, "503", seconds=-1.0)
    probes: list[bool] = []

    def probe() -> None:
        try:
            barrier.wait(30)
            probes.append(store.probe("default", seconds=90.0))
        finally:
            connection.close()

    threads = [threading.Thread(target=probe) for _ in range(barrier.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(probes) == [False] * 11 + [True]


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_on("postgresql", "mariadb")
def test_no_failure_of_many_threads_is_lost() -> None:
    store, barrier = ORMStore(), threading.Barrier(12)

    def fail(session_id: int) -> None:
        try:
            barrier.wait(30)
            for _ in range(5):
                store.count_failure("default", session_id, "503")
                store.open_breaker("default", Reason.OUTAGE, "503", seconds=60.0)
        finally:
            connection.close()

    threads = [threading.Thread(target=fail, args=(number,)) for number in range(barrier.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert store.breaker("default").failures == 60


@pytest.mark.django_db
def test_the_sweep_sends_one_rebuild_as_the_probe() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc", fallback=ExtractiveChatModel(), fallback_after=1)
    compact(memory, *"abc")
    skip(10.0)
    assert compact(memory, *"abc") == ["published"] * 3
    assert memory.breaker.paused
    assert memory.sweep_rebuilds() == []
    end_pause()

    assert keys_of(memory.sweep_rebuilds()) == ["a"]

    assert memory.carry_out(session("a").pk, "replace_stand_ins").outcome == "stalled"
    assert memory.breaker.paused
    assert memory.sweep_rebuilds() == []
    end_pause()
    outage.error = None
    [session_id] = memory.sweep_rebuilds()
    assert keys_of([session_id]) == ["b"]
    result = memory.carry_out(session_id, "replace_stand_ins")
    assert (result.outcome, result.recovered) == ("published", True)
    assert keys_of(memory.sweep_rebuilds()) == ["c"]
