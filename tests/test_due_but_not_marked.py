"""Sessions that are over the limit although no append has marked them: after an import, or under a lower limit."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_convmemory import models
from django_convmemory.exceptions import ModelUnavailable
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.pause import Pause
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests.chunks import assert_sound
from tests.folding import MarkerModel, build, covered, session, talk

pytestmark = [pytest.mark.django_db, pytest.mark.vendors]


def quiet(store: Store, *keys: str) -> ConversationSummaryBufferMemory:
    """A memory with sessions that are below its limit, which is compared with all of them already."""
    memory = build(MarkerModel(), 1000, store=store)
    for key in keys:
        talk(memory, 20, key)
    assert memory.sweep() == []
    return memory


def with_limit(limit: int, store: Store) -> ConversationSummaryBufferMemory:
    return build(MarkerModel(), limit, store=store)


def test_compact_folds_what_is_over_a_lowered_limit(store: Store) -> None:
    memory = quiet(store, "s")
    assert memory.compact("s") == "not_due"
    lower = with_limit(60, store)
    assert lower.compact("s") == "published"
    assert covered(lower.load("s").to_text()) == list(range(1, 21))
    assert_sound(lower)


def test_after_a_lowered_limit_a_sweep_marks_and_the_next_one_sends(store: Store) -> None:
    quiet(store, "s", "t")
    lower = with_limit(60, store)
    assert lower.sweep() == []
    assert lower.load("s").pending
    assert len(lower.sweep()) == 2
    assert_sound(lower)


def test_an_outage_does_not_keep_a_sweep_from_marking(store: Store) -> None:
    quiet(store, "s")
    lower = with_limit(60, store)
    error = ModelUnavailable("down")

    def fail(state: Pause) -> Pause:
        return state.failed(error, state.failures, text="", counts=True, probe_until=None)

    for _ in range(3):
        store.change_pause(lower.alias, fail)
    assert lower.paused
    assert lower.sweep() == []
    assert lower.load("s").pending


def test_a_raised_limit_marks_nothing(store: Store) -> None:
    quiet(store, "s")
    higher = with_limit(5000, store)
    assert (higher.sweep(), higher.sweep()) == ([], [])
    assert not higher.load("s").pending


def test_the_next_append_marks_too(store: Store) -> None:
    quiet(store, "s")
    assert with_limit(60, store).append("s", ChatMessage.human("one more")).due


def test_a_session_that_cannot_be_folded_is_not_marked(store: Store) -> None:
    memory = build(MarkerModel(), 1000, store=store)
    memory.append("s", ChatMessage.human("word " * 100))
    memory.sweep()
    lower = with_limit(60, store)
    assert (lower.sweep(), lower.sweep()) == ([], [])
    assert_sound(lower)


def test_the_sessions_of_another_alias_are_not_compared(store: Store) -> None:
    other = ConversationSummaryBufferMemory(store, MarkerModel(), 1000, alias="other", scheduler=None)
    quiet(store, "s")
    talk(other, 20, "s")
    lower = with_limit(60, store)
    lower.sweep()
    assert lower.load("s").pending
    assert not other.load("s").pending


# The search, a portion at a time.


def marked(store: ORMStore, limit: int, portion: int) -> int:
    rule = with_limit(limit, store).strategy.threshold
    return store.mark_unmarked("default", rule, limit=portion)


def test_each_sweep_looks_at_the_next_portion_until_all_are_compared() -> None:
    store = ORMStore()
    quiet(store, *"abcde")
    assert [marked(store, 60, portion=2) for _ in range(5)] == [2, 2, 1, 0, 0]
    assert models.Session.objects.due().count() == 5
    assert models.AliasState.objects.get().compared_id is None


def test_a_limit_that_changes_again_starts_the_search_again() -> None:
    store = ORMStore()
    quiet(store, *"abcd")
    assert marked(store, 60, portion=2) == 2
    assert marked(store, 50, portion=2) == 0  # The first two are marked already.
    assert marked(store, 50, portion=2) == 2
    assert marked(store, 50, portion=2) == 0


def test_a_sweep_that_is_full_does_not_search(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    memory = build(MarkerModel(), store=store)
    for key in "abc":
        talk(memory, 10, key)
    monkeypatch.setattr(store, "mark_unmarked", lambda *args, **kwargs: pytest.fail("searched"))
    assert len(memory.sweep(limit=3)) == 3


def test_the_search_costs_one_statement_when_there_is_nothing_to_compare() -> None:
    store = ORMStore()
    memory = quiet(store, "s")
    rule = memory.strategy.threshold
    with CaptureQueriesContext(connection) as queries:
        assert store.mark_unmarked("default", rule, limit=5000) == 0
    assert [query["sql"].split()[0] for query in queries] == ["SELECT"]
    assert "convmemory_session" not in queries[0]["sql"]


def test_a_marked_session_keeps_the_time_since_when_it_was_due(store: Store) -> None:
    memory = build(MarkerModel(), store=store)
    talk(memory, 10)
    assert len(memory.sweep()) == 1
    if isinstance(store, InMemoryStore):
        before = store.session(memory.resolve("s")).due_since
        with_limit(50, store).sweep()
        assert store.session(memory.resolve("s")).due_since == before
    else:
        due_since = session().due_since
        with_limit(50, store).sweep()
        assert session().due_since == due_since
