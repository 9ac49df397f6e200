"""The pause of an alias: who summarizes a session, its own model, the fallback, or nobody for now.

First the rules by themselves, then the two stores, then whole runs.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import threading
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from django.db import connection
from hypothesis import strategies as st

from django_convmemory import exceptions, models
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.clock import Clock
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules import pause as rules
from django_convmemory.rules.pause import Admission, Choice, Pause, Reason, Situation
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import AttemptOutcome, AttemptRecord, Claim, NewVersion, Release, SessionName
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store import Store, pause as pauses
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests.folding import MarkerModel, build, keys_of, outcomes, session, talk, versions
from tests.outages import skip

NOW = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
DOWN = exceptions.ModelUnavailable("503")
RATE_LIMIT = exceptions.RateLimited("429")
WRONG_KEY = exceptions.ModelMisconfigured("401")
REJECTED = exceptions.RequestRejected("400")


# How long.


@hypothesis.given(failures=st.integers(0, 10**9))
def test_the_pause_doubles_from_the_third_failure_on_up_to_a_minute(failures: int) -> None:
    seconds = {0: 20, 1: 20, 2: 20, 3: 20, 4: 40}.get(failures, 60)

    assert seconds <= rules.pause_seconds(Reason.OUTAGE, failures=failures) <= seconds * 1.25


def test_pauses_differ_so_that_processes_do_not_come_back_together() -> None:
    pauses = {rules.pause_seconds(Reason.OUTAGE, failures=3) for _ in range(200)}

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

    seconds = rules.pause_seconds(reason, failures=failures, retry_after=retry_after)

    assert shortest <= seconds <= rules.LONGEST_RETRY_AFTER * 1.25
    if retry_after is not None and retry_after <= rules.LONGEST_RETRY_AFTER:
        assert seconds >= retry_after
    if retry_after is not None and math.isnan(retry_after):
        assert seconds <= shortest * 1.25


# What a call does to the alias.


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DOWN, Reason.OUTAGE),
        (RATE_LIMIT, Reason.RATE_LIMIT),
        (WRONG_KEY, Reason.MISCONFIGURED),
        (REJECTED, None),
        (exceptions.BadModelOutput("blank"), None),
        (exceptions.ContentRefused("no"), None),
        (exceptions.ContextLengthExceeded("too long"), None),
        (ZeroDivisionError(), None),
    ],
)
def test_which_errors_pause_an_alias(error: Exception, reason: Reason | None) -> None:
    assert rules.reason_of(error) == reason


def at(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def later(pause: Pause, seconds: float) -> Pause:
    return pause._replace(now=pause.now + dt.timedelta(seconds=seconds))


def fail(pause: Pause, *session_ids: int, error: Exception = DOWN, counts: bool = True, probe: bool = False) -> Pause:
    until = pause.paused_until if probe else None
    for session_id in session_ids:
        pause = pause.failed(error, session_id, text=str(error), counts=counts, probe_until=until)
    return pause


def left(pause: Pause) -> float:
    """The rest of the pause."""
    assert pause.paused_until is not None
    return (pause.paused_until - pause.now).total_seconds()


PAUSED = fail(Pause(NOW), 1, 2, 3)
ENDED = later(PAUSED, 26.0)
PROBED = ENDED.probed(90.0)


@pytest.mark.parametrize(
    ("pause", "paused", "until_answered", "silent"),
    [
        (Pause(NOW), False, False, 0),
        (Pause(NOW, 3, 1, at(-90), at(20), Reason.OUTAGE), True, True, 90),
        (Pause(NOW, 3, 1, at(-90), at(-1), Reason.OUTAGE), False, True, 90),
        (Pause(NOW, 0, None, at(-90), at(20), Reason.MISCONFIGURED), True, True, 0),
        (Pause(NOW, 0, None, None, at(5), Reason.RATE_LIMIT), True, False, 0),
        (Pause(NOW, 0, None, None, at(-5), Reason.RATE_LIMIT), False, False, 0),
        (Pause(NOW, 3, 1, at(-9000), at(-899), Reason.OUTAGE), False, True, 9000),
        (Pause(NOW, 3, 1, at(-9000), at(-901), Reason.OUTAGE), False, True, 0),
        # One failure is no outage, however long ago it was.
        (Pause(NOW, 1, 1, at(-9000)), False, False, 0),
        (Pause(NOW, 1, 1, at(-9000), at(-5), Reason.RATE_LIMIT), False, False, 0),
    ],
)
def test_what_a_state_means(pause: Pause, paused: bool, until_answered: bool, silent: float) -> None:
    assert (pause.paused, pause.until_answered, pause.silent_seconds) == (paused, until_answered, silent)
    assert pause.holds == (paused or until_answered)
    assert pause.sent_by_sweep(100) == (0 if paused else 1 if until_answered else 100)


@pytest.mark.parametrize("reason", [Reason.MISCONFIGURED, Reason.RATE_LIMIT])
def test_only_an_outage_counts_as_silence(reason: Reason) -> None:
    assert Pause(NOW).silent_for(0)
    assert Pause(NOW, 3, 1, at(-90), at(5), Reason.OUTAGE).silent_for(90)
    assert not Pause(NOW, 3, 1, at(-90), at(5), Reason.OUTAGE).silent_for(91)
    assert not Pause(NOW, 3, 1, at(-90), at(5), reason).silent_for(0)


def test_a_session_counts_once_in_a_row_until_there_is_a_pause() -> None:
    pause, failures = Pause(NOW), []
    for session_id in (1, 1, 1, 2, 2):
        pause = fail(pause, session_id)
        failures.append(pause.failures)
    assert failures == [1, 1, 1, 2, 2]
    assert (pause.last_session, pause.error, pause.holds) == (2, "503", False)

    pause = fail(pause, 1)

    assert (pause.failures, pause.reason) == (3, Reason.OUTAGE)
    assert 20 <= left(pause) <= 25
    assert [fail(pause, 1).failures, fail(pause, 1, 1).failures] == [4, 5]
    assert 60 <= left(fail(pause, 1, 1)) <= 75


def test_a_session_does_not_count_if_another_was_folded_meanwhile() -> None:
    assert fail(Pause(NOW), 1, 2, 3, counts=False) == Pause(NOW)
    # During a pause each failure counts.
    assert fail(PAUSED, 1, counts=False).failures == 4


def test_one_wrong_key_pauses_the_alias_and_one_rejected_request_does_not() -> None:
    pause = fail(Pause(NOW), 1, error=WRONG_KEY)
    assert (pause.reason, pause.error, pause.failures, pause.since) == (Reason.MISCONFIGURED, "401", 0, NOW)
    assert 60 <= left(pause) <= 75

    assert fail(Pause(NOW), 1, 2, 3, 4, error=REJECTED) == Pause(NOW)


def test_a_rate_limit_pauses_for_seconds_and_never_instead_of_something_longer() -> None:
    pause = fail(Pause(NOW), 1, error=RATE_LIMIT)
    assert 5 <= left(pause) <= 6.25
    assert (pause.failures, pause.since, pause.until_answered) == (0, None, False)
    # After it, failures count as before.
    assert fail(later(pause, 7.0), 1, 1, 2).failures == 2

    longer = fail(pause, 1, error=exceptions.RateLimited("429", retry_after=600.0))
    assert 600 <= left(longer) <= 750
    assert fail(longer, 1, error=RATE_LIMIT) == longer
    assert fail(PAUSED, 1, error=RATE_LIMIT) == PAUSED
    # An outage replaces it.
    assert fail(longer, 1, 2, 3).reason == Reason.OUTAGE


@pytest.mark.parametrize("error", [RATE_LIMIT, None])
def test_an_outage_begins_with_the_pause(error: Exception | None) -> None:
    # The first failure may be days old: one session timed out, and nobody wrote since.
    pause = later(fail(Pause(NOW), 1), 9000.0)
    if error is not None:
        pause = later(fail(pause, 1, error=error), 10.0)
    pause = fail(pause, 2, 3)

    assert pause.silent_seconds == 0.0
    assert fail(later(pause, 100.0), 2).silent_seconds == 100.0


def test_an_outage_that_follows_a_wrong_configuration_begins_with_its_first_failure() -> None:
    pause = fail(later(fail(Pause(NOW), 1, error=WRONG_KEY), 4000.0), 1, probe=True)

    assert (pause.reason, pause.silent_seconds) == (Reason.OUTAGE, 0.0)
    assert fail(later(pause, 50.0), 1).silent_seconds == 50.0


def test_an_outage_that_nobody_has_looked_at_for_long_may_be_over() -> None:
    assert later(ENDED, rules.KNOWN_FOR - 10.0).silent_seconds > rules.KNOWN_FOR
    forgotten = later(ENDED, rules.KNOWN_FOR)
    assert forgotten.silent_seconds == 0.0

    # Nor does the fallback stand in while the probe waits for an answer.
    probed = forgotten.probed(90.0)
    assert probed.silent_seconds == 0.0
    assert fail(later(probed, 30.0), 1, probe=True).silent_seconds == 30.0


def test_one_probes_when_the_pause_has_ended() -> None:
    assert Pause(NOW).probed(90.0) == Pause(NOW)
    assert PAUSED.probed(90.0) == PAUSED
    assert (left(PROBED), PROBED.paused, PROBED.until_answered) == (90.0, True, True)
    assert PROBED.probed(90.0) == PROBED
    # One that is killed does not keep the others from probing.
    assert later(PROBED, 91.0).probed(90.0) != later(PROBED, 91.0)
    rate_limited = fail(Pause(NOW), 1, error=RATE_LIMIT)
    assert later(rate_limited, 7.0).probed(90.0) == later(rate_limited, 7.0)


def test_a_probe_that_made_no_call_leaves_it_to_another() -> None:
    pause = PROBED.not_probed(PROBED.paused_until)
    assert (pause.paused, pause.until_answered) == (False, True)
    assert pause.probed(90.0).paused
    rate_limited = fail(Pause(NOW), 1, error=RATE_LIMIT)
    for other in (Pause(NOW), rate_limited, PROBED):
        assert other.not_probed(None) == other
        # Nor does one whose time is over.
        assert other.not_probed(ENDED.paused_until) == other


def test_a_probe_that_fails_makes_the_pause_longer_and_one_that_found_nothing_out_shorter() -> None:
    failed = fail(PROBED, 1, probe=True)
    assert failed.failures == 4
    assert 40 <= left(failed) <= 50

    rejected = fail(later(PROBED, 10.0), 1, error=REJECTED, probe=True)
    assert 20 <= left(rejected) <= 25
    assert rejected.silent_seconds == 36.0

    # A rate limit shows that the provider is up.
    limited = fail(later(PROBED, 10.0), 1, error=exceptions.RateLimited("429", retry_after=300.0), probe=True)
    assert 300 <= left(limited) <= 375
    assert (limited.silent_seconds, limited.reason) == (0.0, Reason.OUTAGE)


def test_a_probe_that_was_answered_makes_calls_like_any_other() -> None:
    answered = PROBED.answered()
    for error in (REJECTED, DOWN):
        pause = answered.failed(error, 1, text="", counts=True, probe_until=PROBED.paused_until)
        assert not pause.holds, error
    limited = answered.failed(RATE_LIMIT, 1, text="", counts=True, probe_until=PROBED.paused_until)
    assert (limited.reason, limited.paused) == (Reason.RATE_LIMIT, True)


@pytest.mark.parametrize("error", [DOWN, WRONG_KEY, REJECTED, RATE_LIMIT])
def test_a_call_from_before_the_pause_does_not_shorten_the_time_of_a_probe(error: Exception) -> None:
    for until in (None, ENDED.paused_until):
        pause = later(PROBED, 10.0).failed(error, 4, text="", counts=True, probe_until=until)
        assert pause.paused_until == PROBED.paused_until


def test_an_answer_ends_the_pause_and_forgets_the_failures() -> None:
    assert PAUSED.answered() == Pause(NOW, paused_until=NOW)
    assert Pause(NOW).answered() == Pause(NOW)
    two = fail(Pause(NOW), 1, 2)
    assert two.answered()[:4] == (NOW, 0, None, None)
    # The time of the answer is no pause, also if the clock is set back.
    assert not later(PAUSED.answered(), -3600.0).holds
    # It does not end a rate limit.
    limited = fail(two, 1, error=RATE_LIMIT).answered()
    assert (limited.failures, limited.paused) == (0, True)


# Who answers, and when a session is tried again.


def situation(**changed: Any) -> Situation:
    """A session that has waited, whose model answers."""
    usual = Situation(
        Admission(own=True),
        attempts=1,
        due_seconds=3600.0,
        rebuilding=False,
        has_fallback=True,
        max_attempts=5,
        fallback_after=1800.0,
    )
    return usual._replace(**changed)


SILENT = Admission(own=True, fallback=True, reason=Reason.OUTAGE)


@pytest.mark.parametrize(
    ("changed", "stands_in"),
    [
        ({}, False),
        ({"attempts": 5}, True),
        ({"attempts": 5, "due_seconds": 1799.0}, False),
        ({"admission": SILENT}, True),
        ({"admission": SILENT, "due_seconds": 1799.0}, False),
        ({"attempts": 5, "admission": Admission(own=True, reason=Reason.MISCONFIGURED)}, False),
        ({"attempts": 5, "rebuilding": True}, False),
        ({"attempts": 5, "has_fallback": False}, False),
        ({"fallback_after": 0.0, "due_seconds": 0.0, "admission": Admission(own=True, fallback=True)}, True),
    ],
)
def test_when_the_fallback_may_stand_in(changed: dict[str, Any], stands_in: bool) -> None:
    assert situation(**changed).may_stand_in() == stands_in
    following = situation(**changed).following(DOWN, None)
    assert following == (Choice.FALLBACK if stands_in else None)


def test_which_model_is_asked_first() -> None:
    assert situation().first() == Choice.OWN
    # The fifth attempt is still the model's.
    assert situation(attempts=5).first() == Choice.OWN
    assert situation(attempts=6).first() == Choice.FALLBACK
    assert situation(attempts=6, due_seconds=60.0).first() == Choice.OWN
    assert situation(admission=Admission(own=False, fallback=True)).first() == Choice.FALLBACK


def test_which_model_is_asked_next() -> None:
    refused = exceptions.ContentRefused("no")
    assert situation(due_seconds=0.0).following(refused, None) == Choice.FALLBACK
    assert situation().following(refused, refused) is None
    assert situation(attempts=9).following(WRONG_KEY, None) is None
    assert situation(attempts=9, admission=SILENT).following(RATE_LIMIT, None) is None
    # The fallback was asked first.
    assert situation().following(None, DOWN) == Choice.OWN
    assert situation(admission=Admission(own=False, fallback=True)).following(None, DOWN) is None


@pytest.mark.parametrize(
    ("pause", "fallback_after", "despite_pause", "expected"),
    [
        (Pause(NOW), None, False, Admission(own=True)),
        (PAUSED, None, False, Admission(own=False, reason="outage")),
        (ENDED, None, False, Admission(own=True, probe=True, reason="outage")),
        (PAUSED, None, True, Admission(own=True, reason="outage")),
        (later(ENDED, 100.0), 100.0, False, Admission(own=True, fallback=True, probe=True, reason="outage")),
        (PROBED, 20.0, False, Admission(own=False, fallback=True, reason="outage")),
        (fail(Pause(NOW), 1, error=RATE_LIMIT), 0.0, False, Admission(own=False)),
        (fail(Pause(NOW), 1, error=WRONG_KEY), 0.0, False, Admission(own=False, reason="misconfigured")),
    ],
)
def test_who_is_admitted(pause: Pause, fallback_after: float | None, despite_pause: bool, expected: Admission) -> None:
    assert rules.admission(pause, fallback_after=fallback_after, despite_pause=despite_pause) == expected


@pytest.mark.parametrize(
    ("changed", "error", "shortest", "longest", "counts"),
    [
        ({}, DOWN, 0, 16, True),
        ({"attempts": 20}, DOWN, 0, 300, True),
        ({"attempts": 20}, exceptions.ModelUnavailable("503", retry_after=3000.0), 300, 300, True),
        ({"attempts": 3}, REJECTED, 0, 64, True),
        # Until the fallback may stand in, and without one an hour.
        ({"attempts": 5, "due_seconds": 1000.0}, REJECTED, 800, 800, True),
        ({"attempts": 5, "has_fallback": False}, REJECTED, 3600, 3600, True),
        ({}, RATE_LIMIT, 5, 6.25, False),
        ({}, exceptions.RateLimited("429", retry_after=1000.0), 300, 300, False),
        ({"admission": Admission(own=True, reason=Reason.MISCONFIGURED)}, WRONG_KEY, 60, 120, False),
        # Others were just answered, so it may be this session's content.
        ({"attempts": 9}, WRONG_KEY, 3600, 3600, True),
    ],
)
def test_when_a_session_is_tried_again(
    changed: dict[str, Any], error: Exception, shortest: float, longest: float, counts: bool
) -> None:
    for _ in range(50):
        retry = situation(**changed).retry(error)
        assert shortest <= retry.seconds <= longest
        assert retry.counts == counts


# The two stores, which must agree.


@dataclasses.dataclass
class Kept:
    """A store, and ``skip`` to let time pass for it."""

    store: Store
    skip: Callable[[float], None]

    @property
    def state(self) -> Pause:
        return self.store.pause_of("default")

    def change(self, change: Callable[[Pause], Pause]) -> Pause:
        before, after = self.store.change_pause("default", change)
        assert self.state[1:] == after[1:]
        assert self.state.now >= before.now
        return after

    def pause(self, reason: Reason = Reason.OUTAGE, seconds: float = 20.0) -> None:
        until = dt.timedelta(seconds=seconds)
        self.change(lambda state: state._replace(paused_until=state.now + until, reason=reason, since=state.now))


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


def test_a_store_keeps_each_state_that_a_pause_may_have(kept: Kept) -> None:
    assert kept.state[1:] == Pause(NOW)[1:]
    assert kept.change(lambda state: state).failures == 0
    changes: list[Callable[[Pause], Pause]] = [
        lambda state: fail(state, 1, 2),
        lambda state: fail(state, 3),
        lambda state: state.not_probed(state.paused_until),
        lambda state: state.probed(90.0),
        lambda state: fail(state, 4, probe=True),
        Pause.answered,
        lambda state: fail(state, 1, error=RATE_LIMIT),
        lambda state: fail(state, 1, error=WRONG_KEY),
    ]
    for number, change in enumerate(changes):
        before, after = kept.store.change_pause("default", change)
        assert before != after, number
        assert kept.state[1:] == after[1:], number
    assert kept.store.pause_of("other").failures == 0
    assert not kept.store.pause_of("other").holds


def test_a_state_that_no_comparison_finds_is_replaced_in_the_end(
    monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    """Somebody may have written the times of the row in a form that is read as another time."""
    store = ORMStore()
    store.change_pause("default", lambda state: fail(state, 1))
    monkeypatch.setattr(pauses, "_in_state", lambda rows, state: rows.none())
    store.change_pause("default", lambda state: fail(state, 2))
    assert store.pause_of("default").failures == 2


def test_what_is_called_after_a_commit_does_not_hold_the_lock_of_the_store_in_memory() -> None:
    store = InMemoryStore()
    other = threading.Thread(target=store.find, args=(SessionName("default", "s"),))

    def wait_for_another_thread() -> None:
        other.start()
        other.join(10)

    store.on_commit(wait_for_another_thread)
    assert not other.is_alive()


@pytest.mark.parametrize("fallback", [False, True])
def test_whether_another_session_was_folded_meanwhile(fallback: bool, kept: Kept) -> None:
    """What the fallback has folded says nothing about the alias's own model, whether or not it is to be made again."""
    slow, folded = claimed(kept.store, "slow"), claimed(kept.store, "folded")
    kept.store.record(slow, attempt(AttemptOutcome.UNAVAILABLE, ago=60.0))
    version = NewVersion(**VERSION, fallback=fallback, stand_in=False)
    assert kept.store.publish(folded, version, attempt(AttemptOutcome.PUBLISHED, ago=30.0), RULE, lease=60.0)

    # Its last failure was before that, and so was the beginning of another session's call.
    assert kept.store.has_folded_another("default", slow.session_id, 0.0) is not fallback
    assert kept.store.has_folded_another("default", 99, 45.0) is not fallback
    # This call began later.
    assert not kept.store.has_folded_another("default", 98, 15.0)
    assert not kept.store.has_folded_another("default", folded.session_id, 45.0)
    assert not kept.store.has_folded_another("other", 99, 45.0)


def test_while_only_the_fallback_may_be_asked_a_session_is_claimed_that_has_waited(kept: Kept) -> None:
    claim = claimed(kept.store, "a")
    kept.store.release(claim, RULE)
    arguments: dict[str, Any] = {"lease": 60.0, "prompt_hash": "", "force": True}
    kept.skip(50.0)
    assert kept.store.claim(claim.session_id, RULE, due_for=60.0, **arguments) == "waiting"
    kept.skip(11.0)
    assert isinstance(kept.store.claim(claim.session_id, RULE, due_for=60.0, **arguments), Claim)
    assert kept.store.claim(claim.session_id, RULE, due_for=60.0, **arguments) == "busy"


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_on("postgresql", "mariadb")
def test_of_many_threads_one_probes_and_no_failure_is_lost() -> None:
    store, barrier = ORMStore(), threading.Barrier(12)
    store.change_pause("default", lambda state: fail(later(state, -60.0), 1, 2, 3))
    probes: list[bool] = []

    def probe_and_fail(session_id: int) -> None:
        try:
            barrier.wait(30)
            before, after = store.change_pause("default", lambda state: state.probed(90.0))
            probes.append(after != before)
            for _ in range(5):
                store.change_pause("default", lambda state: fail(state, session_id))
        finally:
            connection.close()

    threads = [threading.Thread(target=probe_and_fail, args=(number,)) for number in range(barrier.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(probes) == [False] * 11 + [True]
    assert store.pause_of("default").failures == 63


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
    kept.pause(reason, 5.0)
    kept.skip(4.0)
    assert swept(kept) == []
    assert kept.store.waiting("default", after=1.0, within=300.0, limit=10) == 1

    kept.skip(1.0)
    if reason == Reason.OUTAGE:
        kept.change(Pause.answered)
        kept.skip(1.0)

    assert kept.store.waiting("default", after=1.0, within=300.0, limit=10) == 0
    assert swept(kept) == [claim.session_id]
    kept.skip(1.0)
    assert swept(kept) == []


def test_a_mark_from_before_the_clock_was_set_back_does_not_count(kept: Kept) -> None:
    claim = claimed(kept.store, "a")
    kept.store.release(claim, RULE)
    kept.skip(61.0)
    assert swept(kept) == [claim.session_id]
    kept.skip(-3600.0)

    assert kept.store.sweep("default", limit=10, queued_for=300.0) == [claim.session_id]
    assert kept.store.sweep("default", limit=10, queued_for=300.0) == []


def test_a_mark_from_before_the_session_became_due_does_not_count(kept: Kept) -> None:
    claim = claimed(kept.store, "a")
    kept.store.release(claim, Threshold(), Release(queued=True))
    assert not kept.store.is_due(claim.session_id)
    kept.skip(1.0)
    build(MarkerModel(), store=kept.store, scheduler=NullScheduler()).append("a", ChatMessage.human("Hello again."))
    kept.skip(61.0)

    assert swept(kept) == [claim.session_id]


# Whole runs.


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


@pytest.fixture
def outage() -> Outage:
    return Outage()


@pytest.fixture
def memory(outage: Outage, db: None) -> ConversationMemory:
    """A memory that is paused since its three sessions were tried."""
    memory = memory_with(outage, *"abc")
    compact(memory, *"abc")
    return memory


def seconds_left(memory: ConversationMemory) -> float:
    return left(memory.pause)


def end_pause() -> None:
    models.AliasState.objects.update(paused_until=Clock(-1))


@pytest.mark.django_db
def test_the_third_failing_session_begins_a_pause() -> None:
    memory = memory_with(Outage(), *"abcd")

    compact(memory, "a", "a", "a", "b")
    assert not memory.paused
    assert calls(memory) == 4
    compact(memory, "c", "d", "a")

    assert memory.paused
    assert calls(memory) == 5
    assert memory.pause.error == "ModelUnavailable: 503"
    # Nothing is counted against a session that was not tried.
    assert (session("d").attempts, session("d").last_error) == (0, "")


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
def test_any_answer_ends_it(answer: Exception | None, outage: Outage, memory: ConversationMemory) -> None:
    end_pause()
    outage.error = answer

    models.Session.objects.update(next_attempt_at=None)
    assert memory.compact_id(session("a").pk).recovered

    assert not memory.pause.until_answered
    assert memory.pause.failures == 0
    outage.error = None
    # Only the first answer is a recovery.
    results = [memory.compact_id(session(key).pk) for key in "bc"]
    assert [(result.outcome, result.recovered) for result in results] == [("published", False)] * 2


@pytest.mark.django_db
def test_a_probe_that_meets_a_rate_limit_pauses_for_it_and_nobody_stands_in() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc", fallback=ExtractiveChatModel())
    compact(memory, *"abc")
    skip(1700.0)
    outage.error = exceptions.RateLimited("429", retry_after=300.0)

    compact(memory, "a")

    assert 300 <= seconds_left(memory) <= 375
    skip(200.0)
    assert memory.pause.silent_seconds < 300
    compact(memory, *"bc")
    assert not any(versions(key) for key in "abc")


@pytest.mark.django_db
def test_a_rate_limit_pauses_the_alias_for_seconds_and_lets_all_go_on() -> None:
    outage = Outage(exceptions.RateLimited("429"))
    memory = memory_with(outage, *"abc", max_attempts=1, fallback=ExtractiveChatModel())
    compact(memory, *"abc")

    assert calls(memory) == 1
    assert (session("a").attempts, memory.pause.failures) == (0, 0)
    assert 0 < seconds_left(memory) <= 6.25
    assert memory.sweep() == []
    end_pause()
    outage.error = None
    models.Session.objects.update(next_attempt_at=None)
    assert keys_of(memory.sweep()) == ["a", "b", "c"]
    assert compact(memory, *"abc") == ["published"] * 3
    assert not any(versions(key)[0].fallback for key in "abc")


@pytest.mark.django_db
def test_failures_of_the_fallback_do_not_count() -> None:
    memory = memory_with(Outage(exceptions.ContentRefused("no")), *"abcd", fallback=MarkerModel(Outage()))

    compact(memory, *"abcd")

    assert outcomes() == ["refused", "unavailable"] * 4
    assert (memory.pause.failures, memory.pause.until_answered) == (0, False)


def test_asked_waits_for_the_pause_and_despite_pause_does_not(outage: Outage, memory: ConversationMemory) -> None:
    outage.error = None

    assert memory.compact("a") == "stalled"
    assert memory.compact_id(session("a").pk, asked=True).outcome == "stalled"
    assert calls(memory) == 3
    assert memory.compact("a", despite_pause=True) == "published"
    assert not memory.paused


class HintingScheduler(NullScheduler):
    """Says that a task will come, and sends none."""

    queues = True
    defers = True


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
@pytest.mark.parametrize("defers", [True, False])
def test_a_retry_for_which_no_task_waits_is_left_to_the_sweep(defers: bool) -> None:
    scheduler = HintingScheduler()
    scheduler.defers = defers
    memory = memory_with(Outage(REJECTED), "a", scheduler=scheduler)

    assert memory.compact_id(session("a").pk).delay > 0

    assert (session("a").queued_at is not None) is defers


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


def test_a_probe_whose_session_is_not_due_or_busy_leaves_the_probe_to_another(
    outage: Outage, memory: ConversationMemory
) -> None:
    talk(memory, 1, key="short")
    models.Session.objects.filter(key="b").update(lease_token="x", lease_expires_at=Clock(60))
    end_pause()
    outage.error = None

    assert compact(memory, "short", "b", "a") == ["not_due", "busy", "published"]


def test_a_probe_whose_process_is_told_to_end_before_it_calls_leaves_the_probe_to_another(
    outage: Outage, memory: ConversationMemory
) -> None:
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


def test_while_a_probe_calls_the_model_nobody_else_does(outage: Outage, memory: ConversationMemory) -> None:
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


@pytest.mark.django_db
def test_the_sweep_sends_one_rebuild_as_the_probe() -> None:
    outage = Outage()
    memory = memory_with(outage, *"abc", fallback=ExtractiveChatModel(), fallback_after=1)
    compact(memory, *"abc")
    skip(10.0)
    assert compact(memory, *"abc") == ["published"] * 3
    assert memory.pause.paused
    assert memory.sweep_rebuilds() == []
    end_pause()

    assert keys_of(memory.sweep_rebuilds()) == ["a"]

    assert memory.carry_out(session("a").pk, "replace_stand_ins").outcome == "stalled"
    assert memory.pause.paused
    assert memory.sweep_rebuilds() == []
    end_pause()
    outage.error = None
    [session_id] = memory.sweep_rebuilds()
    assert keys_of([session_id]) == ["b"]
    result = memory.carry_out(session_id, "replace_stand_ins")
    assert (result.outcome, result.recovered) == ("published", True)
    assert keys_of(memory.sweep_rebuilds()) == ["c"]
