"""Compaction: what is folded, which process may publish, and what is recorded."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from django_convmemory import exceptions, models, signals
from django_convmemory.chat_models.base import ChatRequest, ChatResponse, Price, Usage
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.clock import Clock
from django_convmemory.messages import ChatMessage
from django_convmemory.store import Store
from tests import event_loops
from tests.conversations import call
from tests.folding import MarkerModel, build, covered, keys_of, outcomes, session, talk, versions

pytestmark = [pytest.mark.django_db, pytest.mark.vendors]


def test_a_summary_stands_for_exactly_its_range() -> None:
    memory = build(MarkerModel())
    for _ in range(5):
        talk(memory, 8)
        assert memory.compact("s") == "published"
        row, (*_, current) = session(), versions()
        assert covered(current.text) == list(range(1, current.last_position + 1))
        assert (row.current_version, row.covered_position) == (current.version, current.last_position)
        assert row.due_since is None
        context = memory.load("s")
        assert covered(context.to_text()) == list(range(1, row.last_position + 1))
    lines = [(version.parent_version, version.first_position) for version in versions()]
    ends = [version.last_position for version in versions()]
    assert lines == [(None, 1)] + [(number, end + 1) for number, end in enumerate(ends[:-1], start=1)]


def test_a_summary_does_not_make_a_session_look_used() -> None:
    memory = build(MarkerModel())
    talk(memory, 8)
    used = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    models.Session.objects.update(updated_at=used)
    assert memory.compact("s") == "published"
    assert session().updated_at == used


def test_the_days_of_the_messages_are_in_the_prompt(store: Store) -> None:
    model = MarkerModel()
    memory = build(model, store=store, zone=ZoneInfo("Asia/Shanghai"))
    late = dt.datetime(2026, 11, 23, 15, 59, 59, tzinfo=dt.UTC)
    times = [late, late + dt.timedelta(seconds=1), late + dt.timedelta(days=8)]
    memory.append("s", *[ChatMessage.human("word " * 40) for _ in range(3)], created_at=times)
    memory.append("s", ChatMessage.human("word " * 40))
    memory.compact("s")
    (request,) = model.requests
    assert [line[:24] for line in request.messages[1].text.splitlines()[2:8]] == [
        "[day] 2026-11-23 Monday",
        "[user] word word word wo",
        "[day] 2026-11-24 Tuesday",
        "[user] word word word wo",
        "[day] 2026-12-01 Tuesday",
        "[user] word word word wo",
    ]
    assert request.fold is not None
    assert request.fold.days == [dt.date(2026, 11, 23), dt.date(2026, 11, 24), dt.date(2026, 12, 1)]


def test_a_tool_exchange_is_folded_whole_and_an_open_one_never() -> None:
    memory = build(MarkerModel(), limit=30)
    memory.append("s", ChatMessage.human("[[1]] " + "word " * 30))
    memory.append("s", ChatMessage.ai(tool_calls=[call("c1"), call("c2")]))
    memory.append("s", ChatMessage.tool("[[3]] " + "word " * 40, "c1"), ChatMessage.human("[[4]] well?"))
    memory.compact("s")
    assert session().covered_position == 1
    memory.append("s", ChatMessage.tool("[[5]]", "c2"), ChatMessage.ai("[[6]] done"), ChatMessage.human("[[7]] thanks"))
    memory.compact("s")
    assert session().covered_position == 5
    assert [message["role"] for message in memory.load("s").to_openai()] == ["system", "assistant", "user"]


# Events during the model's call.


def test_an_append_during_the_call_is_neither_lost_nor_forgotten() -> None:
    memory = build(MarkerModel(lambda request: talk(memory, 10)))
    talk(memory, 10)
    assert memory.compact("s") == "published"
    row = session()
    assert row.last_position == 20
    assert row.due_since is not None
    assert covered(memory.load("s").to_text()) == list(range(1, 21))


def test_a_deleted_session_takes_the_run_with_it() -> None:
    memory = build(MarkerModel(lambda request: models.Session.objects.all().delete()))
    talk(memory, 10)
    assert memory.compact("s") == "not_due"
    # What the call has cost still counts.
    assert [(attempt.session_id, attempt.outcome) for attempt in models.Attempt.objects.all()] == [(None, "dropped")]


def test_a_session_whose_first_worker_is_killed_waits_only_for_the_end_of_the_lease() -> None:
    waits: list[float] = []

    def answer(request: ChatRequest) -> None:
        row = models.Session.objects.get()
        assert row.next_attempt_at is not None
        assert row.lease_expires_at is not None
        waits.append((row.next_attempt_at - row.lease_expires_at).total_seconds())

    memory = build(MarkerModel(answer))
    talk(memory, 10)

    memory.compact("s")

    # The lease was renewed after the claim.
    assert [round(seconds) for seconds in waits] == [0]


def test_a_session_whose_worker_dies_between_two_chunks_is_found_by_the_sweep() -> None:
    swept: list[list[int]] = []

    def die_in_the_second_call(request: ChatRequest) -> None:
        if len(model.requests) == 2:
            # Other processes see the first version of a killed worker, and its lease until that expires.
            models.Session.objects.update(lease_expires_at=Clock(-1))
            swept.append(memory.sweep())

    model = MarkerModel(die_in_the_second_call)
    memory = build(model, max_chunk_tokens=100)
    talk(memory, 40)
    memory.compact("s")
    assert len(versions()) == 1
    assert swept == [[session().pk]]


def test_a_lease_lasts_for_one_call_of_the_slower_model() -> None:
    left: list[float] = []

    def look_at_the_lease(request: ChatRequest) -> None:
        expires, now = models.Session.objects.values_list("lease_expires_at", Clock()).get()
        left.append((expires - now).total_seconds())
        models.Session.objects.update(lease_expires_at=Clock(5))
        if len(left) == 1:
            raise exceptions.ContentRefused("no")

    model = MarkerModel(look_at_the_lease, deadline=1000.0)
    fallback = MarkerModel(look_at_the_lease, deadline=2000.0)
    memory = build(model, fallback=fallback, max_chunk_tokens=100)
    talk(memory, 40)
    assert memory.compact("s") == "published"
    # It is renewed before each call, also before that of the fallback.
    assert len(left) == len(versions()) + 1 > 3
    assert memory.lease_seconds == 2030
    assert all(2000 < seconds <= 2030 for seconds in left)


def test_a_result_that_comes_after_the_lease_backs_off_and_counts() -> None:
    memory = build(MarkerModel(lambda request: models.Session.objects.update(lease_expires_at=Clock(-1))))
    talk(memory, 10)
    result = memory.compact_id(session().pk)
    row = session()
    assert (result.outcome, result.again) == ("busy", True)
    assert result.delay > 0
    assert (row.attempts, row.next_attempt_at is not None, row.lease_token) == (1, True, "")
    assert outcomes() == ["dropped"]


def test_no_connection_is_kept_while_a_model_answers(transactional_db: None) -> None:
    memory = build(MarkerModel(lambda request: held.append(connection.connection)))
    held: list[Any] = []
    talk(memory, 10)
    assert memory.compact("s") == "published"
    assert held == [None]


def test_nonsense_that_a_provider_reports_does_not_keep_its_answer_from_being_stored() -> None:
    usage = Usage(prompt_tokens=2**31 - 1, completion_tokens=2**31 - 1)
    answer = ChatResponse(ChatMessage.ai("fine"), usage=usage, model="m" * 500)
    memory = build(ScriptedChatModel([answer]), price=Price(Decimal(150), Decimal(600)))
    talk(memory, 10)
    assert memory.compact("s") == "published"
    attempt = models.Attempt.objects.get()
    assert (attempt.cost, len(attempt.model)) == (None, 200)


def test_a_run_stops_at_a_chunks_end_when_its_time_is_up() -> None:
    memory = build(MarkerModel(), max_chunk_tokens=100, max_run_seconds=1)
    object.__setattr__(memory.options, "max_run_seconds", 0.0)
    talk(memory, 40)
    result = memory.compact_id(session().pk)
    assert (result.outcome, result.again) == ("published", True)
    assert len(versions()) == 1
    while memory.compact_id(session().pk).again:
        assert len(versions()) < 40
    assert covered(memory.load("s").to_text()) == list(range(1, 41))


# Answers that must not become a summary.


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "NONE",
        ChatResponse(ChatMessage.ai("The user asked for"), finish_reason="length"),
        exceptions.BadModelOutput("malformed"),
        exceptions.ModelUnavailable("down"),
    ],
)
def test_a_bad_answer_leaves_the_old_summary_and_the_session_due(answer: Any) -> None:
    model = ScriptedChatModel(["The first summary.", answer])
    memory = build(model)
    talk(memory, 10)
    memory.compact("s")
    talk(memory, 10)
    before = memory.load("s")
    assert memory.compact("s") == "stalled"
    row = session()
    assert memory.load("s") == before
    assert before.summary == "The first summary."
    assert (row.attempts, row.due_since is not None, row.next_attempt_at is not None) == (1, True, True)
    assert row.last_error
    assert "[[" not in row.last_error  # It does not quote the conversation.
    assert not row.lease_token
    assert len(outcomes()) == 2


def test_a_text_over_the_cap_is_asked_for_again_shorter() -> None:
    model = ScriptedChatModel(["word " * 400, "short words"])
    memory = build(model, max_summary_tokens=50)
    talk(memory, 10)
    assert memory.compact("s") == "published"
    assert (versions()[0].text, versions()[0].shortened) == ("short words", False)
    assert outcomes() == ["shorten", "published"]
    assert "too long" in model.requests[1].messages[-1].text
    fold = model.requests[1].fold
    assert fold is not None
    assert (fold.previous, fold.turns, fold.max_tokens) == (("word " * 400).strip(), (), 50)
    assert fold.count("short enough") == versions()[0].tokens


@pytest.mark.parametrize(
    ("second", "outcome"),
    [("A sentence. " * 100, "published"), (exceptions.ModelUnavailable("down"), "unavailable"), ("NONE", "bad_output")],
)
def test_a_text_that_stays_over_the_cap_is_cut_at_a_sentence(second: Any, outcome: str) -> None:
    memory = build(ScriptedChatModel(["A sentence. " * 100, second]), max_summary_tokens=50)
    talk(memory, 10)
    assert memory.compact("s") == "published"
    (version,) = versions()
    assert version.shortened
    assert version.text.endswith("A sentence.")
    assert version.tokens <= 50
    assert memory.load("s").parts[0].tokens == version.tokens
    assert outcomes() == ["shorten", outcome]


def test_each_call_is_in_the_books_once_even_where_nothing_fits() -> None:
    memory = build(ScriptedChatModel(["word " * 400, "Donau" * 400]), max_summary_tokens=16, summary_prefix="x " * 100)
    talk(memory, 10)
    assert memory.compact("s") == "stalled"
    assert outcomes() == ["shorten", "bad_output"]


# Attempts and signals.


def test_an_attempt_records_range_model_tokens_and_cost() -> None:
    answer = ChatResponse(ChatMessage.ai("fine"), usage=Usage(prompt_tokens=1000, completion_tokens=50), model="m-1")
    memory = build(ScriptedChatModel([answer]), price=Price(Decimal("0.25"), Decimal(2)))
    talk(memory, 10)
    memory.compact("s")
    attempt, version = models.Attempt.objects.get(), versions()[0]
    assert (attempt.first_position, attempt.last_position) == (1, version.last_position)
    assert (attempt.version, attempt.model, version.model) == (1, "m-1", "m-1")
    assert (attempt.prompt_tokens, attempt.completion_tokens) == (1000, 50)
    assert attempt.cost == Decimal("0.00035")
    assert attempt.due_seconds >= 0
    assert version.prompt_hash


@pytest.mark.parametrize(
    ("cached", "price", "cost"),
    [
        (800, Price(Decimal("0.4"), Decimal(2), cached_input=Decimal("0.1")), "0.00026"),
        (800, Price(Decimal("0.4"), Decimal(2)), "0.0005"),
        (None, Price(Decimal("0.4"), Decimal(2), cached_input=Decimal("0.1")), "0.0005"),
        # A provider that reports nonsense is not paid for it.
        (9999, Price(Decimal("0.4"), Decimal(2), cached_input=Decimal("0.1")), "0.0002"),
    ],
)
def test_an_attempt_records_the_tokens_from_the_providers_cache(cached: int | None, price: Price, cost: str) -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=50, cached_tokens=cached)
    memory = build(ScriptedChatModel([ChatResponse(ChatMessage.ai("fine"), usage=usage)]), price=price)
    talk(memory, 10)
    memory.compact("s")
    attempt = models.Attempt.objects.get()
    assert (attempt.cached_tokens, attempt.cost) == (cached, Decimal(cost))


def test_signals_tell_of_versions_and_failures_after_the_commit(transactional_db: None) -> None:
    received: list[Any] = []

    def receive(sender: Any, **arguments: Any) -> None:
        assert not connection.in_atomic_block
        received.append((arguments["session"].key, arguments.get("version") or type(arguments["error"]).__name__))

    memory = build(ScriptedChatModel([exceptions.BadModelOutput("bad"), "fine"]))
    talk(memory, 10)
    for signal in (signals.summary_published, signals.compaction_failed):
        signal.connect(receive)
    try:
        memory.compact("s")
        memory.compact("s")
    finally:
        for signal in (signals.summary_published, signals.compaction_failed):
            signal.disconnect(receive)
    assert received == [("s", "BadModelOutput"), ("s", 1)]


# Both stores, blocking and asynchronous.


def test_acompact_awaits_the_model_on_the_event_loop(transactional_db: None) -> None:
    loops: list[Any] = []

    class Async(MarkerModel):
        async def achat(self, request: ChatRequest) -> ChatResponse:
            loops.append(asyncio.get_running_loop())
            return self.chat(request)

    memory = build(Async())
    talk(memory, 10)

    async def run() -> tuple[str, bool]:
        return await memory.acompact("s"), loops == [asyncio.get_running_loop()]

    assert event_loops.run(run()) == ("published", True)
    assert len(versions()) == 1


def test_sweeps_send_each_due_session_once_for_each_age_of_its_hint() -> None:
    memory = build(MarkerModel())
    for key in "abc":
        talk(memory, 10, key=key)
        models.Session.objects.filter(key=key).update(due_since=Clock({"a": -10, "b": -30, "c": -20}[key]))
    assert keys_of(memory.sweep(limit=2)) == ["b", "c"]
    assert keys_of(memory.sweep()) == ["a"]
    assert memory.sweep() == []
    models.Session.objects.filter(key="b").update(queued_at=Clock(-301))
    assert keys_of(memory.sweep()) == ["b"]


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": F("epoch") + 1},
        {"lease_token": "f" * 32},
        {"lease_expires_at": Clock(-1)},
        {"covered_position": 1},
        {"last_version": 7},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_of_the_guards_alone_keeps_a_result_from_being_published(change: dict[str, Any]) -> None:
    memory = build(MarkerModel(lambda request: models.Session.objects.update(**change)))
    talk(memory, 12)

    memory.compact("s")

    assert versions() == []
    assert outcomes() == ["dropped"]


def test_a_version_that_cannot_be_stored_moves_nothing(transactional_db: None) -> None:
    memory = build(MarkerModel())
    talk(memory, 12)
    in_the_way = models.Summary.objects.create(
        session=session(), version=1, first_position=1, last_position=1, covered_count=1, covered_tokens=1, tokens=1
    )
    with pytest.raises(IntegrityError):
        memory.compact("s")
    in_the_way.delete()

    row = session()
    assert (versions(), row.covered_position, row.last_version, row.current_version) == ([], 0, 0, 0)
    assert (row.due_since is not None, row.last_error) == (True, "IntegrityError")
    assert memory.compact("s") == "published"


@pytest.mark.django_db(transaction=True)
def test_nothing_is_folded_that_nobody_would_commit() -> None:
    model = MarkerModel()
    memory = build(model)
    talk(memory, 12)
    transaction.set_autocommit(False)
    try:
        with pytest.raises(ImproperlyConfigured, match="AUTOCOMMIT"):
            memory.compact("s")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert model.requests == []


def test_a_fold_ends_before_a_users_turn(store: Store) -> None:
    """Then the context after it begins with the user, as strict chat templates want it."""
    memory = build(MarkerModel(), 200, store=store)
    for number in range(1, 80):
        make = ChatMessage.human if number % 2 else ChatMessage.ai
        memory.append("s", make(f"[[{number}]] " + "word " * (3 + number * 7 % 11)))
        memory.compact("s")
        tail = [part.message.role for part in memory.load("s").parts if part.name == "tail"]
        assert tail[0] == "user"
    assert memory.load("s").covered > 40


def test_a_request_with_many_tool_rounds_is_folded_between_them(store: Store) -> None:
    memory = build(MarkerModel(), store=store)
    memory.append("s", ChatMessage.human("[[1]] Book the trip."))
    for number in range(2, 40, 2):
        memory.append("s", ChatMessage.ai(f"[[{number}]] " + "word " * 5, tool_calls=[call(f"c{number}")]))
        memory.append("s", ChatMessage.tool(f"[[{number + 1}]] " + "word " * 5, f"c{number}"))
        memory.compact("s")
    assert memory.load("s").covered > 20
