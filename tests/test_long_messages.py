"""Long messages: each character is folded once, in parts if need be, whatever happens between the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from django_convmemory import exceptions, models
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.fold import chunk
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules import transcript
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests import conversations
from tests.chunks import Killed, assert_sound, covered_position, spoken_in, transcript_of, versions
from tests.conversations import call
from tests.folding import MarkerModel, build, covered

pytestmark = pytest.mark.django_db

Kill = Callable[[ConversationMemory, int], None]
FILLER = "The customer told the agent about the order in detail. "


def report(facts: int = 20, filler: int = 200) -> ChatMessage:
    """A long message with facts, which are markers that stand far apart."""
    return ChatMessage.human("".join(f"[[{number}]] " + FILLER * filler for number in range(1, facts + 1)))


def long_session(store: Store, model: Any = None, **options: Any) -> Any:
    """A memory with a session that begins with a long message."""
    memory = build(model or MarkerModel(), store=store, max_chunk_tokens=2000, **options)
    memory.append("s", report(filler=30))
    memory.append("s", ChatMessage.ai("[[100]] Noted."), ChatMessage.human("[[101]] Thanks. " + FILLER * 8))
    return memory


@pytest.fixture(name="model")
def marker_model() -> MarkerModel:
    return MarkerModel()


@pytest.fixture(name="memory")
def memory_of_the_long_session(store: Store, model: MarkerModel) -> Any:
    return long_session(store, model)


@pytest.fixture
def kill(store: Store) -> Iterator[Kill]:
    """Makes a worker that is killed after so many calls of its model."""
    killed: list[tuple[ConversationMemory, Killed]] = []
    yield lambda memory, calls: killed.append((memory, Killed(memory, calls)))
    for memory, worker in killed:
        worker.steps.close()
        assert_sound(memory)


def facts_sent(model: MarkerModel) -> list[int]:
    return [mark for request in model.requests for mark in covered(transcript_of(request)) if mark < 100]


def test_each_fact_of_a_message_of_54000_tokens_reaches_the_model_once(store: Store) -> None:
    model = MarkerModel(lambda request: assert_sound(memory))
    memory = build(model, store=store)
    memory.append("s", report(), ChatMessage.ai("[[100]] Noted."), ChatMessage.human("[[101]] Thanks. " + FILLER * 8))
    assert memory.counter.count(memory.history("s")[0].message) > 54_000

    assert memory.compact("s") == "published"

    assert facts_sent(model) == list(range(1, 21))
    assert sum(transcript_of(request).count("in detail") for request in model.requests) == 20 * 200
    assert covered(memory.load("s").summary or "")[:20] == list(range(1, 21))
    assert all(memory.counter.count_text(transcript_of(request)) < 8100 for request in model.requests)
    assert_sound(memory)


def test_parts_are_a_line_of_versions_and_only_the_last_is_finished_alone(store: Store) -> None:
    building: list[int] = []
    model = MarkerModel(lambda request: building.append(sum(version.building for version in versions(memory))))
    memory = long_session(store, model)
    memory.compact("s")
    *parts, last = [version for version in versions(memory) if version.last == 1]
    assert len(parts) > 2
    assert building[: len(parts) + 1] == list(range(len(parts) + 1))
    assert [part.parent for part in parts] == [None, *(part.number for part in parts[:-1])]
    assert (last.parent, last.part_end) == (parts[-1].number, None)
    ends = [part.part_end or 0 for part in parts]
    assert ends == sorted(set(ends))
    assert not any(version.building for version in versions(memory))


# Runs that end between two parts.


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_the_part_after_the_last_published_one_is_next_when_a_worker_is_killed(
    memory: Any, model: MarkerModel, kill: Kill, calls: int
) -> None:
    kill(memory, calls)
    published = model.requests[:calls]
    ends = [version.part_end for version in versions(memory)]
    assert len(ends) == calls
    assert_sound(memory)

    model.requests.clear()
    assert memory.compact("s") == "published"

    # The killed worker's last call was not published, so it is made again. Nothing before is.
    sent = [mark for request in published for mark in covered(transcript_of(request))]
    assert sent + facts_sent(model) == list(range(1, 21))
    assert f"part {calls + 1} of" in model.requests[0].messages[-1].text
    assert covered(memory.load("s").summary or "")[:20] == list(range(1, 21))
    assert_sound(memory)


def test_a_run_that_is_out_of_time_ends_after_a_part(store: Store) -> None:
    model = MarkerModel()
    memory = long_session(store, model, max_run_seconds=1)
    object.__setattr__(memory.options, "max_run_seconds", 0.0)
    session_id = memory.store.find(memory.resolve("s"))
    assert session_id is not None
    runs = 0
    while memory.compact_id(session_id).again:
        runs += 1
        assert len(model.requests) == len(versions(memory)) == runs
        assert_sound(memory)
    assert facts_sent(model) == list(range(1, 21))
    assert covered_position(memory) == 2


def after_a_summary(store: Store, model: MarkerModel) -> ConversationMemory:
    """A memory with a session that has a summary of its first two messages, and a long message after them."""
    memory = build(model, store=store, max_chunk_tokens=2000)
    memory.append("s", ChatMessage.human("[[201]] " + FILLER * 8), ChatMessage.ai("[[202]] " + FILLER * 8))
    memory.append("s", report(filler=30))
    object.__setattr__(memory.options, "max_run_seconds", 0.0)
    memory.compact("s")
    object.__setattr__(memory.options, "max_run_seconds", 240.0)
    memory.append("s", ChatMessage.ai("[[100]] Noted."), ChatMessage.human("[[101]] Thanks. " + FILLER * 8))
    model.requests.clear()
    assert covered(memory.load("s").summary or "") == [201, 202]
    return memory


def test_other_prompts_begin_the_message_again(
    store: Store, model: MarkerModel, kill: Kill, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = after_a_summary(store, model)
    kill(memory, 2)
    model.requests.clear()
    monkeypatch.setitem(vars(memory.requests), "prompt_hash", "f" * 64)
    model.meanwhile = lambda request: assert_sound(memory)
    assert memory.compact("s") == "published"
    assert facts_sent(model) == list(range(1, 21))
    assert_sound(memory)
    # The parts that were made with the old prompts do not come back when the new summary goes.
    memory.redact("s", 3)
    assert covered(memory.load("s").summary or "") == [201, 202]
    assert_sound(memory)


def test_parts_of_two_prompts_are_not_mixed(store: Store, kill: Kill, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = after_a_summary(store, MarkerModel())
    kill(memory, 2)
    with monkeypatch.context() as patch:
        patch.setitem(vars(memory.requests), "prompt_hash", "f" * 64)
        kill(memory, 1)
        assert_sound(memory)
    memory.compact("s")
    assert covered(memory.load("s").summary or "")[:22] == [201, 202, *range(1, 21)]
    assert_sound(memory)


# Operations between two parts.


def test_a_redaction_of_the_message_drops_its_parts(store: Store, memory: Any, model: MarkerModel, kill: Kill) -> None:
    kill(memory, 2)
    memory.redact("s", 1)
    assert versions(memory) == []
    model.requests.clear()
    if memory.compact("s") == "published":
        assert facts_sent(model) == []
    assert_sound(memory)
    if isinstance(store, ORMStore):
        assert not models.Summary.objects.filter(text__contains="[[1]]").exists()


def test_a_redaction_of_a_later_message_leaves_the_parts(memory: Any, model: MarkerModel, kill: Kill) -> None:
    kill(memory, 2)
    done = facts_sent(model)[: len(covered(versions(memory)[-1].text))]
    memory.redact("s", 2)
    model.requests.clear()
    assert memory.compact("s") == "published"
    assert done + facts_sent(model) == list(range(1, 21))
    assert_sound(memory)


def test_a_truncation_after_the_message_leaves_the_parts(memory: Any, model: MarkerModel, kill: Kill) -> None:
    kill(memory, 2)
    done = covered(versions(memory)[-1].text)
    memory.truncate("s", 1)
    assert_sound(memory)
    memory.append("s", ChatMessage.ai("[[100]] Other."), ChatMessage.human("[[101]] " + FILLER * 8))
    model.requests.clear()
    assert memory.compact("s") == "published"
    assert done + facts_sent(model) == list(range(1, 21))
    assert_sound(memory)


@pytest.mark.parametrize("how", ["truncate", "clear"])
def test_parts_go_with_their_message(memory: Any, kill: Kill, how: str) -> None:
    kill(memory, 2)
    memory.truncate("s", 0) if how == "truncate" else memory.clear("s")
    assert versions(memory) == []
    assert_sound(memory)
    memory.append("s", ChatMessage.human("[[7]] " + FILLER * 300), ChatMessage.ai("[[8]] " + FILLER * 8))
    assert memory.compact("s") == "published"
    assert covered(memory.load("s").summary or "") == [7]
    assert_sound(memory)


def test_a_fork_between_two_parts_folds_the_whole_message_for_itself(
    memory: Any, model: MarkerModel, kill: Kill
) -> None:
    kill(memory, 2)
    memory.fork("s", 3, key="copy")
    assert versions(memory, "copy") == []
    model.requests.clear()
    assert memory.compact("copy") == "published"
    assert facts_sent(model) == list(range(1, 21))
    assert_sound(memory)


# The bound, exchanges, and other models.


def test_beyond_the_most_parts_the_version_says_that_the_message_was_cut(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "MAX_PARTS", 3)
    model = MarkerModel()
    memory = long_session(store, model)
    assert memory.compact("s") == "published"
    parts = [version for version in versions(memory) if version.last == 1]
    assert len(parts) == 3
    sent = facts_sent(model)
    assert sent == list(range(1, len(sent) + 1))
    assert 0 < len(sent) < 20
    if isinstance(store, ORMStore):
        cut = models.Summary.objects.order_by("version").values_list("cut", flat=True)
        assert list(cut)[:3] == [False, False, True]
        assert not any(list(cut)[3:])
    assert_sound(memory)


def test_the_parts_of_a_killed_worker_count(store: Store, kill: Kill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "MAX_PARTS", 3)
    memory = long_session(store)
    kill(memory, 2)
    memory.compact("s")
    assert len([version for version in versions(memory) if version.last == 1]) == 3


def test_a_tool_exchange_longer_than_the_window_is_folded_in_parts(store: Store) -> None:
    model = MarkerModel(lambda request: assert_sound(memory))
    memory = build(model, store=store, max_chunk_tokens=300)
    ids = [f"c{number}" for number in range(1, 61)]
    results = [ChatMessage.tool(f"[[{number}]] " + "word " * 20, call_id) for number, call_id in enumerate(ids, 1)]
    memory.append("s", ChatMessage.ai(tool_calls=[call(call_id) for call_id in ids]), *results)
    memory.append("s", ChatMessage.human("[[101]] well? " + FILLER * 8))
    assert memory.compact("s") == "published"
    assert facts_sent(model) == list(range(1, 61))
    assert sum(transcript_of(request).count("[calls look_up") for request in model.requests) == 60
    # No part has the beginning of a result that the next part could have as a whole.
    assert all(line.rstrip().endswith("word") for line in result_lines(model))
    assert covered_position(memory) == 61
    assert_sound(memory)


def result_lines(model: MarkerModel) -> list[str]:
    lines = [line for request in model.requests for line in transcript_of(request).splitlines()]
    return [line for line in lines if line.startswith("[tool]")]


def test_a_part_that_is_too_long_for_the_model_is_made_smaller(store: Store) -> None:
    def refuse_long(request: ChatRequest) -> None:
        if len(transcript_of(request)) > 3000:
            raise exceptions.ContextLengthExceeded("too long")

    model = MarkerModel(refuse_long)
    memory = long_session(store, model)
    assert memory.compact("s") == "published"
    answered = [request for request in model.requests if len(transcript_of(request)) <= 3000]
    facts = [mark for request in answered for mark in covered(transcript_of(request)) if mark < 100]
    assert facts == list(range(1, 21))
    assert_sound(memory)


# Rebuilds.


def test_a_rebuild_that_fails_between_two_parts_goes_on_there(memory: Any, model: MarkerModel) -> None:
    def fail_once(request: ChatRequest) -> None:
        if len(model.requests) == 3:
            raise exceptions.ModelUnavailable("down")

    memory.compact("s")
    before = memory.load("s").summary
    model.requests.clear()
    model.meanwhile = fail_once
    assert memory.rebuild("s") == "stalled"
    assert memory.load("s").summary == before
    assert_sound(memory)
    assert memory.rebuild("s") == "published"
    del model.requests[2]
    assert facts_sent(model) == list(range(1, 21))
    assert_sound(memory)


def test_a_stand_in_within_a_long_message_has_the_whole_message_folded_again(store: Store) -> None:
    down: list[bool] = []

    def fail(request: ChatRequest) -> None:
        if len(model.requests) > 2 and not down:
            raise exceptions.ModelUnavailable("down")

    model, fallback = MarkerModel(fail), MarkerModel(name="fallback")
    memory = long_session(store, model, fallback=fallback, fallback_after=0, max_attempts=1)
    assert memory.compact("s") == "published"
    assert fallback.requests
    assert covered(memory.load("s").summary or "")[:20] == list(range(1, 21))
    assert_sound(memory)

    down.append(False)
    model.requests.clear()
    fallback.requests.clear()
    session_id = memory.store.find(memory.resolve("s"))
    assert session_id is not None
    while memory.carry_out(session_id, "replace_stand_ins").outcome == "published":
        assert_sound(memory)
    assert fallback.requests == []
    assert covered(memory.load("s").summary or "")[:20] == list(range(1, 21))
    assert facts_sent(model) == list(range(1, 21))
    assert_sound(memory)
    assert memory.sweep_rebuilds() == []


# Any messages and any window.


def fold_all(memory: ConversationMemory) -> None:
    while memory.compact("s") == "published":
        continue


@st.composite
def long_conversations(draw: st.DrawFn) -> list[ChatMessage]:
    batch = draw(conversations.conversations(min_size=1, max_size=12))
    return [
        ChatMessage.restore(
            message.role,
            (message.text + " ") * draw(st.sampled_from([1, 1, 10, 60])) if message.text else message.content,
            message.kind,
            name=message.name,
            tool_calls=message.tool_calls,
            tool_call_id=message.tool_call_id,
        )
        for message in batch
    ]


@settings(max_examples=min(60, settings().max_examples), suppress_health_check=[HealthCheck.too_slow])
@given(long_conversations(), st.integers(100, 400), st.integers(1, 200))
def test_each_character_is_in_exactly_one_prompt(batch: list[ChatMessage], window: int, limit: int) -> None:
    for store in (InMemoryStore(), ORMStore()):
        models.Session.objects.all().delete()
        model = MarkerModel()
        memory = build(model, limit, store=store, max_chunk_tokens=window)
        memory.append("s", *batch)
        fold_all(memory)
        rows = memory.history("s", after=0, limit=100)
        folded = [row.message for row in rows if row.position <= covered_position(memory) and not row.message.pinned]
        # A chunk without words is carried over without a call, so only the words are compared.
        sent = "".join(spoken_in(request) for request in model.requests)
        assert words(sent) == words("".join(map(spoken, folded)))
        for request in model.requests:
            assert request.fold is not None
            assert transcript_of(request) == transcript.of(request.fold.turns, request.fold.days)
        assert_sound(memory)


def words(text: str) -> str:
    return "".join(filter(str.isalnum, text))
