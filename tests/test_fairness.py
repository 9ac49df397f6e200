"""Workers are for all: one person with much to fold leaves them to the others after each chunk."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from hypothesis import given, settings, strategies as st

from django_convmemory import exceptions, models, tasks
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.fold import chunk as chunks
from django_convmemory.fold.run import Outcome
from django_convmemory.memory import ConversationBufferMemory, memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.pause import Reason
from django_convmemory.rules.values import Claim, Release
from django_convmemory.search import indexing
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from tests import conversations
from tests.folding import MarkerModel, build
from tests.outages import MINUTE, Provider, Simulation, pause_alias

pytestmark = pytest.mark.django_db

SMALL = range(32)
# What a large session has: some thirty chunks.
LARGE = 150


@pytest.fixture
def simulate(db: None) -> Iterator[Callable[..., Simulation]]:
    """Make simulations with four workers, and a model that takes a second."""
    with contextlib.ExitStack() as stack:

        def make() -> Simulation:
            simulation = Simulation(Provider(seconds=1.0), max_chunk_tokens=100)
            return stack.enter_context(contextlib.closing(simulation))

        yield make


def waits(simulation: Simulation) -> list[float]:
    """Return for how many seconds each small session waited."""
    return [wait * MINUTE for wait in simulation.waits("small")]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("number", [4, 8])
@pytest.mark.parametrize("gap", [0.0, 0.7, 3.1])
def test_large_sessions_of_one_person_hold_up_nobody(
    simulate: Callable[..., Simulation], number: int, gap: float
) -> None:
    simulation = simulate()
    for large in range(number):
        simulation.make_due(f"large {large}", visitor="hoarder", exchanges=LARGE)
    for small in SMALL:
        make_due = functools.partial(simulation.make_due, f"small {small}", visitor=f"visitor {small % 4}")
        simulation.at(9.5 + gap * small, make_due)
    simulation.run(5)
    assert len(waits(simulation)) == len(SMALL)
    # If all come at once, four workers need eight seconds.
    assert max(waits(simulation)) <= 10
    assert statistics.median(waits(simulation)) <= 5
    # Nothing is lost by taking turns: the workers are busy until all is done, but for a chunk or two.
    finished = max(simulation.finished[f"large {large}"] for large in range(number))
    assert finished <= 1.2 * len(simulation.provider.calls) / min(number, simulation.workers)


@pytest.mark.only_on("sqlite")
def test_many_sessions_of_one_person_fill_no_queue(simulate: Callable[..., Simulation]) -> None:
    simulation = simulate()
    for large in range(60):
        simulation.make_due(f"large {large}", visitor="hoarder", exchanges=24)
    for small in SMALL:
        make_due = functools.partial(simulation.make_due, f"small {small}", visitor=f"visitor {small % 4}")
        simulation.at(9.5 + 2.1 * small, make_due)
    simulation.run(6)
    assert len(waits(simulation)) == len(SMALL)
    assert max(waits(simulation)) <= 5
    assert len(simulation.finished) == 60 + len(SMALL)


def due(memory: ConversationMemory, key: str, *, visitor: str = "", messages: int = 20) -> int:
    """Make a session due, and return its id."""
    session = memory.session(key, visitor=visitor) if visitor else memory.session(key)
    texts = [f"[[{number}]] " + "word " * 8 for number in range(1, messages + 1)]
    session.append(
        *[(ChatMessage.human if number % 2 == 0 else ChatMessage.ai)(text) for number, text in enumerate(texts)]
    )
    session_id = memory.store.find(session.session_name)
    assert session_id is not None
    return session_id


def claimed(memory: ConversationMemory, session_id: int) -> Claim:
    claim = memory.store.claim(session_id, memory.threshold, lease=60, prompt_hash="", force=True)
    assert isinstance(claim, Claim)
    return claim


def test_a_worker_gives_way_after_a_chunk_if_another_person_waits(store: Store) -> None:
    memory = build(MarkerModel(), store=store, max_chunk_tokens=100)
    mine = [due(memory, key, visitor="v") for key in "ab"]
    before = memory.compact_id(mine[0])
    # Sessions of the same visitor do not count. Nor do those of others once somebody folds them.
    assert (before.outcome, before.again) == (Outcome.PUBLISHED, False)
    other = due(memory, "c", visitor="w")
    claim = claimed(memory, other)
    third = due(memory, "d", visitor="v")
    assert not memory.compact_id(third).again
    memory.store.release(claim, memory.threshold)
    result = memory.compact_id(mine[1])
    assert (result.outcome, result.again) == (Outcome.PUBLISHED, True)
    # In this process, somebody waits for all of it.
    assert memory.compact(memory.session("b", visitor="v")) == Outcome.PUBLISHED
    assert not memory.store.is_due(mine[1])


def test_sessions_without_an_owner_give_way_to_each_other(store: Store) -> None:
    memory = build(MarkerModel(), store=store, max_chunk_tokens=100)
    first, _ = due(memory, "a"), due(memory, "b")
    assert memory.compact_id(first).again


def test_nobody_gives_way_to_sessions_of_a_paused_alias(store: Store) -> None:
    memory = build(MarkerModel(), store=store, max_chunk_tokens=100)
    paused = build(MarkerModel(), store=store, alias="paused")
    memory.sharing = lambda: ("default", "paused")
    mine, _ = due(memory, "a", visitor="v"), due(paused, "b", visitor="w")
    assert memory.compact_id(mine).again
    pause_alias(store, Reason.MISCONFIGURED, "401", alias="paused")
    assert not memory.compact_id(mine).again


def test_a_person_has_so_many_workers_while_others_wait(store: Store) -> None:
    memory = build(MarkerModel(), store=store, max_runs_per_owner=2)
    mine = [due(memory, key, visitor="v") for key in "abc"]
    claims = [claimed(memory, session_id) for session_id in mine[:2]]
    other = due(memory, "d", visitor="w")
    assert memory.compact_id(mine[2]).outcome == Outcome.BUSY
    assert memory.store.is_due(mine[2])
    # Others have workers of their own, and what somebody has asked for is folded.
    assert memory.compact_id(other).outcome == Outcome.PUBLISHED
    assert memory.compact_id(mine[2]).outcome == Outcome.PUBLISHED
    due(memory, "e", visitor="w")
    again = due(memory, "f", visitor="v")
    assert memory.compact_id(again).outcome == Outcome.BUSY
    assert memory.compact_id(again, asked=True).outcome == Outcome.PUBLISHED
    assert [memory.store.release(claim, memory.threshold) for claim in claims] == [True, True]


class Sent:
    """A scheduler that notes what it was asked to send."""

    after_commit = False
    queues = True

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.swept: list[int] = []

    def send(self, memory: Any, session_id: int, *, delay: float = 0.0, swept: bool = False) -> bool:
        (self.swept if swept else self.sent).append(session_id)
        return True

    def schedule(self, memory: Any, session_id: int, *, delay: float = 0.0) -> None:
        self.sent.append(session_id)

    def request(self, memory: Any, session_id: int, work: Any) -> bool:
        return True


def test_at_the_end_of_a_lease_a_session_whose_task_was_dropped_is_sent(store: Store) -> None:
    scheduler = Sent()
    memory = build(MarkerModel(), store=store, scheduler=scheduler, max_runs_per_owner=1)
    ids = [due(memory, key, visitor="v") for key in "abc"]
    claim = claimed(memory, ids[0])
    due(memory, "d", visitor="w")
    assert memory.compact_id(ids[2]).outcome == Outcome.BUSY
    scheduler.sent.clear()
    memory.store.release(claim, memory.threshold)
    memory.compact_id(ids[0])
    # Not the second one: its task is in the queue.
    assert scheduler.sent == [ids[2]]
    scheduler.sent.clear()
    memory.compact_id(ids[1])
    assert scheduler.sent == []


@pytest.mark.only_on("sqlite")
def test_a_rebuild_goes_on_after_the_others(simulate: Callable[..., Simulation]) -> None:
    simulation = simulate()
    simulation.make_due("large", visitor="v", exchanges=LARGE)
    simulation.run(2)
    large = simulation.memory.session("large", visitor="v")
    version = models.Session.objects.get(key="large").current_version
    simulation.memory.request_rebuild(large)
    for small in range(300):
        make_due = functools.partial(simulation.make_due, f"small {small}", visitor=f"visitor {small}")
        simulation.at(2 * MINUTE + 0.43 * small, make_due)
    simulation.run(5)
    # Not a chunk a minute, by the sweeps.
    assert models.Session.objects.get(key="large").current_version > version


def test_the_next_of_a_chain_is_of_nobody_who_has_workers_enough(store: Store) -> None:
    memory = build(MarkerModel(), store=store)

    def next_of_chain() -> list[int]:
        return store.sweep("default", limit=1, queued_for=300, most_leases=2)

    for key in "ab":
        claimed(memory, due(memory, key, visitor="v"))
    due(memory, "c", visitor="v")
    other = due(memory, "d", visitor="w")
    assert next_of_chain() == [other]
    assert next_of_chain() == []


def test_the_next_of_a_chain_has_not_failed_if_such_ones_have_workers_enough(store: Store) -> None:
    memory = build(MarkerModel(), store=store)
    failed = [due(memory, key) for key in "abc"]
    for session_id in failed:
        store.release(claimed(memory, session_id), memory.threshold, Release(error="timed out"))
    other = due(memory, "d")
    for session_id in failed[:2]:
        claimed(memory, session_id)
    assert store.sweep("default", limit=1, queued_for=300, most_leases=2) == [other]
    assert store.sweep("default", limit=1, queued_for=300, most_leases=2) == []


def test_the_rest_of_a_swept_session_is_swept_too(simulate: Callable[..., Simulation]) -> None:
    """Otherwise each turn would add a task to the queue: the rest, and the next of the chain."""
    scheduler = Sent()
    memory = build(MarkerModel(), scheduler=scheduler, max_chunk_tokens=100)
    mine, _ = due(memory, "a", visitor="v"), due(memory, "b", visitor="w")
    scheduler.sent.clear()
    tasks.fold(memory, mine, swept=True)
    assert (scheduler.sent, scheduler.swept) == ([], [mine])


def test_an_index_that_cannot_be_made_is_not_tried_at_once_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ConversationBufferMemory(store, scheduler=Sent())
    memory.append("s", *[ChatMessage.human(f"Hello {number}.") for number in range(400)])
    session_id = memory.store.find(memory.resolve("s"))
    assert session_id is not None
    monkeypatch.setattr(indexing, "index", lambda store, session_id: (0, False))
    assert not memory.compact_id(session_id).again


def test_aliases_share_workers_if_their_tasks_go_to_one_queue(settings: Any) -> None:
    window = {"BACKEND": "django_convmemory.memory.ConversationBufferWindowMemory"}
    celery = {"BACKEND": "django_convmemory.tasks.CeleryScheduler"}
    settings.CONVMEMORY = {
        "default": {"SCHEDULER": celery},
        "same": {"SCHEDULER": celery},
        "other": {"SCHEDULER": celery | {"OPTIONS": {"queue": "other"}}},
        "nothing to do": window | {"OPTIONS": {"window_size": 4, "index": False}},
        "broken": {"SCHEDULER": {"BACKEND": "no.such.Scheduler"}},
    }
    assert memories["default"].aliases == ("default", "same")
    assert memories["other"].aliases == ("other",)


def test_what_a_model_was_found_to_take_is_kept_until_all_is_folded(store: Store) -> None:
    sizes: list[int] = []

    def refuse_long(request: ChatRequest) -> None:
        assert request.fold is not None
        sizes.append(len(request.fold.turns))
        if len(request.fold.turns) > 9:
            raise exceptions.ContextLengthExceeded("too long")

    memory = build(MarkerModel(refuse_long), store=store, max_chunk_tokens=300)
    mine, _ = due(memory, "a", visitor="v", messages=60), due(memory, "b", visitor="w")
    assert memory.compact_id(mine).again
    assert sizes[0] > 9
    del sizes[:]
    while memory.compact_id(mine).again:
        pass
    assert max(sizes) <= 9
    # A later run tries the whole window again: the model may be another one.
    del sizes[:]
    due(memory, "a", visitor="v", messages=60)
    memory.compact_id(mine)
    assert sizes[0] > 9


def test_indexing_gives_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MarkerModel()
    memory = build(model, store=store)
    monkeypatch.setattr(indexing, "_PORTION_SIZE", 200)
    mine, _ = due(memory, "a", visitor="v"), due(memory, "b", visitor="w")
    result = memory.compact_id(mine)
    assert (result.again, result.progressed, model.requests) == (True, True, [])
    runs = 1
    while memory.compact_id(mine).again:
        runs += 1
    assert runs > 3
    assert not memory.store.is_due(mine)


def test_the_sweep_command_folds_a_chunk_of_each_session_in_turn(settings: Any) -> None:
    order: list[str] = []

    def note(request: ChatRequest) -> None:
        order.append("large" if "large" in request.messages[-1].text else "small")

    memory = build(MarkerModel(note), max_chunk_tokens=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(memories._made, "default", memory)
        for key, count in (("1", 12), ("2", 12)):
            memory.session(key, visitor="v").append(*[ChatMessage.human("large " + "word " * 20)] * count)
        memory.session("3", visitor="w").append(*[ChatMessage.human("small " + "word " * 20)] * 4)
        call_command("convmemory_sweep", stdout=StringIO())
    assert not models.Session.objects.due().exists()
    # One of each visitor comes first, and then what is left.
    assert "small" in order[:2]
    assert order.count("large") > 4


@settings(max_examples=60, deadline=None)
@given(
    conversation=conversations.conversations(min_size=1, max_size=40),
    beginning=st.integers(1, 9),
    chunk=st.sampled_from([100, 150]),
    is_rebuilt=st.booleans(),
)
def test_reading_the_beginning_of_a_tail_folds_the_same(
    conversation: list[ChatMessage], beginning: int, chunk: int, is_rebuilt: bool
) -> None:
    def folded() -> list[int]:
        store = InMemoryStore()
        memory = build(MarkerModel(), store=store, max_chunk_tokens=chunk)
        memory.append("s", *conversation)
        memory.compact("s")
        if is_rebuilt:
            memory.rebuild("s")
        session = store.session(memory.resolve("s"))
        return [version.covered.covered_position for version in session.summaries()]

    whole = folded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_BEGINNING", beginning)
        parts = folded()
    # Chunks may end elsewhere, because a reading ends there. What is covered in the end is the same.
    assert parts[-1:] == whole[-1:]
