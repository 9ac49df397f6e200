"""Changes of one conversation that are made at the same time: each sees the results of the others."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import F

from django_convmemory import exceptions, models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.pause import Pause
from django_convmemory.store.orm import ORMStore
from tests import processes
from tests.folding import MarkerModel, build

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendors]

SECRET = "Bohnensuppe um Mitternacht"

# SQLite has one writer at a time, so that nothing happens at the same time.
beside = pytest.mark.only_on("postgresql", "mariadb")


class InThread:
    """Work in a thread with its own connection. ``result()`` waits for it, and returns what the work returned."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self.value = work()
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            self.error = error
        finally:
            connection.close()

    def result(self) -> Any:
        self._thread.join(processes.PATIENCE)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.value

    def join(self, seconds: float) -> None:
        """Wait so long at most."""
        self._thread.join(seconds)

    def is_waiting(self) -> bool:
        """Whether the thread still waits for a lock after half a second."""
        self._thread.join(0.5)
        return self._thread.is_alive()


def line_of_copies(count: int) -> ConversationSummaryBufferMemory:
    """Return a memory with the sessions 0 to ``count``, each a fork of the one before. Position 2 is the secret."""
    memory = build(MarkerModel(), 10**6)
    memory.append("0", ChatMessage.human("hello"), ChatMessage.human(SECRET), ChatMessage.ai("I see."))
    for number in range(count):
        memory.fork(str(number), 3, key=str(number + 1))
    return memory


def secrets() -> int:
    return models.Message.objects.filter(content__contains=SECRET).count()


@beside
def test_a_copy_that_is_made_during_a_redaction_is_redacted_too() -> None:
    memory = line_of_copies(1)
    with transaction.atomic():
        memory.fork("1", 3, key="2")
        redaction = InThread(lambda: memory.redact("0", 2))
        assert redaction.is_waiting()

    assert redaction.result().sessions == 3
    assert secrets() == 0
    assert list(integrity.check(models.Session.objects.all())) == []


@beside
@pytest.mark.parametrize("change", ["truncate", "clear", "delete"])
def test_a_copy_that_is_cut_during_a_redaction_keeps_what_it_says_then(change: str) -> None:
    memory = line_of_copies(1)
    with transaction.atomic():
        if change == "truncate":
            memory.truncate("1", 1)
        elif change == "clear":
            memory.clear("1")
            memory.append("1", ChatMessage.human("hello"))
        else:
            models.Session.objects.get(key="1").delete()
            memory.append("1", ChatMessage.human("hello"))
        memory.append("1", ChatMessage.human("of no concern"))
        redaction = InThread(lambda: memory.redact("0", 2))
        assert redaction.is_waiting()

    assert redaction.result().sessions == 1
    assert secrets() == 0
    assert memory.load("1").to_text() == "user: hello\nuser: of no concern"


@beside
def test_a_call_is_recorded_although_its_session_is_being_deleted() -> None:
    asked, deleted = threading.Event(), threading.Event()

    def answer(request: object) -> None:
        asked.set()
        assert deleted.wait(processes.PATIENCE)
        raise exceptions.ContentRefused("no")

    memory = build(MarkerModel(answer))
    memory.append("0", *[ChatMessage.human("word " * 100)] * 5)
    run = InThread(lambda: memory.compact("0"))
    assert asked.wait(processes.PATIENCE)
    with transaction.atomic():
        models.Session.objects.all().delete()
        deleted.set()
        assert run.is_waiting()

    run.result()
    assert list(models.Attempt.objects.values_list("session", "outcome")) == [(None, "refused")]


@pytest.mark.parametrize("change", ["truncate", "clear"])
def test_a_copy_that_was_cut_does_not_hide_its_copies(change: str) -> None:
    memory = line_of_copies(3)
    memory.truncate("1", 1) if change == "truncate" else memory.clear("1")
    memory.append("1", *[ChatMessage.human("of no concern")] * 2)

    assert memory.redact("0", 2).sessions == 3
    assert secrets() == 0
    assert "of no concern" in memory.load("1").to_text()


def test_an_original_that_was_cut_has_another_message_in_the_place() -> None:
    memory = line_of_copies(1)
    memory.truncate("0", 1)
    memory.append("0", ChatMessage.human("said anew"))

    assert memory.redact("0", 2).sessions == 1
    assert SECRET in memory.load("1").to_text()


def test_what_was_redacted_in_the_original_alone_can_be_redacted_in_the_copies_later() -> None:
    memory = line_of_copies(2)
    assert memory.redact("0", 2, forks=False).sessions == 1
    assert secrets() == 2
    assert memory.redact("0", 2).sessions == 3
    assert secrets() == 0


@beside
def test_a_session_that_is_made_while_its_person_is_erased_is_whole_or_gone() -> None:
    memory = build(MarkerModel(), 10**6)
    ended = threading.Event()

    def append() -> int:
        count = 0
        while not ended.is_set():
            memory.session(f"s{count % 3}", visitor="v").append(ChatMessage.human("hello"))
            count += 1
        return count

    appending = [InThread(append) for _ in range(2)]
    try:
        erased = sum(memory.erase(visitor="v") for _ in range(30))
    finally:
        ended.set()

    assert all(thread.result() > 0 for thread in appending)
    assert erased > 0
    assert list(integrity.check(models.Session.objects.all())) == []


# MariaDB may abort either of the two transactions, and nothing repeats a deletion by the ORM.
@pytest.mark.only_on("postgresql")
def test_a_session_can_be_deleted_beside_an_edit_of_what_it_was_copied_from() -> None:
    for _ in range(5):
        memory = line_of_copies(2)
        sessions = {session.key: session for session in models.Session.objects.all()}
        deleting = [InThread(sessions[key].delete) for key in "12"]
        assert memory.redact("0", 2).sessions >= 1
        for thread in deleting:
            thread.result()
        assert secrets() == 0
        models.Session.objects.all().delete()


@beside
def test_a_session_and_its_fork_can_be_deleted_at_the_same_time() -> None:
    for _ in range(10):
        memory = line_of_copies(2)
        deleting = [InThread(functools.partial(memory.delete, key)) for key in "01"]
        assert [thread.result() for thread in deleting] == [True, True]
        assert [session.key for session in models.Session.objects.all()] == ["2"]
        assert models.Session.objects.get().forked_from_id is None
        memory.delete("2")


def test_a_session_can_be_created_while_another_of_that_name_is_deleted() -> None:
    memory = build(MarkerModel(), 10**6)

    def create() -> int:
        created = 0
        for _ in range(20):
            try:
                memory.create("main")
                created += 1
            except exceptions.SessionExists:
                pass
        return created

    creating = [InThread(create) for _ in range(2)]
    deleted = sum(memory.delete("main") for _ in range(40))
    created = sum(thread.result() for thread in creating)
    assert created - deleted == models.Session.objects.count()


@beside
@pytest.mark.parametrize("key", [None, "once"])
def test_the_messages_of_a_new_session_can_be_replaced_twice_at_the_same_time(key: str | None) -> None:
    memory = build(MarkerModel(), 10**6)
    with transaction.atomic():
        memory.replace("new", 0, ChatMessage.human("hello"), idempotency_key=key)
        second = InThread(lambda: memory.replace("new", 0, ChatMessage.human("hello"), idempotency_key=key))
        assert second.is_waiting()

    assert second.result().replayed == (key is not None)
    assert memory.load("new").to_text() == "user: hello"


def test_a_busy_session_is_looked_at_under_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = line_of_copies(0)
    monkeypatch.setattr(integrity, "_TRIES", 0)
    assert list(integrity.check(models.Session.objects.all())) == []

    models.Session.objects.update(unpinned_count=F("unpinned_count") + 1)
    assert [finding.code for finding in integrity.check(models.Session.objects.all())] == ["counter_unpinned_count"]
    memory.clear("0")


@pytest.fixture
def repeatable_read() -> Iterator[None]:
    connection.close()
    connection.settings_dict["OPTIONS"]["isolation_level"] = "repeatable read"
    yield
    connection.close()
    del connection.settings_dict["OPTIONS"]["isolation_level"]


@pytest.mark.only_on("mariadb")
@pytest.mark.usefixtures("repeatable_read")
def test_what_was_made_after_the_callers_transaction_began_to_look_is_seen() -> None:
    memory = line_of_copies(0)
    with transaction.atomic():
        assert models.Session.objects.count() == 1  # From now on the transaction reads this state.
        InThread(lambda: memory.fork("0", 3, key="1")).result()
        assert memory.redact("0", 2).sessions == 2
        with pytest.raises(exceptions.SessionExists):
            memory.fork("0", 1, key="1")
    assert secrets() == 0


@pytest.mark.only_on("mariadb")
@pytest.mark.usefixtures("repeatable_read")
def test_the_hash_of_a_redacted_message_goes_if_the_callers_transaction_would_not_see_it() -> None:
    memory = line_of_copies(0)
    with transaction.atomic():
        assert models.Session.objects.count() == 1  # From now on the transaction reads this state.
        batch = [ChatMessage.human("Again:"), ChatMessage.human(SECRET)]
        InThread(lambda: memory.append("0", *batch, idempotency_key="k")).result()
        memory.redact("0", 5)
    used = models.UsedKey.objects.get()
    assert (used.first_position, used.size, used.content) == (4, 2, "")


@pytest.mark.only_on("mariadb")
@pytest.mark.usefixtures("repeatable_read")
def test_a_success_ends_failures_that_the_callers_transaction_would_not_see() -> None:
    store = ORMStore()
    with transaction.atomic():
        assert not models.AliasState.objects.exists()  # From now on the transaction reads this state.
        InThread(lambda: store.change_pause("default", lambda state: state._replace(failures=1))).result()
        store.change_pause("default", Pause.answered)
    assert store.pause_of("default").failures == 0


def test_a_user_whose_row_is_gone_is_refused_before_the_commit() -> None:
    memory = line_of_copies(0)
    memory.session("main", visitor="v").append(ChatMessage.human("hello"))
    ann = get_user_model().objects.create(username="ann")
    get_user_model().objects.all().delete()

    for work in (
        lambda: memory.session("main", owner=ann).create(),
        lambda: memory.session("main", owner=ann).append(ChatMessage.human("hello")),
        lambda: memory.session("main", owner=ann).replace(0, ChatMessage.human("hello")),
        lambda: memory.fork("0", 1, key="copy", owner=ann),
        lambda: memory.adopt("v", ann),
    ):
        with transaction.atomic(), pytest.raises(exceptions.InvalidSession, match="no user"):
            work()
    assert models.Session.objects.count() == 2
