"""Compaction when the model fails, refuses, or is misconfigured: what is retried, when, and by which model."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import F

from django_convmemory import exceptions, models
from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.clock import Clock
from django_convmemory.rules.pause import Pause, backoff
from django_convmemory.rules.values import Claim
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store import Store
from tests import event_loops
from tests.folding import MarkerModel, build, covered, keys_of, outcomes, session, talk, versions
from tests.outages import skip

pytestmark = pytest.mark.django_db


def test_a_failure_backs_off_and_honours_retry_after() -> None:
    model = ScriptedChatModel([exceptions.ModelUnavailable("busy", retry_after=120.0), "fine"])
    memory = build(model)
    talk(memory, 10)
    result = memory.compact_id(session().pk)
    assert (result.outcome, result.again, result.delay) == ("stalled", True, 120.0)
    assert memory.compact_id(session().pk).outcome == "stalled"
    assert len(model.requests) == 1
    assert memory.sweep() == []
    models.Session.objects.update(next_attempt_at=Clock(-1))
    assert memory.compact_id(session().pk).outcome == "published"
    assert session().attempts == 0


class HintingScheduler(NullScheduler):
    """Says that a task will come back, and sends none."""

    queues = True


@pytest.mark.parametrize(
    "make_model",
    [
        lambda: ScriptedChatModel([exceptions.ModelUnavailable("down")]),
        lambda: MarkerModel(lambda request: models.Session.objects.update(lease_expires_at=Clock(-1))),
    ],
    ids=["failed", "lost the lease"],
)
def test_the_sweep_leaves_a_session_to_the_task_that_comes_back(make_model: Callable[[], ChatModel]) -> None:
    memory = build(make_model(), scheduler=HintingScheduler())
    talk(memory, 10)
    models.Session.objects.update(queued_at=None)
    assert memory.compact_id(session().pk).again is True
    assert session().queued_at is not None
    models.Session.objects.update(next_attempt_at=None)
    assert memory.sweep() == []


def test_after_max_attempts_and_half_an_hour_the_fallback_folds_and_the_version_says_so() -> None:
    model = ScriptedChatModel([exceptions.ModelUnavailable("down")] * 4)
    memory = build(model, max_attempts=3, fallback=ExtractiveChatModel())
    talk(memory, 10)
    # There were enough attempts, but it was not due for long enough.
    assert [memory.compact("s") for _ in range(4)] == ["stalled"] * 4
    models.Session.objects.update(due_since=Clock(-1801))
    assert memory.compact("s") == "published"
    (version,) = versions()
    assert (version.fallback, version.stand_in, version.model) == (True, True, "extractive")
    # With more than max_attempts, the fallback is asked first.
    assert outcomes() == ["unavailable"] * 4 + ["published"]


def test_the_fallback_is_shown_all_that_its_version_stands_for() -> None:
    model = ScriptedChatModel([exceptions.ModelUnavailable("down")])
    memory = build(model, max_attempts=1, fallback_after=0, fallback=MarkerModel())
    talk(memory, 10)
    assert memory.compact("s") == "published"
    (version,) = versions()
    assert (version.fallback, covered(version.text)) == (True, list(range(1, version.last_position + 1)))


def test_a_session_is_tried_again_when_the_fallback_may_stand_in() -> None:
    memory = build(ScriptedChatModel(["NONE"] * 9), max_attempts=2, fallback=ExtractiveChatModel())
    talk(memory, 10)
    models.Session.objects.update(due_since=Clock(-1200))
    memory.compact_id(session().pk, asked=True)

    result = memory.compact_id(session().pk, asked=True)

    assert (result.outcome, session().attempts) == ("stalled", 2)
    assert result.delay == pytest.approx(600, abs=30)

    models.Session.objects.update(due_since=Clock(-1801), next_attempt_at=Clock(-1))
    assert memory.compact_id(session().pk).outcome == "published"
    assert [(version.fallback, version.stand_in) for version in versions()] == [(True, True)]


def test_a_worker_that_is_killed_each_time_is_tried_less_and_less_often() -> None:
    memory = build(MarkerModel())
    talk(memory, 10)
    waits = []
    for _ in range(12):
        models.Session.objects.update(next_attempt_at=None, queued_at=Clock())
        assert isinstance(
            memory.store.claim(
                session().pk, memory.threshold, lease=60, prompt_hash=memory.requests.prompt_hash, force=False
            ),
            Claim,
        )
        row = session()
        assert row.next_attempt_at is not None
        assert row.lease_expires_at is not None
        waits.append((row.next_attempt_at - row.lease_expires_at) / dt.timedelta(seconds=1))
        skip(61.0)
        # The killed worker's task does not keep the sweep from finding the session, but its wait does.
        assert memory.sweep() == ([session().pk] if waits[-1] < 1 else [])

    assert waits == pytest.approx([0, *(backoff(attempts) for attempts in range(2, 11)), 3600, 3600], abs=1)
    assert session().attempts == 12


def test_a_refusal_of_one_chunk_reaches_the_fallback_for_that_chunk_alone() -> None:
    refusals: list[Any] = [exceptions.ContentRefused("no"), "I'm sorry, but I can't help with that."]
    model = ScriptedChatModel(["one word", *refusals, "four words"])
    memory = build(model, max_chunk_tokens=100, fallback=ExtractiveChatModel(), limit=100)
    talk(memory, 34)
    assert memory.compact("s") == "published"
    assert [version.fallback for version in versions()] == [False, True, True, False]
    assert outcomes() == ["published", "refused", "published", "refused", "published", "published"]


def test_a_misconfigured_model_pauses_the_alias_without_fallback_and_counts_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "django_convmemory")
    model = ScriptedChatModel([exceptions.ModelMisconfigured("401"), "fine", "fine too"])
    memory = build(model, max_attempts=1, fallback=ExtractiveChatModel())
    talk(memory, 10, key="one")
    talk(memory, 10, key="two")
    result = memory.compact_id(session("one").pk)
    assert (result.outcome, result.again, session("one").attempts) == ("stalled", True, 1)
    assert memory.paused
    assert memory.compact_id(session("two").pk).outcome == "stalled"
    assert caplog.messages[-1] == f"Session {session('two').pk} is not folded now: memories['default'] is paused."
    assert len(model.requests) == 1
    assert versions("one") == []
    models.AliasState.objects.update(paused_until=Clock(-1))
    assert memory.compact_id(session("one").pk).outcome == "stalled"
    assert caplog.messages[-1].endswith("is not folded now: the time of its next attempt has not come.")
    models.Session.objects.update(next_attempt_at=None)
    assert not memory.paused
    assert [memory.compact_id(session(key).pk).outcome for key in ("one", "two")] == ["published", "published"]


def misconfigured(request: ChatRequest) -> None:
    raise exceptions.ModelMisconfigured("401")


def test_after_an_outage_the_model_is_asked_again_for_what_the_fallback_cannot_fold() -> None:
    def refuse(request: ChatRequest) -> None:
        raise exceptions.BadModelOutput("only symbols")

    model = ScriptedChatModel([exceptions.ModelUnavailable("503")] * 3 + ["fine"])
    memory = build(model, max_attempts=2, fallback_after=0, fallback=MarkerModel(refuse))
    talk(memory, 10)
    assert [memory.compact("s") for _ in range(4)] == ["stalled"] * 3 + ["published"]
    assert [(version.text, version.fallback) for version in versions()] == [("fine", False)]


def test_one_sessions_refusal_as_misconfigured_does_not_keep_the_others_waiting() -> None:
    model = ScriptedChatModel([exceptions.ModelMisconfigured("403"), "fine"])
    memory = build(model)
    talk(memory, 10, key="poison")
    talk(memory, 10, key="healthy")
    memory.compact_id(session("poison").pk)
    assert memory.sweep(queued_for=0) == []
    models.AliasState.objects.update(paused_until=Clock(-1))
    models.Session.objects.filter(key="poison").update(next_attempt_at=F("next_attempt_at") - dt.timedelta(seconds=60))
    # The probe is a session that has failed less often, or has not yet to wait.
    [probe] = memory.sweep(queued_for=0)
    assert keys_of([probe]) == ["healthy"]
    assert memory.compact_id(probe).recovered


def test_a_wrong_key_counts_only_for_the_session_that_finds_it_while_others_are_answered() -> None:
    memory = build(MarkerModel(misconfigured), max_attempts=1, fallback_after=0, fallback=ExtractiveChatModel())
    talk(memory, 10)
    for _ in range(3):
        models.AliasState.objects.update(paused_until=Clock(-1))
        models.Session.objects.update(next_attempt_at=None)
        assert memory.compact_id(session().pk).outcome == "stalled"

    assert session().attempts == 1
    assert versions() == []
    assert outcomes() == ["misconfigured"] * 3


def test_a_session_that_meets_a_wrong_key_while_others_are_answered_waits_longer_and_longer() -> None:
    memory = build(MarkerModel(misconfigured), max_attempts=9, fallback=ExtractiveChatModel())
    talk(memory, 10)
    delays = []
    for _ in range(9):
        memory.store.change_pause("default", Pause.answered)
        models.Session.objects.update(next_attempt_at=None)
        delays.append(memory.compact_id(session().pk).delay)

    assert session().attempts == 9
    assert all(60 <= delay <= 120 for delay in delays[:3])
    assert delays[-1] == 3600
    # In the end the fallback folds it.
    memory.store.change_pause("default", Pause.answered)
    models.Session.objects.update(next_attempt_at=None, due_since=Clock(-1801))
    assert memory.compact("s") == "published"
    assert versions()[0].stand_in
    assert memory.carry_out(session().pk, "replace_stand_ins").outcome == "stalled"
    assert memory.paused
    models.AliasState.objects.update(paused_until=Clock(-1))
    models.Session.objects.update(rebuild_after=F("rebuild_after") - dt.timedelta(hours=1))
    assert memory.sweep_rebuilds() == []


def test_a_chunk_that_cannot_be_made_smaller_reaches_the_fallback_with_the_last_attempt() -> None:
    def too_long(request: ChatRequest) -> None:
        raise exceptions.ContextLengthExceeded("8 tokens at most")

    memory = build(MarkerModel(too_long), max_attempts=2, fallback=ExtractiveChatModel())
    talk(memory, 10)
    models.Session.objects.update(due_since=Clock(-1801))
    memory.compact("s")
    assert versions() == []
    memory.compact("s")
    assert [version.fallback for version in versions()] == [True]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_process_that_is_told_to_end_gives_the_lease_back(stop: type[BaseException]) -> None:
    def end(request: ChatRequest) -> None:
        raise stop

    memory = build(MarkerModel(end))
    talk(memory, 10)
    with pytest.raises(stop):
        memory.compact("s")
    row = session()
    assert (row.lease_token, row.attempts, row.next_attempt_at, row.due_since is not None) == ("", 0, None, True)


def test_a_cancelled_acompact_gives_the_lease_back(transactional_db: None) -> None:
    called = asyncio.Event()

    class Hanging(MarkerModel):
        async def achat(self, request: ChatRequest) -> ChatResponse:
            called.set()
            await asyncio.sleep(60)
            raise AssertionError

    memory = build(Hanging())
    talk(memory, 10)

    async def run() -> None:
        task = asyncio.create_task(memory.acompact("s"))
        await called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    event_loops.run(run())
    row = session()
    assert (row.lease_token, row.attempts, row.due_since is not None) == ("", 0, True)


def test_an_error_of_a_backend_is_raised_and_the_lease_given_back() -> None:
    def fail(request: ChatRequest) -> None:
        raise ZeroDivisionError

    memory = build(MarkerModel(fail))
    talk(memory, 10)
    models.Session.objects.update(attempts=5000)
    with pytest.raises(ZeroDivisionError):
        memory.compact("s")
    row = session()
    assert (row.lease_token, row.last_error, row.due_since is not None) == ("", "ZeroDivisionError", True)
    assert outcomes() == ["error"]
    assert row.next_attempt_at is not None


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_rebuild_does_not_hide_that_the_newest_messages_cannot_be_folded(succeeds: bool, store: Store) -> None:
    failing = False

    def fail(request: ChatRequest) -> None:
        if failing:
            raise exceptions.BadModelOutput("blank")

    memory = build(MarkerModel(fail), store=store, fallback=ExtractiveChatModel())
    talk(memory, 10)
    assert memory.compact("s") == "published"
    talk(memory, 12)
    failing = True
    assert [memory.compact("s") for _ in range(5)] == ["stalled"] * 5
    failing = not succeeds

    assert memory.rebuild("s") == ("published" if succeeds else "stalled")

    session_id = store.find(memory.resolve("s"))
    assert session_id is not None
    # It still waits for the time of its next attempt.
    assert store.is_due(session_id)
    assert memory.compact_id(session_id).outcome == "stalled"
    claim = store.claim(session_id, memory.threshold, lease=60.0, prompt_hash="", force=True)
    assert isinstance(claim, Claim)
    assert claim.attempts == 6
