"""The index after deletions, redactions and forks, also if they come at the same time as the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.segments import Document
from django_convmemory.search import indexing
from django_convmemory.store import index_rows
from tests.indexes import (
    SECRET,
    build,
    expected,
    index,
    index_all,
    indexed,
    is_whole,
    say,
    searchable_of,
    secrets,
    segments_of,
    stored,
)
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


def with_secret(count: int) -> ConversationMemory:
    """Return a memory with the secret at position 30 of 60, whose first ``count`` messages are indexed."""
    memory = build()
    say(memory, 29)
    memory.append("s", ChatMessage.human(SECRET))
    say(memory, 30)
    if count:
        index(limit=count)
    return memory


@pytest.mark.parametrize("before", [0, 20, 30])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_between_reading_and_writing_wins(edit: str, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``before``: so many messages are indexed already. The others make the last segment longer."""
    memory = with_secret(before)
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
    memory = with_secret(before)
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
    memory = with_secret(60)
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
