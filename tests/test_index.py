"""The index of recall in the stores: what is written when, and that nothing of a removed message stays in it."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from django_convmemory import models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory, SessionHandle
from django_convmemory.rules import segments
from django_convmemory.rules.segments import MOST_UNINDEXED
from django_convmemory.search import indexing
from django_convmemory.store import index_rows
from django_convmemory.store.orm import ORMStore
from tests import folding
from tests.conversations import call
from tests.indexes import (
    SECRET,
    build,
    expected,
    index,
    index_all,
    indexed,
    is_whole,
    is_whole_index,
    read,
    say,
    searchable,
    searchable_of,
    secrets,
    segments_of,
    stored,
)
from tests.long_sessions import fill
from tests.settings import LOOKUPS
from tests.test_what_is_read import CONTROL, statements

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendors]


@pytest.fixture
def memory() -> ConversationMemory:
    return build()


def test_everything_is_indexed_also_an_exchange_that_goes_on(memory: ConversationMemory) -> None:
    say(memory, 300)
    memory.append("s", ChatMessage.ai(tool_calls=[call("c1"), call("c2")]), ChatMessage.tool("done", "c1"))
    assert index_all() == indexed() == 302
    assert stored() == expected(memory, 302)
    assert [segment.last for segment in stored()] == [128, 256, 302]
    assert index() == 0
    memory.append("s", ChatMessage.tool("done", "c2"), ChatMessage.human("thanks"))
    assert index_all() == 2
    assert stored() == expected(memory, 304)
    assert is_whole()


def test_messages_that_come_one_by_one_give_the_same_segments_as_all_at_once(memory: ConversationMemory) -> None:
    for number in range(150):
        say(memory, 2, text=f"heron {number} {{}}")
        assert index(limit=3) == 2
    assert stored() == expected(memory, 300)


def test_a_sitting_begins_after_an_hour_also_at_the_end_of_what_was_indexed(memory: ConversationMemory) -> None:
    times = [dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC) for hour in (8, 9, 12)]
    times = [times[0], times[0], times[1] - dt.timedelta(minutes=1), times[2], times[2], times[2]]
    for number, created_at in enumerate(times):
        memory.append("s", ChatMessage.human(f"heron {number}"), created_at=created_at)
        index()
    assert stored() == expected(memory, 6)
    assert stored() == segments_of([f"heron {number}" for number in range(6)], {1, 4})


def test_pinned_messages_and_reasoning_are_passed_over(memory: ConversationMemory) -> None:
    memory.append("s", ChatMessage.system(SECRET), ChatMessage("assistant", SECRET, kind="reasoning"))
    say(memory, 3)
    assert index_all() == 5
    assert secrets() == 0
    assert stored() == expected(memory, 5)


def test_a_session_without_messages_or_without_a_row_has_nothing_to_index(memory: ConversationMemory) -> None:
    memory.create("s")
    assert index() == 0
    assert indexing.index(memory.store, 10**6) == (0, False)


def test_much_text_is_indexed_in_portions_that_one_transaction_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_PORTION_SIZE", 2_000)
    memory = build()
    say(memory, 60, text=" ".join(f"word{number}x" for number in range(100)) + " {}")
    portions = []
    while count := index():
        portions.append(count)
    assert sum(portions) == 60
    assert max(portions) <= 4
    assert stored() == expected(memory, 60)


SCRIPTS = (
    "Kraniche ziehen nach Süden",
    "苍鹭站在水里",
    "왜가리 🪶 물",
)


def test_segments_of_64_kilobytes_in_many_scripts_are_stored_and_read_as_they_are(memory: ConversationMemory) -> None:
    randomly = random.Random(3)
    letters = "".join(SCRIPTS).replace(" ", "") + "𠀀𠀁𠮷😀"
    for number in range(120):
        words = " ".join("".join(randomly.choices(letters, k=5)) for _ in range(150))
        memory.append("s", ChatMessage.human(f"{SCRIPTS[number % len(SCRIPTS)]} {words}"))
    assert index_all() == 120
    assert stored() == expected(memory, 120)
    assert max(len(segment.data.encode()) for segment in stored()) > 60_000
    whole = read()
    assert whole.complete
    assert list(whole.segments) == expected(memory, 120)


def test_a_damaged_index_is_left_alone_and_a_warning_names_the_repair(caplog: pytest.LogCaptureFixture) -> None:
    memory = build()
    say(memory, 20)
    index(limit=10)
    models.Segment.objects.update(last=9)
    assert index() == 0
    assert "manage.py convmemory_check --reindex" in caplog.text
    assert indexed() == 10


@pytest.mark.parametrize("damage", ["no text of a segment", "an end that is behind"])
def test_a_damaged_index_does_not_keep_the_other_sessions_from_being_found(
    damage: str, caplog: pytest.LogCaptureFixture, memory: ConversationMemory
) -> None:
    for key in ("damaged", "sound"):
        chat = memory.session(key, visitor="v")
        chat.append(*[ChatMessage.human(f"heron {number}") for number in range(5)])
        index(key)
    row = models.Session.objects.get(key="damaged")
    if damage == "no text of a segment":
        models.Segment.objects.filter(session=row).update(data="v2\tjunk")
    else:
        models.Session.objects.filter(pk=row.pk).update(indexed_position=2)

    hits = memory.search("heron", visitor="v")

    assert {hit.session.key for hit in hits} == {"sound"}
    assert not hits.complete
    assert f"The index of session {row.pk} is damaged" in caplog.text
    assert memory.search("heron", session=row) == []


def test_an_index_that_another_process_has_just_begun_is_not_damaged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, memory: ConversationMemory
) -> None:
    say(memory, 20)
    session_statement = index_rows._session

    def begun_meanwhile(using: str) -> Any:
        monkeypatch.setattr(index_rows, "_session", session_statement)
        assert index(limit=10) == 10
        return session_statement(using)

    monkeypatch.setattr(index_rows, "_session", begun_meanwhile)
    assert index() == 10
    assert not caplog.records
    assert stored() == expected(memory, 20)


def test_a_run_indexes_for_thirty_seconds_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each look at the clock is twelve seconds later, and each portion has a hundred messages.
    looks, unindexed = itertools.count(), ORMStore.unindexed
    monkeypatch.setattr(indexing, "time", SimpleNamespace(monotonic=lambda: 12.0 * next(looks)))
    monkeypatch.setattr(ORMStore, "unindexed", lambda store, session_id, limit: unindexed(store, session_id, limit=100))
    store, model = ORMStore(), ScriptedChatModel(["They talked of herons."] * 50)
    memory = folding.build(model, 100, store=store)
    say(memory, 750)
    # The third portion ends after 36 seconds.
    assert indexing.catch_up(store, models.Session.objects.get().pk) == (300, True)
    assert indexed() == 300
    # What is left does not keep the session from being folded.
    assert memory.compact("s") == "published"
    assert indexed() == 600
    memory.compact("s")
    assert indexed() == 750
    assert is_whole()


# What a search reads.


def test_a_search_reads_the_newest_messages_that_are_not_indexed(memory: ConversationMemory) -> None:
    say(memory, 700)
    session = read()
    assert not session.complete
    assert (session.segments[0].first, session.segments[-1].last) == (700 - MOST_UNINDEXED + 1, 700)
    index(limit=100)
    session = read()
    assert [session.segments[0].last, session.segments[1].first, session.complete] == [100, 189, False]
    # No message is a neighbour of one before the gap.
    texts = [f"heron number {number}" for number in range(700)]
    assert list(session.segments[1:]) == segments_of(texts[188:], {189}, first=189)
    index(limit=88)
    assert read().complete
    index_all()
    assert list(read().segments) == expected(memory, 700)


@pytest.mark.parametrize("before", [1, 2, 100, 128, 129, 130, 200, 300, 301, 10**12])
def test_a_search_before_a_position_reads_nothing_from_there_on(before: int, memory: ConversationMemory) -> None:
    say(memory, 300)
    index(limit=200)
    session = read(before=before)
    assert session.complete
    assert list(session.segments) == expected(memory, min(before - 1, 300))


def test_only_the_newest_before_the_position_are_read_if_they_are_not_indexed() -> None:
    say(build(), 700)
    session = read(before=651)
    assert (session.segments[0].first, session.segments[-1].last, session.complete) == (139, 650, False)


def test_another_epoch_and_another_row_are_not_read(memory: ConversationMemory) -> None:
    say(memory, 3)
    row = models.Session.objects.get()
    store = memory.store
    assert searchable(store, row.session_name, epoch=row.epoch) is not None
    assert searchable(store, row.session_name, epoch=row.epoch + 1) is None
    memory.redact("s", 1)
    assert searchable(store, row.session_name, epoch=row.epoch) is None
    memory.delete("s")
    say(memory, 1)
    assert searchable(store, row.session_name) is None


def test_the_sessions_of_a_person_are_read_as_far_as_the_bound_reaches(memory: ConversationMemory) -> None:
    user = get_user_model().objects.create(username="ann")
    for key, count in (("a", 30), ("b", 20), ("c", 10)):
        chat = memory.session(key, owner=user)
        chat.append(*[ChatMessage.human(f"heron {number}") for number in range(count)])
    memory.session("empty", owner=user).create()
    memory.session("another's", visitor="v").append(ChatMessage.human("heron"))
    rows = {row.key: row for row in models.Session.objects.all()}
    for age, key in enumerate("bca"):  # From now on the order is b, c, a.
        updated_at = dt.datetime(2026, 3, 1, 12 - age, tzinfo=dt.UTC)
        models.Session.objects.filter(key=key).update(updated_at=updated_at)

    def sessions(**options: Any) -> list[tuple[str, int, bool]]:
        found = searchable_of(memory.store, owner_id=user.pk, **options)
        assert [session.name for session in found] == [rows[session.name.key].session_name for session in found]
        assert [session.name.row_id for session in found] == [session.session_id for session in found]
        return [(session.name.key, session.segments[-1].last, session.complete) for session in found]

    index("a", limit=25)
    assert sessions() == [("b", 20, True), ("c", 10, True), ("a", 30, True)]
    assert sessions(max_messages=59) == [("b", 20, True), ("c", 10, False)]
    assert sessions(max_messages=29) == sessions(max_messages=1) == [("b", 20, False)]
    assert searchable_of(memory.store, visitor="nobody") == []


def test_of_all_sessions_512_messages_are_read_that_are_not_indexed(memory: ConversationMemory) -> None:
    for key, count in (("old", 100), ("middle", 300), ("new", 300)):
        memory.session(key, visitor="v").append(*[ChatMessage.human(f"heron {number}") for number in range(count)])
    index("old", limit=90)
    found = searchable_of(memory.store, visitor="v")
    assert [(s.segments[0].first, s.segments[-1].last, s.complete) for s in found] == [
        (1, 300, True),
        (300 - (512 - 300) + 1, 300, False),
        (1, 90, False),
    ]


def test_what_was_indexed_between_the_two_statements_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = build()
    chat = memory.session("s", visitor="v")
    say(memory, 300, chat)
    between(monkeypatch, lambda: index(limit=200))
    [session] = searchable_of(memory.store, visitor="v")
    assert session.complete
    assert list(session.segments) == expected(memory, 300, chat)


def between(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """Let ``searchable_of`` do ``work`` between its two statements."""
    newest = segments.newest_sessions

    def newest_later(*arguments: Any, **options: Any) -> Any:
        work()
        return newest(*arguments, **options)

    monkeypatch.setattr(segments, "newest_sessions", newest_later)


CHANGES: dict[str, tuple[int, Callable[[SessionHandle], Any]]] = {
    "clear": (0, lambda chat: chat.clear()),
    "truncate": (150, lambda chat: chat.truncate(150)),
    "redact": (300, lambda chat: [chat.redact(position) for position in (5, 250)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_between_the_two_statements_is_read_as_it_is_then(
    change: str, monkeypatch: pytest.MonkeyPatch, memory: ConversationMemory
) -> None:
    chat = memory.session("s", visitor="v")
    say(memory, 300, chat)
    index(limit=200)
    through, work = CHANGES[change]
    between(monkeypatch, lambda: work(chat))
    [session] = searchable_of(memory.store, visitor="v")
    assert (session.epoch, session.complete) == (models.Session.objects.get().epoch, True)
    assert list(session.segments) == expected(memory, through, chat)


def test_a_session_that_was_deleted_between_the_two_statements_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = build()
    chat = memory.session("s", visitor="v")
    say(memory, 3, chat)
    between(monkeypatch, chat.delete)
    assert searchable_of(memory.store, visitor="v") == []


def test_messages_are_read_by_their_places_unless_the_session_has_changed(memory: ConversationMemory) -> None:
    say(memory, 5, "a")
    say(memory, 5, "b")
    memory.redact("b", 2)
    a, b = (models.Session.objects.get(key=key) for key in "ab")
    places = [(a.pk, a.epoch, 1), (a.pk, a.epoch, 5), (a.pk, a.epoch, 6), (b.pk, b.epoch, 2), (b.pk, b.epoch - 1, 3)]
    found = memory.store.messages_at(places)
    assert sorted(found) == [(a.pk, 1), (a.pk, 5), (b.pk, 2)]
    assert found[a.pk, 5] == memory.history("a")[4]
    assert found[b.pk, 2] == memory.history("b")[1]
    assert found[b.pk, 2].redacted
    assert memory.store.messages_at([]) == {}


# Statements.


def test_the_number_of_statements_does_not_depend_on_the_history() -> None:
    memory = build(index=False)
    store = memory.store
    for size in (10, 5_000):
        key = f"session of {size}"
        fill(memory, key, size)
        session_id = models.Session.objects.get(key=key).pk
        index_all(key)
        say(memory, 60, key)
        place = (session_id, 0, size)
        assert len(statements(functools.partial(indexing.index, store, session_id))) <= 5
        assert len(statements(functools.partial(indexing.index, store, session_id))) == 1
        read = functools.partial(searchable, store, memory.resolve(key), before=size)
        assert len(statements(read)) == 1 + LOOKUPS
        read_all = functools.partial(searchable_of, store)
        assert len(statements(read_all)) == 2
        assert len(statements(functools.partial(store.messages_at, [place]))) == 1
    assert is_whole_index()


def test_the_transaction_of_the_index_returns_no_text(memory: ConversationMemory) -> None:
    """A database keeps its locks while it sends a long answer to a process that is stopped."""
    say(memory, 100)
    index_all()
    say(memory, 100)
    long_answers, begun = [], [False]

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        begun[0] = begun[0] or sql.startswith(("UPDATE", "WITH"))
        if begun[0] and context["cursor"].description and not sql.upper().startswith(CONTROL):
            long_answers.append(sql)
        return result

    with connection.execute_wrapper(note):
        assert index() == 100
    assert [sql for sql in long_answers if not sql.endswith("SELECT COUNT(*) FROM changed")] == []


# When indexing is due.


def test_a_memory_that_folds_nothing_becomes_due_at_256_messages_that_are_not_indexed() -> None:
    memory = build()
    say(memory, 256)
    session = models.Session.objects.get()
    assert session.due_since is None
    receipt = memory.append("s", ChatMessage.ai("one more"))
    assert receipt.due
    assert memory.compact("s") == "not_due"
    session.refresh_from_db()
    assert (session.indexed_position, session.due_since, session.lease_token) == (257, None, "")
    say(memory, 255)
    assert not memory.append("s", ChatMessage.human("the last one that is not due")).due
    assert memory.append("s", ChatMessage.human("the first one that is due")).due
    assert is_whole()


def test_an_edit_that_leaves_much_unindexed_marks_the_session(memory: ConversationMemory) -> None:
    say(memory, 400)
    index_all()
    models.Session.objects.update(due_since=None)
    memory.truncate("s", 350)
    assert models.Session.objects.get().due_since is None
    index_rows.reset("default", models.Session.objects.get().pk)
    memory.truncate("s", 300)
    assert models.Session.objects.get().due_since is not None
    assert is_whole()


def test_a_memory_without_an_index_is_never_due() -> None:
    memory = build(index=False)
    say(memory, 600)
    assert models.Session.objects.get().due_since is None
