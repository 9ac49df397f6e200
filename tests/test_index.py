"""The index of recall in the stores: what is written when, and that nothing of a removed message stays in it."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import pathlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction

from django_convmemory import exceptions, models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.conversation import ConversationMemory, SessionHandle
from django_convmemory.core import indexable, indexing as core_indexing
from django_convmemory.core.indexable import MOST_UNINDEXED
from django_convmemory.core.recall import documents, segments
from django_convmemory.core.recall.segments import Document, Segment
from django_convmemory.core.values import Indexed, Searchable
from django_convmemory.maintenance import integrity, recount
from django_convmemory.memory import ConversationSummaryBufferMemory, ConversationWindowMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.schedulers import NullScheduler
from django_convmemory.stores import indexing
from django_convmemory.stores.orm import ORMStore
from tests import processes
from tests.conversations import call
from tests.long_sessions import fill
from tests.settings import LOOKUPS
from tests.test_changes_at_once import InThread, beside
from tests.test_what_is_read import CONTROL, statements

pytestmark = pytest.mark.django_db(transaction=True)

# A word of the index, as it is stored.
SECRET = "quetzal"


def build(**options: Any) -> ConversationMemory:
    return ConversationWindowMemory(ORMStore(), 4, scheduler=NullScheduler(), **options)


def say(memory: ConversationMemory, count: int, key: str | SessionHandle = "s", text: str = "heron number {}") -> None:
    memory.append(key, *[ChatMessage.human(text.format(number)) for number in range(count)])


def index(key: str = "s", limit: int = 1_000) -> int:
    return ORMStore().index(models.Session.objects.get(key=key).pk, limit=limit).messages


def index_all(key: str = "s") -> int:
    total = 0
    while count := index(key):
        total += count
    return total


def stored(key: str = "s") -> list[Segment]:
    rows = models.Segment.objects.filter(session__key=key).order_by("session_id", "first")
    return [Segment(*values) for values in rows.values_list("first", "last", "data")]


def segments_of(texts: Sequence[str], sittings: set[int], first: int = 1) -> list[Segment]:
    """Return the segments of users' messages with these texts. Sittings begin at the positions ``sittings``."""
    terms = [documents.document(ChatMessage.human(text)) for text in texts]
    return segments.extended(
        None, first, [Document(each, position in sittings) for position, each in enumerate(terms, first)]
    )


def indexed(key: str = "s") -> int:
    return models.Session.objects.get(key=key).indexed_position


def expected(memory: ConversationMemory, through: int, key: str | SessionHandle = "s") -> list[Segment]:
    """Return the segments of the first messages as if they had been indexed at once."""
    terms, previous = [], None
    for message in memory.history(key, after=0, limit=through) if through else []:
        begins = segments.begins_sitting(message.created_at, previous)
        terms.append(Document(documents.document(message.message, redacted=message.redacted), begins))
        previous = message.created_at
    return segments.extended(None, 1, terms)


def read(key: str = "s", **bounds: Any) -> Searchable:
    memory = build()
    session = memory.store.searchable(memory.resolve(key), **bounds)
    assert session is not None
    return session


def is_whole() -> bool:
    """Whether the rows of all sessions are right, and none is left behind."""
    return not [*integrity.check(models.Session.objects.all()), *integrity.orphans("default")]


def secrets() -> int:
    return models.Segment.objects.filter(data__contains=SECRET).count()


# Indexing.


def test_everything_is_indexed_also_an_exchange_that_goes_on() -> None:
    memory = build()
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


def test_messages_that_come_one_by_one_give_the_same_segments_as_all_at_once() -> None:
    memory = build()
    for number in range(150):
        say(memory, 2, text=f"heron {number} {{}}")
        assert index(limit=3) == 2
    assert stored() == expected(memory, 300)


def test_a_sitting_begins_after_an_hour_also_at_the_end_of_what_was_indexed() -> None:
    memory = build()
    times = [dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC) for hour in (8, 9, 12)]
    times = [times[0], times[0], times[1] - dt.timedelta(minutes=1), times[2], times[2], times[2]]
    for number, created_at in enumerate(times):
        memory.append("s", ChatMessage.human(f"heron {number}"), created_at=created_at)
        index()
    assert stored() == expected(memory, 6)
    assert stored() == segments_of([f"heron {number}" for number in range(6)], {1, 4})


def test_pinned_messages_and_reasoning_are_passed_over() -> None:
    memory = build()
    memory.append("s", ChatMessage.system(SECRET), ChatMessage("assistant", SECRET, kind="reasoning"))
    say(memory, 3)
    assert index_all() == 5
    assert secrets() == 0
    assert stored() == expected(memory, 5)


def test_a_session_without_messages_or_without_a_row_has_nothing_to_index() -> None:
    memory = build()
    memory.create("s")
    assert index() == 0
    assert memory.store.index(10**6) == (0, False)


def test_much_text_is_indexed_in_portions_that_one_transaction_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexable, "_PORTION_SIZE", 2_000)
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
    "цапля стоит в воде",
    "苍鹭站在水里",
    "アオサギが水の中",
    "นกกระสายืน",
    "왜가리 🪶 물",
    "مالك الحزين",
)


def test_segments_of_64_kilobytes_in_many_scripts_are_stored_and_read_as_they_are() -> None:
    memory = build()
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
    assert "manage.py convmemory_check --repair" in caplog.text
    assert indexed() == 10


def test_an_index_that_another_process_has_just_begun_is_not_damaged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = build()
    say(memory, 20)
    session_statement = indexing._session

    def begun_meanwhile(using: str) -> Any:
        monkeypatch.setattr(indexing, "_session", session_statement)
        assert index(limit=10) == 10
        return session_statement(using)

    monkeypatch.setattr(indexing, "_session", begun_meanwhile)
    assert index() == 10
    assert not caplog.records
    assert stored() == expected(memory, 20)


class Clock:
    """Ticks only when a portion is indexed."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class SlowStore(ORMStore):
    """Indexes a hundred messages in twelve seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def index(self, session_id: int, *, limit: int = 100) -> Indexed:
        self.clock.now += 12
        return super().index(session_id, limit=limit)


def test_a_run_indexes_for_thirty_seconds_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(core_indexing, "time", clock)
    store = SlowStore(clock)
    model = ScriptedChatModel(["They talked."] * 50)
    memory = ConversationSummaryBufferMemory(store, model, 100, scheduler=NullScheduler())
    say(memory, 750)
    # The third portion ends after 36 seconds.
    assert core_indexing.catch_up(store, models.Session.objects.get().pk) == indexed() == 300
    assert clock.now == 36
    # What is left does not keep the session from being folded.
    assert memory.compact("s") == "published"
    assert indexed() == 600
    memory.compact("s")
    assert indexed() == 750
    assert clock.now == 36 + 36 + 24
    assert is_whole()


# What a search reads.


def test_a_search_reads_the_newest_messages_that_are_not_indexed() -> None:
    memory = build()
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
def test_a_search_before_a_position_reads_nothing_from_there_on(before: int) -> None:
    memory = build()
    say(memory, 300)
    index(limit=200)
    session = read(before=before)
    assert session.complete
    assert list(session.segments) == expected(memory, min(before - 1, 300))


def test_only_the_newest_before_the_position_are_read_if_they_are_not_indexed() -> None:
    say(build(), 700)
    session = read(before=651)
    assert (session.segments[0].first, session.segments[-1].last, session.complete) == (139, 650, False)


def test_another_epoch_and_another_row_are_not_read() -> None:
    memory = build()
    say(memory, 3)
    row = models.Session.objects.get()
    store = memory.store
    assert store.searchable(row.session_name, epoch=row.epoch) is not None
    assert store.searchable(row.session_name, epoch=row.epoch + 1) is None
    memory.redact("s", 1)
    assert store.searchable(row.session_name, epoch=row.epoch) is None
    memory.delete("s")
    say(memory, 1)
    assert store.searchable(row.session_name) is None


def test_the_sessions_of_a_person_are_read_as_far_as_the_bound_reaches() -> None:
    memory = build()
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
        found = memory.store.searchable_of("default", owner_id=user.pk, visitor="", **options)
        assert [session.name for session in found] == [rows[session.name.key].session_name for session in found]
        assert [session.name.row_id for session in found] == [session.session_id for session in found]
        return [(session.name.key, session.segments[-1].last, session.complete) for session in found]

    index("a", limit=25)
    assert sessions() == [("b", 20, True), ("c", 10, True), ("a", 30, True)]
    assert sessions(max_messages=59) == [("b", 20, True), ("c", 10, False)]
    assert sessions(max_messages=29) == sessions(max_messages=1) == [("b", 20, False)]
    assert memory.store.searchable_of("default", owner_id=None, visitor="nobody") == []


def test_of_all_sessions_512_messages_are_read_that_are_not_indexed() -> None:
    memory = build()
    for key, count in (("old", 100), ("middle", 300), ("new", 300)):
        memory.session(key, visitor="v").append(*[ChatMessage.human(f"heron {number}") for number in range(count)])
    index("old", limit=90)
    found = memory.store.searchable_of("default", owner_id=None, visitor="v")
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
    [session] = memory.store.searchable_of("default", owner_id=None, visitor="v")
    assert session.complete
    assert list(session.segments) == expected(memory, 300, chat)


def between(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """Let ``searchable_of`` do ``work`` between its two statements."""
    newest = indexable.newest

    def newest_later(*arguments: Any, **options: Any) -> Any:
        work()
        return newest(*arguments, **options)

    monkeypatch.setattr(indexable, "newest", newest_later)


CHANGES: dict[str, tuple[int, Callable[[SessionHandle], Any]]] = {
    "clear": (0, lambda chat: chat.clear()),
    "truncate": (150, lambda chat: chat.truncate(150)),
    "redact": (300, lambda chat: [chat.redact(position) for position in (5, 250)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_between_the_two_statements_is_read_as_it_is_then(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = build()
    chat = memory.session("s", visitor="v")
    say(memory, 300, chat)
    index(limit=200)
    through, work = CHANGES[change]
    between(monkeypatch, lambda: work(chat))
    [session] = memory.store.searchable_of("default", owner_id=None, visitor="v")
    assert (session.epoch, session.complete) == (models.Session.objects.get().epoch, True)
    assert list(session.segments) == expected(memory, through, chat)


def test_a_session_that_was_deleted_between_the_two_statements_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = build()
    chat = memory.session("s", visitor="v")
    say(memory, 3, chat)
    between(monkeypatch, chat.delete)
    assert memory.store.searchable_of("default", owner_id=None, visitor="v") == []


def test_messages_are_read_by_their_places_unless_the_session_has_changed() -> None:
    memory = build()
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
    most = 3 if connection.vendor == "postgresql" else 5
    for size in (10, 1_000, 20_000):
        key = f"session of {size}"
        fill(memory, key, size)
        session_id = models.Session.objects.get(key=key).pk
        index_all(key)
        say(memory, 60, key)
        place = (session_id, 0, size)
        assert len(statements(functools.partial(store.index, session_id))) <= most
        assert len(statements(functools.partial(store.index, session_id))) == 1
        assert len(statements(functools.partial(store.searchable, memory.resolve(key), before=size))) == 1 + LOOKUPS
        assert len(statements(functools.partial(store.searchable_of, "default", owner_id=None, visitor=""))) == 2
        assert len(statements(functools.partial(store.messages_at, [place]))) == 1
    assert is_whole_index()


def is_whole_index() -> bool:
    codes = {finding.code for finding in integrity.check(models.Session.objects.all())}
    return not codes & integrity.OF_INDEX


def test_an_append_sends_no_statement_for_the_index() -> None:
    with_index, without = build(), build(index=False)
    say(with_index, 300, "a")
    say(without, 300, "b")
    counts = [
        len(statements(functools.partial(memory.append, key, ChatMessage.human("heron"))))
        for memory, key in ((with_index, "a"), (without, "b"))
    ]
    assert counts[0] == counts[1]


def test_the_transaction_of_the_index_returns_no_text() -> None:
    """A database keeps its locks while it sends a long answer to a process that is stopped."""
    memory = build()
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


def test_an_edit_that_leaves_much_unindexed_marks_the_session() -> None:
    memory = build()
    say(memory, 400)
    index_all()
    models.Session.objects.update(due_since=None)
    memory.truncate("s", 350)
    assert models.Session.objects.get().due_since is None
    indexing.reset("default", models.Session.objects.get().pk)
    memory.truncate("s", 300)
    assert models.Session.objects.get().due_since is not None
    assert is_whole()


def test_a_memory_without_an_index_is_never_due() -> None:
    memory = build(index=False)
    say(memory, 600)
    assert models.Session.objects.get().due_since is None


# Deletion.


def test_a_redacted_message_leaves_no_word_in_the_index_of_its_session_and_of_forks() -> None:
    memory = build()
    say(memory, 200)
    memory.append("s", ChatMessage.human(f"A {SECRET} sang."))
    say(memory, 20)
    index_all()
    memory.fork("s", 210, key="copy")
    memory.fork("copy", 205, key="copy of the copy")
    memory.fork("s", 200, key="before")
    assert [indexed(key) for key in ("s", "copy", "copy of the copy", "before")] == [221, 210, 205, 200]
    assert secrets() == 3
    assert memory.redact("s", 201).sessions == 3
    assert secrets() == 0
    for key in ("s", "copy", "copy of the copy", "before"):
        assert stored(key) == expected(memory, indexed(key), key)
    assert is_whole()


def test_a_message_that_is_redacted_before_it_is_indexed_is_indexed_without_words() -> None:
    memory = build()
    say(memory, 3, text=f"{SECRET} {{}}")
    memory.redact("s", 1)
    assert index_all() == 3
    assert stored() == segments_of(["", f"{SECRET} 1", f"{SECRET} 2"], {1})
    memory.redact("s", 2)
    memory.redact("s", 3)
    assert secrets() == 0
    assert is_whole()


@pytest.mark.parametrize("after", [0, 1, 100, 127, 128, 129, 255, 256, 300, 350, 399])
def test_truncation_trims_the_index(after: int) -> None:
    memory = build()
    say(memory, 400)
    index(limit=350)
    memory.truncate("s", after)
    assert indexed() == min(after, 350)
    assert stored() == expected(memory, min(after, 350))
    say(memory, 10, text="stork {}")
    index_all()
    assert stored() == expected(memory, after + 10)
    assert is_whole()


@pytest.mark.parametrize("at", [0, 1, 128, 129, 300, 350, 400])
def test_a_fork_has_the_index_of_what_it_copies(at: int) -> None:
    memory = build()
    say(memory, 400)
    index(limit=350)
    memory.fork("s", at, key="copy")
    assert indexed("copy") == min(at, 350)
    assert stored("copy") == expected(memory, min(at, 350), "copy")
    assert is_whole()


DELETIONS: dict[str, Callable[[ConversationMemory], Any]] = {
    "clear": lambda memory: memory.session("s", owner=ann()).clear(),
    "delete": lambda memory: memory.session("s", owner=ann()).delete(),
    "erase": lambda memory: memory.erase(owner=ann()),
    "the row": lambda memory: models.Session.objects.get(key="s").delete(),
    "the user": lambda memory: ann().delete(),
}


def ann() -> Any:
    return get_user_model().objects.get(username="ann")


@pytest.mark.parametrize("deletion", DELETIONS)
def test_a_deletion_removes_the_index(deletion: str) -> None:
    memory = build()
    user = get_user_model().objects.create(username="ann")
    memory.session("s", owner=user).append(*[ChatMessage.human(f"{SECRET} {number}") for number in range(200)])
    say(memory, 10, "another")
    index_all()
    index_all("another")
    DELETIONS[deletion](memory)
    assert secrets() == 0
    assert stored("another") == expected(memory, 10, "another")
    assert is_whole()


def test_a_visitors_index_stays_when_the_visitor_logs_in() -> None:
    memory = build()
    user = get_user_model().objects.create(username="ann")
    memory.session("s", visitor="v").append(*[ChatMessage.human(f"heron {number}") for number in range(20)])
    index_all()
    before = stored()
    memory.adopt("v", user)
    [session] = memory.store.searchable_of("default", owner_id=user.pk, visitor="")
    assert stored() == before
    assert session.complete


def test_a_recount_leaves_the_index() -> None:
    memory = build()
    say(memory, 20)
    index_all()
    before = stored()
    assert recount.recount(memory, models.Session.objects.get().pk, using="default")
    assert (stored(), indexed()) == (before, 20)


# At the same time.

EDITS: dict[str, Callable[[ConversationMemory], Any]] = {
    "redact": lambda memory: memory.redact("s", 30),
    "truncate": lambda memory: [memory.truncate("s", 29), say(memory, 30, text="stork {}")],
    "clear": lambda memory: [memory.clear("s"), say(memory, 50, text="stork {}")],
    "delete": lambda memory: [memory.delete("s"), say(memory, 50, text="stork {}")],
}


@pytest.mark.parametrize("before", [0, 20, 30])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_between_reading_and_writing_wins(edit: str, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``before``: so many messages are indexed already. The others make the last segment longer."""
    memory = build()
    say(memory, 29)
    memory.append("s", ChatMessage.human(SECRET))
    say(memory, 30)
    if before:
        index(limit=before)
    edits: list[Callable[[ConversationMemory], Any]] = [EDITS[edit]]
    portion = indexable.portion

    def portion_and_edit(*arguments: Any) -> list[Document]:
        read = portion(*arguments)
        while edits:
            edits.pop()(memory)
        return read

    monkeypatch.setattr(indexable, "portion", portion_and_edit)
    index_all()
    assert edits == []
    assert secrets() == 0
    assert is_whole()
    assert stored() == expected(memory, indexed())


@beside
@pytest.mark.parametrize("before", [0, 20, 30])
@pytest.mark.parametrize("edit", ["redact", "truncate", "clear"])
def test_indexing_waits_for_an_edit_and_then_indexes_what_is_left(edit: str, before: int) -> None:
    memory = build()
    say(memory, 29)
    memory.append("s", ChatMessage.human(SECRET))
    say(memory, 30)
    if before:
        index(limit=before)
    with transaction.atomic():
        EDITS[edit](memory)
        indexer = InThread(index_all)
        assert indexer.is_waiting()
    indexer.result()
    assert secrets() == 0
    assert is_whole()
    assert indexed() == models.Session.objects.get().last_position
    assert stored() == expected(memory, indexed())


@beside
@pytest.mark.parametrize("before", [0, 20])
def test_a_redaction_waits_for_the_index_and_then_finds_the_words(before: int) -> None:
    memory = build()
    say(memory, 29)
    memory.append("s", ChatMessage.human(SECRET))
    say(memory, 30)
    memory.fork("s", 50, key="copy")
    if before:
        index(limit=before)
    with transaction.atomic():
        assert index_all() == 60 - before
        assert index_all("copy") == 50
        assert secrets() == 2
        redaction = InThread(lambda: memory.redact("s", 30))
        assert redaction.is_waiting()
    assert redaction.result().sessions == 2
    assert secrets() == 0
    assert is_whole()


def test_a_fork_whose_original_changes_before_it_is_copied_is_indexed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = build()
    say(memory, 29)
    memory.append("s", ChatMessage.human(SECRET))
    say(memory, 30)
    index_all()
    copied = indexing.copied

    def copied_and_redacted(*arguments: Any) -> Any:
        read = copied(*arguments)
        memory.redact("s", 30)
        return read

    monkeypatch.setattr(indexing, "copied", copied_and_redacted)
    memory.fork("s", 50, key="copy")
    assert (secrets(), indexed("copy")) == (0, 0)
    index_all("copy")
    assert stored("copy") == expected(memory, 50, "copy")
    assert is_whole()


def test_two_processes_that_index_a_session_write_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = build()
    say(memory, 300)
    index(limit=50)
    others = [70, 200]
    portion = indexable.portion

    def portion_and_index(*arguments: Any) -> list[Document]:
        read = portion(*arguments)
        if others:
            index(limit=others.pop())
        return read

    monkeypatch.setattr(indexable, "portion", portion_and_index)
    index_all()
    assert stored() == expected(memory, 300)
    assert is_whole()


def test_whatever_happens_at_the_same_time_the_index_is_that_of_the_messages() -> None:
    memory = build()
    say(memory, 100)
    ended = threading.Event()

    def repeat(work: Callable[[random.Random], Any], seed: int) -> int:
        randomly, count = random.Random(seed), 0
        while not ended.is_set():
            with contextlib.suppress(exceptions.UnknownMessage, exceptions.SessionContended):
                work(randomly)
            count += 1
        return count

    works: list[Callable[[random.Random], Any]] = [
        lambda randomly: index(limit=randomly.randint(1, 60)),
        lambda randomly: index(limit=randomly.randint(1, 60)),
        lambda randomly: say(memory, randomly.randint(1, 9), text=f"{SECRET} {{}}"),
        lambda randomly: memory.redact("s", randomly.randint(1, 100)),
        lambda randomly: memory.truncate("s", randomly.randint(60, 120)),
    ]
    threads = [InThread(functools.partial(repeat, work, seed)) for seed, work in enumerate(works)]
    time.sleep(4)
    ended.set()
    assert all(thread.result() > 0 for thread in threads)
    assert is_whole()
    index_all()
    assert indexed() == models.Session.objects.get().last_position
    assert stored() == expected(memory, indexed())
    assert is_whole()


def _has_grown(reached: int) -> bool:
    return indexed() > reached


def test_a_long_session_is_indexed_in_portions_although_the_process_is_killed(tmp_path: pathlib.Path) -> None:
    memory = build()
    fill(memory, "s", 20_000)
    models.Message.objects.filter(position=7_777).update(content=SECRET)
    arguments = ("django", "convmemory_index", "--verbosity", "0")
    killed = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        program = processes.start(folder, *arguments)
        try:
            processes.wait_until(functools.partial(_has_grown, indexed()), "it indexes")
        finally:
            program.kill()
            program.wait()
        killed.append(indexed())
    call_command("convmemory_index", verbosity=0)
    assert 0 < killed[0] < killed[1] <= indexed() == 20_000
    assert is_whole_index()
    assert [segment.first for segment in stored()] == list(range(1, 20_000, 128))
    assert secrets() == 1
    memory.redact("s", 7_777)
    assert secrets() == 0
