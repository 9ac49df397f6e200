"""The index after deletions, redactions and forks, also if they come at the same time as the index."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import transaction

from django_convmemory import exceptions, models
from django_convmemory.maintenance import integrity
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.segments import Document
from django_convmemory.search import indexing
from django_convmemory.store import index_rows
from tests import processes
from tests.indexes import (
    SECRET,
    build,
    expected,
    index,
    index_all,
    indexed,
    is_whole,
    is_whole_index,
    say,
    searchable_of,
    secrets,
    segments_of,
    stored,
)
from tests.long_sessions import fill
from tests.test_changes_at_once import InThread, beside

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def memory() -> ConversationMemory:
    return build()


def test_a_redacted_message_leaves_no_word_in_the_index_of_its_session_and_of_forks(memory: ConversationMemory) -> None:
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


def test_a_message_that_is_redacted_before_it_is_indexed_is_indexed_without_words(memory: ConversationMemory) -> None:
    say(memory, 3, text=f"{SECRET} {{}}")
    memory.redact("s", 1)
    assert index_all() == 3
    assert stored() == segments_of(["", f"{SECRET} 1", f"{SECRET} 2"], {1})
    memory.redact("s", 2)
    memory.redact("s", 3)
    assert secrets() == 0
    assert is_whole()


@pytest.mark.parametrize("after", [0, 1, 100, 127, 128, 129, 255, 256, 300, 350, 399])
def test_truncation_trims_the_index(after: int, memory: ConversationMemory) -> None:
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
def test_a_fork_has_the_index_of_what_it_copies(at: int, memory: ConversationMemory) -> None:
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
def test_a_deletion_removes_the_index(deletion: str, memory: ConversationMemory) -> None:
    user = get_user_model().objects.create(username="ann")
    memory.session("s", owner=user).append(*[ChatMessage.human(f"{SECRET} {number}") for number in range(200)])
    say(memory, 10, "another")
    index_all()
    index_all("another")
    DELETIONS[deletion](memory)
    assert secrets() == 0
    assert stored("another") == expected(memory, 10, "another")
    assert is_whole()


def test_a_visitors_index_stays_when_the_visitor_logs_in(memory: ConversationMemory) -> None:
    user = get_user_model().objects.create(username="ann")
    memory.session("s", visitor="v").append(*[ChatMessage.human(f"heron {number}") for number in range(20)])
    index_all()
    before = stored()
    memory.adopt("v", user)
    [session] = searchable_of(memory.store, owner_id=user.pk)
    assert stored() == before
    assert session.complete


def test_a_recount_leaves_the_index(memory: ConversationMemory) -> None:
    say(memory, 20)
    index_all()
    before = stored()
    assert integrity.recount(memory, models.Session.objects.get().pk, using="default")
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
    documents = indexing.documents

    def documents_and_edit(*arguments: Any) -> list[Document]:
        read = list(documents(*arguments))
        while edits:
            edits.pop()(memory)
        return read

    monkeypatch.setattr(indexing, "documents", documents_and_edit)
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
def test_a_redaction_waits_for_the_index_and_then_finds_the_words(before: int, memory: ConversationMemory) -> None:
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
    copied = index_rows.copied

    def copied_and_redacted(*arguments: Any) -> Any:
        read = copied(*arguments)
        memory.redact("s", 30)
        return read

    monkeypatch.setattr(index_rows, "copied", copied_and_redacted)
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
    documents = indexing.documents

    def documents_and_index(*arguments: Any) -> list[Document]:
        read = list(documents(*arguments))
        if others:
            index(limit=others.pop())
        return read

    monkeypatch.setattr(indexing, "documents", documents_and_index)
    index_all()
    assert stored() == expected(memory, 300)
    assert is_whole()


def test_whatever_happens_at_the_same_time_the_index_is_that_of_the_messages(memory: ConversationMemory) -> None:
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


@pytest.mark.slow
def test_a_long_session_is_indexed_in_portions_although_the_process_is_killed(tmp_path: pathlib.Path) -> None:
    memory = build()
    fill(memory, "s", 20_000)
    models.Message.objects.filter(position=7_777).update(content=SECRET)
    arguments = ("django", "convmemory_check", "--reindex", "--verbosity", "0")
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
    call_command("convmemory_check", reindex=True, verbosity=0)
    assert 0 < killed[0] < killed[1] <= indexed() == 20_000
    assert is_whole_index()
    assert [segment.first for segment in stored()] == list(range(1, 20_000, 128))
    assert secrets() == 1
    memory.redact("s", 7_777)
    assert secrets() == 0
