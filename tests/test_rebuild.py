"""Rebuilds: of a whole summary, and of what the fallback made while the model was unavailable."""

from __future__ import annotations

import contextlib
import itertools
import types
from typing import Any, Literal

import pytest

from django_convmemory import exceptions, models
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.clock import Clock
from django_convmemory.fold import base
from django_convmemory.fold.run import Result
from django_convmemory.maintenance import explain, integrity
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules import values
from django_convmemory.rules.counters import Counters
from django_convmemory.rules.strategies import SummaryBuffer
from django_convmemory.rules.values import Claim
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests.folding import MarkerModel, build, covered, keys_of, session, talk, versions
from tests.outages import skip

pytestmark = pytest.mark.django_db

DOWN = exceptions.ModelUnavailable("503")
DAY = 86_400


class Model(MarkerModel):
    """A model that fails with ``error``, if there is one. It calls ``first`` in its next call."""

    error: Exception | None = None
    first: Any = None

    def __init__(self) -> None:
        super().__init__(self._meanwhile)

    def _meanwhile(self, request: ChatRequest) -> None:
        first, self.first = self.first, None
        if first is not None:
            first()
        if self.error is not None:
            raise self.error


def memory_with(model: Model, **options: Any) -> ConversationMemory:
    """Return a memory whose fallback stands in after the first failure of ``model``."""
    standard: dict[str, Any] = {"max_attempts": 1, "fallback_after": 0, "fallback": ExtractiveChatModel()}
    return build(model, **standard | {"max_chunk_tokens": 100} | options)


def fold(memory: ConversationMemory, key: str = "s") -> None:
    """Append messages, and fold them."""
    talk(memory, 12, key=key)
    assert memory.compact(key, despite_pause=True) == "published"


def fold_in_outage(memory: ConversationMemory, key: str = "s") -> None:
    """Append messages that the fallback folds."""
    model = memory.model
    assert isinstance(model, Model)
    model.error = DOWN
    fold(memory, key)
    model.error = None


def make_again(memory: ConversationMemory, key: str = "s") -> Result:
    return memory.carry_out(session(key).pk, "replace_stand_ins")


def valid(key: str = "s") -> list[models.Summary]:
    return [version for version in versions(key) if version.invalidated_at is None and not version.building]


def seconds_until_rebuild(key: str = "s") -> float:
    moment, now = models.Session.objects.values_list("rebuild_after", Clock()).get(key=key)
    return float((moment - now).total_seconds())


def damage() -> list[Any]:
    return list(integrity.check(models.Session.objects.all()))


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def memory(model: Model) -> ConversationMemory:
    return memory_with(model)


def test_the_longest_marked_are_swept_first_and_ten_at_most() -> None:
    memory = memory_with(Model(), max_chunk_tokens=None)
    keys = [f"{number:02}" for number in range(12)]
    for key in keys:
        fold_in_outage(memory, key)
    models.AliasState.objects.all().delete()
    models.Session.objects.filter(key="11").update(rebuild_after=Clock(-1000))

    assert keys_of(memory.sweep_rebuilds()) == ["11", *keys[:9]]
    # Their tasks wait for a worker.
    assert memory.sweep_rebuilds() == []
    assert make_again(memory, "00").outcome == "published"
    assert keys_of(memory.sweep_rebuilds()) == ["09"]
    # If no worker has begun by then, the tasks count as lost.
    skip(301.0)
    assert set(keys_of(memory.sweep_rebuilds())) == {"10", "11", *keys[1:9]}


def test_a_due_session_is_not_swept(memory: ConversationMemory) -> None:
    fold_in_outage(memory)
    talk(memory, 12)

    assert memory.sweep_rebuilds() == []


def test_a_rebuild_begins_after_the_last_version_before_the_fallbacks_first() -> None:
    model = Model()
    memory = memory_with(model)
    fold(memory)
    kept = valid()
    fold_in_outage(memory)
    fold(memory)
    replaced = valid()[len(kept) :]
    assert replaced[0].stand_in is True
    assert replaced[-1].fallback is False
    model.requests.clear()

    assert make_again(memory).outcome == "published"

    row = session()
    assert row.rebuild_after is None
    assert row.current_version > replaced[-1].version
    made = valid()[len(kept) :]
    assert valid()[: len(kept)] == kept
    assert not {version.version for version in made} & {version.version for version in replaced}
    assert (made[0].parent_version, made[0].first_position) == (kept[-1].version, kept[-1].last_position + 1)
    assert not any(version.fallback for version in made)
    assert len(model.requests) == len(made)
    # The model's text has all that was said.
    assert covered(made[-1].text) == list(range(1, row.covered_position + 1))
    assert damage() == []


def test_each_message_is_explained_by_the_version_that_folded_it(memory: ConversationMemory) -> None:
    fold(memory)
    fold_in_outage(memory)
    fold(memory)
    make_again(memory)

    explained = explain.explain(memory, session(), memory.load("s"), limit=100)

    line = valid()
    assert {message.version for message in explained if message.version} == {version.version for version in line}
    for message in explained:
        holding = [version for version in line if version.first_position <= message.position <= version.last_position]
        assert ([] if message.version is None else [message.version]) == [version.version for version in holding]


@pytest.mark.parametrize(
    ("error", "shortest", "longest"),
    [
        (DOWN, 0, 300),
        (exceptions.RateLimited("429"), 0, 300),
        # The others were just answered, so it may be this session's content.
        (exceptions.ModelMisconfigured("401"), DAY - 60, DAY),
        (exceptions.BadModelOutput("blank"), DAY - 60, DAY),
        (exceptions.RequestRejected("400"), DAY - 60, DAY),
    ],
)
def test_a_rebuild_that_fails_waits_and_does_not_ask_the_fallback(
    error: Exception, shortest: float, longest: float, model: Model, memory: ConversationMemory
) -> None:
    fold_in_outage(memory)
    before = session()
    model.error = error

    assert make_again(memory).outcome == "stalled"

    row = session()
    assert (row.current_version, row.last_version) == (before.current_version, before.last_version)
    assert (row.lease_token, row.attempts, row.due_since) == ("", 0, None)
    assert shortest < seconds_until_rebuild() <= longest
    assert memory.sweep_rebuilds() == []


def test_the_fallbacks_version_of_a_refused_chunk_stays(model: Model, memory: ConversationMemory) -> None:
    model.error = exceptions.ContentRefused("no")
    fold(memory)

    assert all(version.fallback and not version.stand_in for version in versions())
    assert session().rebuild_after is None
    assert make_again(memory).outcome == "not_due"


def test_a_rebuild_asks_the_fallback_for_a_chunk_that_the_model_refuses() -> None:
    model = Model()
    memory = memory_with(model)
    fold_in_outage(memory)
    model.error = exceptions.ContentRefused("no")

    assert make_again(memory).outcome == "published"

    assert all(version.fallback and not version.stand_in for version in valid())
    assert session().rebuild_after is None
    assert damage() == []


def test_a_rebuild_stops_when_the_session_becomes_due_and_goes_on_later() -> None:
    model = Model()
    memory = memory_with(model)
    talk(memory, 40)
    fold_in_outage(memory)
    assert len(valid()) > 3
    current = session().current_version
    model.requests.clear()
    model.first = lambda: talk(memory, 12)

    result = make_again(memory)

    assert (result.outcome, result.again) == ("published", True)
    assert len(model.requests) == 1
    row = session()
    assert (row.current_version, row.lease_token) == (current, "")
    assert row.due_since is not None
    assert seconds_until_rebuild() <= 0
    assert [version.building for version in versions()][-1] is True
    assert damage() == []

    assert memory.compact("s") == "published"
    assert damage() == []
    model.requests.clear()
    assert make_again(memory).outcome == "published"

    line = valid()
    # The first chunk was not folded again.
    assert len(model.requests) == len(line) - 1
    assert covered(line[-1].text) == list(range(1, session().covered_position + 1))
    assert (session().rebuild_after, session().current_version) == (None, line[-1].version)
    assert damage() == []


@pytest.mark.parametrize(
    ("change", "stands_in"),
    [("redact", True), ("redact", False), ("truncate", True), ("truncate", False), ("clear", False)],
)
def test_a_change_marks_the_session_if_a_version_of_the_fallback_is_left(change: str, stands_in: bool) -> None:
    memory = memory_with(Model())
    fold(memory)
    position = session().covered_position
    fold_in_outage(memory)
    fold(memory)
    last_of_fallback = max(version.last_position for version in versions() if version.stand_in)
    # After the fallback's versions, or in the first of them.
    at = last_of_fallback + 3 if stands_in else position + 1
    models.Session.objects.update(rebuild_after=None)

    memory.clear("s") if change == "clear" else getattr(memory, change)("s", at)

    assert any(version.stand_in for version in valid()) == stands_in
    if stands_in:
        assert seconds_until_rebuild() <= 0
    else:
        assert session().rebuild_after is None
    assert damage() == []


def test_an_edit_does_not_begin_a_rebuild_that_has_failed_before_its_time() -> None:
    """Otherwise each edit would pay for a call."""
    model = Model()
    memory = memory_with(model)
    fold_in_outage(memory)
    model.error = exceptions.BadModelOutput("blank")
    assert make_again(memory).outcome == "stalled"

    memory.pop("s")

    assert seconds_until_rebuild() > DAY - 60
    assert memory.sweep_rebuilds() == []


@pytest.mark.parametrize("work", ["rebuild", "replace_stand_ins"])
def test_an_edit_during_a_rebuild_lets_the_next_one_begin_soon(work: Literal["rebuild", "replace_stand_ins"]) -> None:
    model = Model()
    memory = memory_with(model)
    fold_in_outage(memory)
    model.first = lambda: memory.pop("s")

    # A person's rebuild is tried again because of this outcome.
    assert memory.carry_out(session().pk, work).outcome == "busy"

    assert seconds_until_rebuild() <= 0
    assert memory.carry_out(session().pk, work).outcome == "published"
    assert damage() == []


@pytest.mark.parametrize("stands_in", [True, False])
def test_a_fork_is_marked_if_it_has_a_version_of_the_fallback(stands_in: bool, memory: ConversationMemory) -> None:
    fold(memory)
    position = session().covered_position
    fold_in_outage(memory)
    fold(memory)

    memory.fork("s", session().last_position if stands_in else position + 1, key="copy")

    assert (session("copy").rebuild_after is not None) == stands_in
    if stands_in:
        while memory.compact("copy") == "published":
            pass
        assert make_again(memory, "copy").outcome == "published"
        assert not any(version.fallback for version in valid("copy"))
        assert any(version.fallback for version in valid("s"))
    assert damage() == []


def test_an_option_turns_rebuilds_off() -> None:
    memory = memory_with(Model(), rebuild_stand_ins=False)
    fold_in_outage(memory)

    assert versions()[0].fallback
    assert not versions()[0].stand_in
    assert session().rebuild_after is None
    assert memory.sweep_rebuilds() == []


def test_a_truncation_to_where_an_unfinished_rebuild_ended_lets_the_next_one_finish() -> None:
    model = Model()
    memory = memory_with(model)
    talk(memory, 40)
    fold_in_outage(memory)
    model.first = lambda: talk(memory, 12)
    make_again(memory)
    [built] = [version for version in versions() if version.building]
    # The first version of the fallback ends there too.
    memory.truncate("s", built.last_position)
    assert session().covered_position == built.last_position

    assert make_again(memory).outcome == "published"

    assert not any(version.fallback for version in valid())
    assert session().rebuild_after is None
    assert damage() == []


def test_an_edit_does_not_end_a_rebuild_that_a_person_asked_for(model: Model, memory: ConversationMemory) -> None:
    talk(memory, 40)
    fold(memory)
    model.first = lambda: talk(memory, 12)
    memory.carry_out(session().pk, "rebuild")
    assert [version.building for version in versions()][-1] is True
    fold(memory)
    made = len(versions())

    memory.truncate("s", session().last_position - 1)

    assert seconds_until_rebuild() <= 0
    assert make_again(memory).outcome == "published"
    assert versions()[made - 1].version < session().current_version
    assert session().rebuild_after is None
    assert damage() == []


def fold_one_part(memory: ConversationMemory, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold all before a long message, and then the first part of it while the model raises ``error``."""
    model = memory.model
    assert isinstance(model, Model)
    long = ChatMessage.human("[[9000]] " + "word " * 400)
    memory.append("s", ChatMessage.ai("b " * 70), long, *[ChatMessage.ai("short"), ChatMessage.human("x " * 40)] * 2)
    clock = itertools.count(0.0, 1000.0)
    with monkeypatch.context() as patch:
        # Each chunk exceeds the time of a run.
        patch.setattr(base, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
        while versions()[-1].part_end is None:
            folded = session().covered_position == models.Message.objects.get(content=long.content).position - 1
            model.error = error if folded else None
            assert memory.compact("s", despite_pause=True) == "published"
    model.error = None
    models.AliasState.objects.all().delete()
    part = versions()[-1]
    assert (part.building, part.stand_in) == (True, True)
    assert not any(version.stand_in for version in valid())


def test_a_part_of_the_fallback_that_was_dropped_costs_no_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_with(Model())
    fold(memory)
    fold_one_part(memory, DOWN, monkeypatch)
    models.Summary.objects.filter(building=True).update(prompt_hash="of another release")
    while memory.compact("s") == "published":
        pass
    assert not any(version.stand_in for version in valid())
    assert isinstance(memory.model, Model)
    memory.model.requests.clear()

    assert make_again(memory).outcome == "not_due"

    assert memory.model.requests == []
    row = session()
    assert (row.rebuild_after, row.lease_token) == (None, "")
    assert damage() == []


def test_a_part_of_the_fallback_is_made_again_although_the_session_was_truncated(
    monkeypatch: pytest.MonkeyPatch, memory: ConversationMemory
) -> None:
    fold(memory)
    fold_one_part(memory, DOWN, monkeypatch)
    memory.truncate("s", session().last_position - 1)
    talk(memory, 6)
    while memory.compact("s") == "published":
        pass
    assert any(version.stand_in for version in valid())

    assert make_again(memory).outcome == "published"

    assert not any(version.stand_in for version in valid())
    assert damage() == []


def test_both_stores_rebuild_the_same() -> None:
    results = []
    for store in (ORMStore(), InMemoryStore()):
        model = Model()
        memory = ConversationMemory(
            store,
            SummaryBuffer(60),
            model=model,
            fallback=ScriptedChatModel([f"[[{1000 + number}]] by the fallback" for number in range(20)]),
            scheduler=NullScheduler(),
            max_attempts=1,
            fallback_after=0,
            max_chunk_tokens=100,
            max_summary_tokens=2000,
        )
        fold(memory)
        fold_in_outage(memory)
        fold(memory)
        texts = [memory.load("s").to_text()]
        session_id = store.find(memory.resolve("s"))
        assert memory.sweep_rebuilds() == [session_id]
        assert store.waiting_rebuilds("default", within=300.0, limit=10) == 1
        assert store.waiting_rebuilds("default", within=200.0, limit=10) == 0
        assert session_id is not None
        model.first = lambda memory=memory: talk(memory, 12)
        texts += [str(memory.carry_out(session_id, "replace_stand_ins")), str(memory.compact("s"))]
        texts += [str(memory.carry_out(session_id, "replace_stand_ins")), memory.load("s").to_text()]
        assert memory.sweep_rebuilds() == []
        results.append(texts)

    assert results[0] == results[1]
    assert "[[100" in results[0][0]
    assert "[[100" not in results[0][-1]


# A whole rebuild, which somebody asks for.


def test_a_whole_rebuild_begins_at_the_first_message_and_is_shown_once_it_stands_for_as_much() -> None:
    def look() -> None:
        shown.append(memory.load("s").summary)
        model.first = look

    shown: list[str | None] = []
    model = Model()
    memory = memory_with(model)
    assert memory.rebuild("s") == "not_due"
    fold(memory)
    fold_in_outage(memory)
    before, last = session(), versions()[-1].version
    old = memory.load("s").summary
    model.first = look

    assert memory.rebuild("s") == "published"

    made = [version for version in versions() if version.version > last]
    assert (made[0].parent_version, made[0].first_position) == (None, 1)
    assert shown == [old] * len(made)
    assert not any(version.stand_in for version in valid())
    row = session()
    assert (row.current_version, row.covered_position) == (made[-1].version, before.covered_position)
    assert (row.epoch, row.rebuild_after) == (before.epoch, None)
    assert covered(made[-1].text) == list(range(1, row.covered_position + 1))
    assert damage() == []


@pytest.mark.parametrize("began", ["too late", "killed", "told to end", "failed"])
def test_a_whole_rebuild_that_is_not_finished_is_continued_by_a_sweep(
    began: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fallback has made nothing, so only the unfinished versions say where it began."""
    model = Model()

    def end() -> None:
        if model.requests[1:]:
            raise KeyboardInterrupt if began == "told to end" else DOWN
        model.first = end

    memory = memory_with(model, fallback=None)
    talk(memory, 40)
    fold(memory)
    before, last = session(), versions()[-1].version
    model.requests.clear()
    if began in ("too late", "killed"):
        monkeypatch.setattr(base, "time", types.SimpleNamespace(monotonic=itertools.count(0.0, 1000.0).__next__))
        assert memory.rebuild("s") == "published"
    else:
        model.first = end
        with pytest.raises(KeyboardInterrupt) if began == "told to end" else contextlib.nullcontext():
            assert memory.rebuild("s") == "stalled"
    row = session()
    assert (row.current_version, row.lease_token, row.attempts) == (before.current_version, "", 0)
    if began == "killed":  # It releases nothing, and its mark is that of the claim.
        prompt_hash = memory.requests.prompt_hash
        claim = memory.store.claim_rebuild(session().pk, lease=60, prompt_hash=prompt_hash, whole=True, wait=DAY)
        assert isinstance(claim, Claim)
        assert memory.rebuild("s") == "busy"
        skip(61.0)
        assert memory.sweep_rebuilds() == []
    skip(DAY if began == "killed" else 300.0 if began == "failed" else 0.0)

    runs = 0
    while ids := memory.sweep_rebuilds():
        assert keys_of(ids) == ["s"]
        assert make_again(memory).outcome == "published"
        runs += 1

    made = [version for version in versions() if version.version > last]
    assert (made[0].parent_version, made[0].first_position) == (None, 1)
    # No chunk was folded twice.
    assert [version.first_position for version in made] == sorted({version.first_position for version in made})
    assert runs == (len(made) - 1 if began in ("too late", "killed") else 1)
    assert session().epoch == before.epoch
    assert covered(memory.load("s").summary or "") == list(range(1, memory.load("s").covered + 1))
    assert damage() == []


def test_a_whole_rebuild_of_a_due_session_goes_on_and_stops_only_if_it_becomes_due() -> None:
    model = Model()
    memory = memory_with(model)
    talk(memory, 40)
    fold(memory)
    talk(memory, 12)
    assert session().due_since is not None

    assert memory.rebuild("s") == "published"

    assert session().rebuild_after is None
    assert memory.compact("s") == "published"
    model.first = lambda: talk(memory, 12)
    assert memory.rebuild("s") == "published"
    assert seconds_until_rebuild() <= 0
    assert damage() == []


def test_a_whole_rebuild_whose_model_fails_leaves_the_summary_that_there_is() -> None:
    model = Model()
    memory = memory_with(model)
    fold(memory)
    before = memory.load("s")
    model.error = DOWN

    assert memory.rebuild("s") == "stalled"

    assert memory.load("s") == before
    assert (session().lease_token, session().due_since, session().attempts) == ("", None, 0)
    model.error = None
    skip(301.0)
    # Nothing is built, and the fallback has made nothing: there is nothing to go on with.
    assert keys_of(memory.sweep_rebuilds()) == ["s"]
    assert make_again(memory).outcome == "not_due"
    assert session().rebuild_after is None


# What a rebuild continues.


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ([], []),
        ([(4, None, "now"), (5, 4, "now"), (6, 5, "now")], [4, 5, 6]),
        ([(4, None, "earlier"), (5, 4, "earlier")], []),
        # Another prompt ends the line. A version that was made from that version is not continued.
        ([(4, None, "now"), (5, 4, "earlier"), (6, 5, "now")], [4]),
        # A process that was overtaken made version 6 from version 4.
        ([(4, None, "now"), (5, 4, "now"), (6, 4, "now"), (7, 5, "now")], [4, 5, 7]),
        ([(4, None, "now"), (5, None, "now"), (6, 5, "now")], [4]),
        ([(4, 3, "now"), (5, 4, "now")], []),
    ],
)
def test_a_rebuild_continues_what_was_made_with_this_prompt_one_from_the_other(
    made: list[tuple[int, int | None, str]], line: list[int]
) -> None:
    unfinished = [
        models.Summary(version=version, parent_version=parent, prompt_hash=prompt) for version, parent, prompt in made
    ]
    assert list(values.building_line(unfinished, "now")) == line


def test_a_rebuild_sees_a_session_that_ends_with_its_summary() -> None:
    counters = Counters(
        last_position=9,
        unpinned_count=8,
        unpinned_tokens=80,
        covered_position=6,
        covered_count=5,
        covered_tokens=50,
    )
    claim = Claim(1, values.SessionName("default", "key"), "token", 0, 2, 1, 0.0, counters, summary=None)
    begun = values.rebuilding(claim, None, {}, None)
    assert (begun.rebuilding, begun.summary) == (True, None)
    assert begun.counters == Counters(last_position=6, unpinned_count=5, unpinned_tokens=50)
    newest = models.Summary(version=2, last_position=3, covered_count=2, covered_tokens=20)
    continued = values.rebuilding(claim, None, {1: models.Summary(version=1), 2: newest}, None)
    assert continued.summary == newest.value
    assert continued.counters == begun.counters._replace(covered_position=3, covered_count=2, covered_tokens=20)
