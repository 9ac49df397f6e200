"""``reanchor_every``: a summary that was folded often is made from the messages again."""

from __future__ import annotations

from typing import Any

import pytest

from django_convmemory import models
from django_convmemory.fold.run import Outcome
from django_convmemory.maintenance.recount import recount
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.store.either import Store
from django_convmemory.store.orm import ORMStore
from tests.folding import MarkerModel, build, covered, session, talk, versions

pytestmark = pytest.mark.django_db


def reanchored(store: Store | None = None, every: int | None = 3, **options: Any) -> ConversationSummaryBufferMemory:
    return build(MarkerModel(), store=store or ORMStore(), reanchor_every=every, max_chunk_tokens=100, **options)


def fold(memory: ConversationSummaryBufferMemory, times: int = 1) -> None:
    """Fold once for each time: four messages are one chunk."""
    for _ in range(times):
        while not memory.load("s").pending:
            talk(memory, 1)
        assert memory.compact("s") == "published"


def work_off(memory: ConversationSummaryBufferMemory) -> int:
    """Make again what a sweep finds, and return how many runs that took."""
    runs = 0
    while session_ids := memory.sweep_rebuilds():
        for session_id in session_ids:
            result = memory.carry_out(session_id, "replace_stand_ins")
            assert result.outcome == Outcome.PUBLISHED
            runs += 1
            models.Session.objects.filter(rebuild_after__isnull=False).update(rebuild_after="2001-01-01T00:00:00Z")
            assert runs < 50
    return runs


def test_after_so_many_folds_the_summary_is_made_from_the_messages() -> None:
    memory = reanchored()
    fold(memory, 2)
    assert memory.sweep_rebuilds() == []
    fold(memory)
    folds = [version.folds for version in versions()]
    assert folds == sorted(folds)
    assert folds[-1] >= 3
    before, last = memory.load("s"), versions()[-1].version
    assert work_off(memory) > 0
    made = [version for version in versions() if version.version > last]
    assert (made[0].parent_version, made[0].first_position) == (None, 1)
    assert {version.folds for version in made} == {0}
    assert session().current_version == made[-1].version
    assert memory.load("s").covered == before.covered
    assert covered(memory.load("s").summary or "") == list(range(1, before.covered + 1))
    # It begins to count anew.
    assert memory.sweep_rebuilds() == []
    fold(memory)
    assert versions()[-1].folds >= 1
    assert session().rebuild_after is None or versions()[-1].folds >= 3


@pytest.mark.parametrize("edit", ["truncate", "redact", "recount", "fork"])
def test_an_edit_of_the_tail_does_not_forget_it(store: Store, edit: str) -> None:
    memory, key = reanchored(store), "s"
    fold(memory, 3)
    talk(memory, 1)
    snapshot = memory.store.load(memory.resolve("s"), memory.strategy.view(), 0)
    assert snapshot is not None
    covered_position, last = snapshot.counters.covered_position, snapshot.counters.last_position
    if edit == "truncate":
        memory.truncate("s", after=covered_position)
    elif edit == "redact":
        memory.redact("s", last)
    elif edit == "fork":
        key = "copy"
        memory.fork("s", last, key=key)
    elif isinstance(store, ORMStore):
        assert recount(memory, snapshot.session_id, using="default")
    assert memory.store.find(memory.resolve(key)) in memory.sweep_rebuilds()
    # Before what is left was folded so often, there is nothing to make again.
    memory.truncate(key, after=covered_position - 1)
    assert memory.store.find(memory.resolve(key)) not in memory.sweep_rebuilds()


def test_it_is_off_unless_it_is_set() -> None:
    memory = reanchored(every=None)
    fold(memory, 6)
    assert session().rebuild_after is None
    assert memory.sweep_rebuilds() == []


def test_nothing_is_made_again_while_the_session_is_due() -> None:
    memory = reanchored(every=1)
    fold(memory)
    assert session().rebuild_after is not None
    while not memory.load("s").pending:
        talk(memory, 1)
    assert memory.sweep_rebuilds() == []
    memory.compact("s")
    assert memory.sweep_rebuilds() == [session().pk]


def test_it_goes_on_where_the_last_run_ended() -> None:
    memory = reanchored(every=3)
    fold(memory, 4)
    object.__setattr__(memory.options, "max_run_seconds", 0.0)
    last = versions()[-1].version
    runs = work_off(memory)
    made = [version for version in versions() if version.version > last]
    assert runs == len(made) > 1
    assert covered(memory.load("s").summary or "") == list(range(1, memory.load("s").covered + 1))


def test_the_stores_mark_the_same_sessions(store: Store) -> None:
    memory = reanchored(store, every=2)
    marked = []
    for _ in range(5):
        fold(memory)
        ids = memory.sweep_rebuilds()
        marked.append(len(ids))
        for session_id in ids:
            assert memory.carry_out(session_id, "replace_stand_ins").outcome == Outcome.PUBLISHED
    assert set(marked) == {0, 1}


def test_a_part_of_a_long_message_is_no_fold() -> None:
    memory = reanchored(every=50)
    talk(memory, 3, words=2000)
    memory.compact("s")
    assert len(versions()) > 10
    assert versions()[-1].folds <= 3
