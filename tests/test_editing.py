"""Conversations that are truncated, forked, adopted and erased."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_convmemory import exceptions, models
from django_convmemory.maintenance import integrity
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.store.orm import ORMStore
from tests.conversations import call
from tests.folding import MarkerModel, build, covered, session, talk, versions
from tests.long_sessions import fill
from tests.test_redaction import SECRET, Parrot, dump, secretive

pytestmark = [pytest.mark.django_db, pytest.mark.vendors]


@pytest.fixture
def memory() -> ConversationMemory:
    return build(MarkerModel())


def whole() -> None:
    assert list(integrity.check(models.Session.objects.all())) == []


# Truncating.


def test_regenerating_into_a_folded_range_falls_back_to_the_summary_before_it(memory: ConversationMemory) -> None:
    for _ in range(4):
        talk(memory, 10)
        memory.compact("s")
    second = versions()[1]
    assert len(versions()) == 4

    removed = memory.truncate("s", second.last_position + 1)

    assert removed == 40 - second.last_position - 1
    assert [version.invalidated_at is None for version in versions()] == [True, True, False, False]
    context = memory.load("s")
    assert context.summary == second.text
    assert covered(context.to_text()) == list(range(1, second.last_position + 2))
    talk(memory, 12)
    assert memory.compact("s") == "published"
    newest = versions()[-1]
    assert (newest.version, newest.parent_version, newest.first_position) == (5, 2, second.last_position + 1)
    assert covered(memory.load("s").to_text()) == list(range(1, second.last_position + 14))
    whole()


def test_nothing_of_what_was_truncated_is_left_in_the_database() -> None:
    memory = secretive(ORMStore())
    talk(memory, 10)
    memory.compact("s")
    assert SECRET in dump()
    memory.truncate("s", 2)
    assert SECRET not in dump()
    whole()


@pytest.mark.parametrize("cut", ["truncate", "fork"])
def test_a_call_without_a_result_is_not_left_folded_where_the_conversation_is_cut_behind_it(cut: str) -> None:
    """Its exchange is open again. A result may still come, and must not be shown without its call."""
    memory = build(MarkerModel())
    memory.append("s", ChatMessage.human("[[1]] " + "word " * 30))
    assert memory.compact("s") == "not_due"
    memory.append("s", ChatMessage.ai(tool_calls=[call("a")]), ChatMessage.ai("never mind " * 30))
    assert memory.compact("s") == "published"
    assert session().covered_position == 2
    if cut == "truncate":
        memory.truncate("s", 2)
        cut_off = "s"
    else:
        cut_off = memory.fork("s", 2, key="copy").key
    whole()
    memory.append(cut_off, ChatMessage.tool("found", "a"))
    whole()
    assert [message.role for message in memory.load(cut_off)] == ["user", "assistant", "tool"]


# Copying.


def test_a_copy_goes_on_by_itself(memory: ConversationMemory) -> None:
    talk(memory, 12)
    memory.compact("s")
    copy = memory.fork("s", 11, key="copy")
    assert (copy.forked_from_id, copy.fork_position) == (session().pk, 11)
    assert memory.load("copy").summary == memory.load("s").summary
    talk(memory, 10)
    talk(memory, 20, key="copy")
    assert [memory.compact(key) for key in ("s", "copy")] == ["published"] * 2
    assert covered(memory.load("s").to_text()) == list(range(1, 23))
    assert covered(memory.load(copy).to_text()) == list(range(1, 32))
    whole()


def test_a_copy_belongs_to_whom_the_original_belongs() -> None:
    ann, bob = (get_user_model().objects.create(username=name) for name in ("ann", "bob"))
    chat = build(MarkerModel()).session("main", owner=ann)
    chat.append(ChatMessage.human("hello"), idempotency_key="k")
    assert chat.fork(1, key="copy").owner == ann
    assert chat.fork(1, key="copy", owner=bob).owner == bob
    with pytest.raises(exceptions.SessionExists, match="Choose another key"):
        chat.fork(1, key="copy")
    with pytest.raises(exceptions.UnknownMessage):
        chat.fork(2, key="another")
    with pytest.raises(exceptions.InvalidSession, match="no session"):
        chat.memory.fork("nobody", 0, key="another")
    whole()


def test_the_statements_of_a_fork_do_not_depend_on_its_length(
    record_property: Callable[[str, object], None],
) -> None:
    counts = []
    for size in (10, 20_000):
        key = f"of {size}"
        memory = build(MarkerModel(), 10**9)
        fill(memory, key, size)
        began = time.perf_counter()
        with CaptureQueriesContext(connection) as queries:
            copy = memory.fork(key, size, key=f"copy of {size}")
        counts.append(len(queries))
        if size > 1000:
            record_property(f"fork of {size} messages on {connection.vendor}", f"{time.perf_counter() - began:.2f} s")
        assert copy.convmemory_messages.count() == size
    assert counts[0] == counts[1]
    whole()


# People.


def test_nothing_of_an_erased_person_is_left_and_all_of_the_others() -> None:
    ann, bob = (get_user_model().objects.create(username=name) for name in ("ann", "bob"))
    memory = build(Parrot())
    for owner in (ann, bob):
        chat = memory.session("main", owner=owner)
        chat.append(ChatMessage.human(f"{SECRET} of {owner.username}"), idempotency_key=f"key of {owner.username}")
        chat.append(*[ChatMessage.human("word " * 20) for _ in range(4)])
        chat.compact()
    memory.session("notes", visitor="v").append(ChatMessage.human("a visitor's"))
    spent = models.Attempt.objects.count()

    assert memory.erase(owner=ann) == 1

    assert f"{SECRET} of ann" not in dump()
    assert f"{SECRET} of bob" in dump()
    assert models.Session.objects.count() == 2
    assert models.Attempt.objects.count() == spent
    assert memory.erase(visitor="v") == 1
    with pytest.raises(exceptions.InvalidSession):
        memory.erase()
    whole()


def test_erasing_is_of_one_memory() -> None:
    ann = get_user_model().objects.create(username="ann")
    for alias in ("default", "support"):
        build(MarkerModel(), alias=alias).session("main", owner=ann).append(ChatMessage.human("hello"))
    assert build(MarkerModel(), alias="support").erase(owner=ann) == 1
    assert models.Session.objects.get().alias == "default"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("truncate", (-1,)), ("truncate", ("3",)), ("truncate", (1, "x")), ("redact", (0,)), ("redact", (True,))],
)
def test_a_number_that_is_none_is_refused(name: str, arguments: tuple[Any, ...], memory: ConversationMemory) -> None:
    with pytest.raises(exceptions.InvalidArgument, match="must be a whole number"):
        getattr(memory, name)("s", *arguments)
    with pytest.raises(ValueError, match="limit"):
        memory.history("s", limit=0)
    for max_tokens in (-1, 1.5, True, "9"):
        with pytest.raises(exceptions.InvalidArgument, match="max_tokens must be a whole number of at least 0"):
            memory.load("s", max_tokens=max_tokens)  # type: ignore[arg-type]
