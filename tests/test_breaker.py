"""The breaker of an alias: what opens it, how long it pauses, who probes, and what closes it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from django_convmemory import exceptions
from django_convmemory.messages import ChatMessage
from django_convmemory.rules import breaker
from django_convmemory.rules.breaker import Breaker, Reason
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import AttemptOutcome, AttemptRecord, Claim, NewVersion
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.either import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests.folding import MarkerModel, build, talk
from tests.outages import skip

NOW = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
DOWN = exceptions.ModelUnavailable("503")


# The rules by themselves.


@hypothesis.given(failures=st.integers(0, 10**9))
def test_the_pause_doubles_from_the_third_failure_on_up_to_a_minute(failures: int) -> None:
    seconds = {0: 20, 1: 20, 2: 20, 3: 20, 4: 40}.get(failures, 60)

    assert seconds <= breaker.pause(Reason.OUTAGE, failures=failures) <= seconds * 1.25


def test_pauses_differ_so_that_processes_do_not_come_back_together() -> None:
    pauses = {breaker.pause(Reason.OUTAGE, failures=3) for _ in range(200)}

    assert len(pauses) > 100
    assert max(pauses) - min(pauses) > 2.5


@hypothesis.given(
    reason=st.sampled_from(Reason),
    failures=st.integers(0, 10**6),
    retry_after=st.one_of(st.none(), st.floats()),
)
def test_no_retry_after_makes_a_pause_shorter_or_longer_than_an_hour(
    reason: Reason, failures: int, retry_after: float | None
) -> None:
    outage = {4: 40.0}.get(failures, 20.0 if failures < 4 else 60.0)
    shortest = {Reason.OUTAGE: outage, Reason.RATE_LIMIT: 5.0, Reason.MISCONFIGURED: 60.0}[reason]

    seconds = breaker.pause(reason, failures=failures, retry_after=retry_after)

    assert shortest <= seconds <= breaker.LONGEST_RETRY_AFTER * 1.25
    if retry_after is not None and retry_after <= breaker.LONGEST_RETRY_AFTER:
        assert seconds >= retry_after
    if retry_after is not None and math.isnan(retry_after):
        assert seconds <= shortest * 1.25


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.ModelUnavailable("503"), Reason.OUTAGE),
        (exceptions.RateLimited("429"), Reason.RATE_LIMIT),
        (exceptions.ModelMisconfigured("401"), Reason.MISCONFIGURED),
        (exceptions.RequestRejected("400"), None),
        (exceptions.BadModelOutput("blank"), None),
        (exceptions.ContentRefused("no"), None),
        (exceptions.ContextLengthExceeded("too long"), None),
        (ZeroDivisionError(), None),
    ],
)
def test_which_errors_pause_an_alias(error: Exception, reason: Reason | None) -> None:
    assert breaker.reason_of(error) == reason


def at(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("state", "paused", "is_open", "silent"),
    [
        (Breaker(NOW), False, False, 0),
        (Breaker(NOW, 3, 1, at(-90), at(20), Reason.OUTAGE), True, True, 90),
        (Breaker(NOW, 3, 1, at(-90), at(-1), Reason.OUTAGE), False, True, 90),
        (Breaker(NOW, 0, None, at(-90), at(20), Reason.MISCONFIGURED), True, True, 0),
        (Breaker(NOW, 0, None, None, at(5), Reason.RATE_LIMIT), True, False, 0),
        (Breaker(NOW, 0, None, None, at(-5), Reason.RATE_LIMIT), False, False, 0),
        (Breaker(NOW, 3, 1, at(-9000), at(-899), Reason.OUTAGE), False, True, 9000),
        (Breaker(NOW, 3, 1, at(-9000), at(-901), Reason.OUTAGE), False, True, 0),
        # One failure is no outage, however long ago it was.
        (Breaker(NOW, 1, 1, at(-9000)), False, False, 0),
        (Breaker(NOW, 1, 1, at(-9000), at(-5), Reason.RATE_LIMIT), False, False, 0),
    ],
)
def test_what_a_state_means(state: Breaker, paused: bool, is_open: bool, silent: float) -> None:
    assert (state.paused, state.open, state.silent_seconds) == (paused, is_open, silent)


@pytest.mark.parametrize("reason", [Reason.MISCONFIGURED, Reason.RATE_LIMIT])
def test_only_an_outage_lets_the_fallback_stand_in_at_once(reason: Reason) -> None:
    assert Breaker(NOW).silent_for(0)
    assert Breaker(NOW, 3, 1, at(-90), at(5), Reason.OUTAGE).silent_for(90)
    assert not Breaker(NOW, 3, 1, at(-90), at(5), Reason.OUTAGE).silent_for(91)
    assert not Breaker(NOW, 3, 1, at(-90), at(5), reason).silent_for(0)


# The two stores, which must agree.


@dataclasses.dataclass
class Kept:
    """A store, and ``skip`` to let time pass for it."""

    store: Store
    skip: Callable[[float], None]

    @property
    def state(self) -> Breaker:
        return self.store.breaker("default")

    @property
    def seconds_left(self) -> float:
        """The rest of the pause."""
        assert self.state.until is not None
        return (self.state.until - self.state.now).total_seconds()

    def fail(self, *session_ids: int) -> list[int]:
        return [self.store.count_failure("default", session_id, "503") for session_id in session_ids]

    def open(self, reason: Reason = Reason.OUTAGE, seconds: float = 20.0) -> None:
        self.store.open_breaker("default", reason, "down", seconds=seconds)

    def probe(self) -> bool:
        return self.store.probe("default", seconds=90.0)


def in_memory() -> Kept:
    offset = [0.0]
    began = NOW.timestamp()

    def let_pass(seconds: float) -> None:
        offset[0] += seconds

    return Kept(InMemoryStore(lambda: began + offset[0]), let_pass)


RULE = Threshold(tokens=60)
VERSION: dict[str, Any] = {
    "first_position": 1,
    "last_position": 2,
    "covered_count": 2,
    "covered_tokens": 20,
    "text": "They talked.",
    "tokens": 3,
    "model": "m",
    "shortened": False,
    "prompt_hash": "",
}


def claimed(store: Store, key: str) -> Claim:
    """Take the lease of a new session that is due."""
    memory = build(MarkerModel(), store=store)
    talk(memory, 10, key=key)
    session_id = store.find(memory.resolve(key))
    assert session_id is not None
    claim = store.claim(session_id, RULE, lease=60.0, prompt_hash="", force=False)
    assert isinstance(claim, Claim)
    return claim


def attempt(outcome: AttemptOutcome, *, ago: float) -> AttemptRecord:
    return AttemptRecord(first_position=1, last_position=2, due_seconds=0.0, duration_seconds=ago, outcome=outcome)


@pytest.fixture(params=["orm", "in_memory"])
def kept(request: pytest.FixtureRequest, db: None) -> Kept:
    return Kept(ORMStore(), skip) if request.param == "orm" else in_memory()


def test_a_closed_breaker_counts_a_session_once_in_a_row(kept: Kept) -> None:
    assert kept.fail(1, 1, 1, 2, 2, 1) == [1, 1, 1, 2, 2, 3]
    assert (kept.state.failures, kept.state.last_session, kept.state.error) == (3, 1, "503")


@pytest.mark.parametrize("stand_in", [False, True])
def test_a_session_does_not_count_if_another_was_folded_meanwhile(stand_in: bool, kept: Kept) -> None:
    """But it counts if the fallback has stood in, which says nothing about the alias's own model."""
    slow, folded = claimed(kept.store, "slow"), claimed(kept.store, "folded")
    kept.store.record(slow, attempt(AttemptOutcome.UNAVAILABLE, ago=60.0))
    version = NewVersion(**VERSION, fallback=stand_in, stand_in=stand_in)
    assert kept.store.publish(folded, version, attempt(AttemptOutcome.PUBLISHED, ago=30.0), RULE, lease=60.0)

    # Its last failure was before that, and so was the beginning of another session's call.
    assert kept.fail(slow.session_id) == [int(stand_in)]
    assert kept.store.count_failure("default", 99, "503", seconds=45.0) == 2 * stand_in
    # This call began later.
    assert kept.store.count_failure("default", 98, "503", seconds=15.0) == 1 + 2 * stand_in
    # An open breaker counts each failure.
    kept.open()
    assert kept.fail(slow.session_id) == [2 + 2 * stand_in]


def test_an_open_breaker_counts_each_failure(kept: Kept) -> None:
    kept.fail(1, 2, 3)
    kept.open()

    assert kept.fail(3, 3) == [4, 5]


def test_after_a_rate_limit_a_session_counts_once_in_a_row(kept: Kept) -> None:
    kept.open(Reason.RATE_LIMIT, 5.0)
    kept.skip(6.0)

    assert kept.fail(1, 1, 1) == [1, 1, 1]


@pytest.mark.parametrize("rate_limit", [False, True])
def test_an_outage_begins_when_the_breaker_opens(rate_limit: bool, kept: Kept) -> None:
    # The first failure may be days old: one session timed out, and nobody wrote since.
    kept.fail(1)
    kept.skip(9000.0)
    if rate_limit:
        kept.open(Reason.RATE_LIMIT, 5.0)
    kept.fail(2, 3)
    kept.open()

    assert kept.state.silent_seconds == pytest.approx(0.0, abs=5.0)
    kept.skip(100.0)
    kept.fail(2)
    kept.open()
    assert kept.state.silent_seconds == pytest.approx(100.0, abs=5.0)


def test_an_outage_that_nobody_has_looked_at_for_long_may_be_over(kept: Kept) -> None:
    kept.fail(1, 2, 3)
    kept.open(seconds=20.0)
    kept.skip(20.0 + breaker.KNOWN_FOR - 10.0)
    assert kept.state.silent_seconds > breaker.KNOWN_FOR
    kept.skip(20.0)

    assert kept.state.silent_seconds == 0
    # Nor does the fallback stand in while the probe waits for an answer.
    assert kept.probe()
    assert kept.state.silent_seconds == pytest.approx(0.0, abs=5.0)
    kept.skip(30.0)
    kept.fail(1)
    kept.open()
    assert kept.state.silent_seconds == pytest.approx(30.0, abs=5.0)


def test_an_outage_that_follows_a_wrong_configuration_begins_with_its_first_failure(kept: Kept) -> None:
    kept.open(Reason.MISCONFIGURED, 60.0)
    kept.skip(4000.0)
    kept.fail(1)
    kept.open()

    assert kept.state.silent_seconds == pytest.approx(0.0, abs=5.0)
    kept.skip(50.0)
    kept.open()
    assert kept.state.silent_seconds == pytest.approx(50.0, abs=5.0)


def test_one_probes_when_the_pause_has_ended(kept: Kept) -> None:
    assert not kept.probe()
    kept.open()
    assert not kept.probe()
    kept.skip(21.0)

    assert [kept.probe() for _ in range(3)] == [True, False, False]
    assert kept.state.paused
    assert kept.state.open


def test_a_probe_that_is_killed_does_not_keep_the_others_from_probing(kept: Kept) -> None:
    kept.open()
    kept.skip(21.0)
    assert kept.probe()
    kept.skip(91.0)

    assert not kept.state.paused
    assert kept.probe()


def test_a_probe_that_made_no_call_ends_the_pause(kept: Kept) -> None:
    kept.open()
    kept.skip(21.0)
    assert kept.probe()
    kept.store.end_probe("default")

    assert not kept.state.paused
    assert kept.state.open
    assert kept.probe()


def test_a_probe_that_found_nothing_out_leaves_a_shorter_pause(kept: Kept) -> None:
    kept.open()
    kept.skip(500.0)
    kept.probe()

    assert kept.store.end_probe("default", seconds=20.0)
    assert kept.seconds_left == pytest.approx(20.0, abs=5.0)
    assert kept.state.silent_seconds == pytest.approx(500.0, abs=5.0)
    assert kept.store.end_probe("default", seconds=30.0, silent=False)
    assert kept.seconds_left == pytest.approx(30.0, abs=5.0)
    assert kept.state.silent_seconds == pytest.approx(0.0, abs=5.0)


def test_there_is_no_probe_after_a_rate_limit(kept: Kept) -> None:
    kept.open(Reason.RATE_LIMIT, 5.0)
    assert not kept.store.end_probe("default")
    assert kept.state.paused
    kept.skip(6.0)

    assert not kept.probe()
    assert not kept.state.paused


def test_a_rate_limit_does_not_end_an_outage(kept: Kept) -> None:
    kept.fail(1, 2, 3)
    kept.open(Reason.OUTAGE, 60.0)
    kept.open(Reason.RATE_LIMIT, 5.0)

    assert kept.state.reason == Reason.OUTAGE
    assert kept.seconds_left == pytest.approx(60.0, abs=5.0)


def test_a_rate_limit_does_not_shorten_another_one(kept: Kept) -> None:
    kept.open(Reason.RATE_LIMIT, 600.0)
    kept.open(Reason.RATE_LIMIT, 5.0)
    assert kept.seconds_left == pytest.approx(600.0, abs=5.0)

    kept.open(Reason.RATE_LIMIT, 900.0)
    assert kept.seconds_left == pytest.approx(900.0, abs=5.0)


def test_an_outage_replaces_a_rate_limit(kept: Kept) -> None:
    kept.open(Reason.RATE_LIMIT, 5.0)
    kept.open(Reason.OUTAGE, 60.0)

    assert kept.state.reason == Reason.OUTAGE
    assert kept.seconds_left == pytest.approx(60.0, abs=5.0)


def test_an_answer_closes_the_breaker(kept: Kept) -> None:
    assert not kept.store.close_breaker("default")
    kept.fail(1, 2, 3)
    kept.open()

    assert kept.store.close_breaker("default")

    state = kept.state
    assert state == Breaker(state.now, until=state.until)
    assert not state.open
    assert not state.paused
    assert not kept.store.close_breaker("default")


def test_an_answer_forgets_failures_that_did_not_open_the_breaker(kept: Kept) -> None:
    kept.fail(1, 2)

    assert not kept.store.close_breaker("default")

    assert (kept.state.failures, kept.state.since) == (0, None)
    assert kept.fail(2, 3, 2) == [1, 2, 3]


def test_an_answer_does_not_end_a_rate_limit(kept: Kept) -> None:
    kept.open(Reason.RATE_LIMIT, 5.0)

    assert not kept.store.close_breaker("default")

    assert kept.state.paused


def test_each_alias_has_a_breaker_of_its_own(kept: Kept) -> None:
    kept.fail(1, 2, 3)
    kept.open()

    assert kept.store.breaker("other").failures == 0
    assert not kept.store.breaker("other").paused
    assert not kept.store.close_breaker("other")
    assert kept.state.paused


# What was queued before the end of a pause may have met it.


def swept(kept: Kept) -> list[int]:
    """Return what a sweep takes of the alias's sessions, all of which are due."""
    return kept.store.sweep("default", limit=10, due_for=60.0, queued_for=300.0)


def test_a_sweep_takes_what_has_been_due_for_a_minute_and_is_not_queued(kept: Kept) -> None:
    claim = claimed(kept.store, "a")
    kept.store.release(claim, RULE)
    kept.skip(59.0)
    assert swept(kept) == []
    kept.skip(2.0)
    assert swept(kept) == [claim.session_id]
    assert swept(kept) == []
    kept.skip(301.0)
    assert swept(kept) == [claim.session_id]


@pytest.mark.parametrize("reason", [Reason.OUTAGE, Reason.RATE_LIMIT])
def test_a_sweep_takes_again_what_was_queued_before_the_end_of_a_pause(reason: Reason, kept: Kept) -> None:
    claim = claimed(kept.store, "a")
    kept.store.release(claim, RULE)
    kept.skip(61.0)
    assert swept(kept) == [claim.session_id]
    kept.skip(1.0)
    kept.open(reason, 5.0)
    kept.skip(4.0)
    assert swept(kept) == []
    assert kept.store.waiting("default", after=1.0, within=300.0, limit=10) == 1

    kept.skip(1.0)
    if reason == Reason.OUTAGE:
        assert kept.store.close_breaker("default")
        kept.skip(1.0)

    assert kept.store.waiting("default", after=1.0, within=300.0, limit=10) == 0
    assert swept(kept) == [claim.session_id]
    kept.skip(1.0)
    assert swept(kept) == []


def test_a_mark_from_before_the_session_became_due_does_not_count(kept: Kept) -> None:
    claim = claimed(kept.store, "a")
    kept.store.release(claim, Threshold(), queued=True)
    assert not kept.store.is_due(claim.session_id)
    kept.skip(1.0)
    build(MarkerModel(), store=kept.store, scheduler=NullScheduler()).append("a", ChatMessage.human("Hello again."))
    kept.skip(61.0)

    assert swept(kept) == [claim.session_id]
