"""A retry of a request whose answer was lost changes nothing, whatever has happened in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from django_convmemory import exceptions, models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.rules import spent_keys
from django_convmemory.store import appending
from tests import processes
from tests.folding import MarkerModel, build
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.django_db, pytest.mark.vendors]

QUESTION = ChatMessage.human("Where do we eat?")


@pytest.fixture
def memory() -> ConversationSummaryBufferMemory:
    return build(MarkerModel(), 10**6)


CUTS: dict[str, Callable[[Any], Any]] = {
    "clear": lambda chat: chat.clear(),
    "truncate": lambda chat: chat.truncate(0),
    "pop": lambda chat: chat.pop(),
    "replace": lambda chat: chat.replace(0, ChatMessage.human("hello")),
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_key_stays_used_after_its_messages_were_deleted(memory: ConversationSummaryBufferMemory, cut: str) -> None:
    chat = memory.session("s")
    first = chat.append(QUESTION, idempotency_key="k")
    CUTS[cut](chat)
    left = models.Message.objects.count()

    again = chat.append(QUESTION, idempotency_key="k")

    assert again == first._replace(replayed=True, tokens=0)
    assert models.Message.objects.count() == left
    with pytest.raises(exceptions.IdempotencyConflict):
        chat.append(QUESTION, QUESTION, idempotency_key="k")
    assert not chat.append(QUESTION, idempotency_key="another").replayed


def test_a_key_of_deleted_messages_has_no_hash_of_their_content(memory: ConversationSummaryBufferMemory) -> None:
    memory.append("s", QUESTION, idempotency_key="k")
    payload = models.Message.objects.get().payload_hash.partition("/")[0]
    memory.clear("s")
    session = models.Session.objects.get()
    assert session.spent_keys
    assert payload not in session.spent_keys


def test_a_session_keeps_the_keys_that_were_deleted_last(memory: ConversationSummaryBufferMemory) -> None:
    for number in range(spent_keys.MAX_SPENT_KEYS + 5):
        memory.append("s", ChatMessage.human(f"message {number}"), idempotency_key=f"k{number}")
    memory.clear("s")
    assert len(str(models.Session.objects.get().spent_keys).split()) == spent_keys.MAX_SPENT_KEYS
    assert memory.append("s", QUESTION, idempotency_key="k68").replayed
    assert memory.append("s", QUESTION, idempotency_key="k5").replayed
    assert not memory.append("s", QUESTION, idempotency_key="k4").replayed


def test_a_retry_that_looked_for_its_key_before_the_first_try_was_stored_and_cleared(
    memory: ConversationSummaryBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = memory.session("s")
    chat.append(ChatMessage.human("hello"))
    look, meanwhile = appending._look, iter([True])

    def look_and_be_slow(*arguments: Any) -> Any:
        looked = look(*arguments)
        if next(meanwhile, False):
            chat.append(QUESTION, idempotency_key="k")
            chat.clear()
        return looked

    monkeypatch.setattr(appending, "_look", look_and_be_slow)
    assert chat.append(QUESTION, idempotency_key="k").replayed
    assert models.Message.objects.count() == 0


def test_a_retry_of_a_creation_returns_the_session(memory: ConversationSummaryBufferMemory) -> None:
    first = memory.create("trip", title="Lisbon", idempotency_key="k")
    memory.update("trip", title="Lisbon in May")
    again = memory.create("trip", title="Lisbon", idempotency_key="k")
    assert (first.pk, first.replayed) == (again.pk, False)
    assert (again.title, again.replayed) == ("Lisbon in May", True)
    for changed in ({"title": "Porto"}, {"title": "Lisbon", "metadata": {"a": 1}}):
        with pytest.raises(exceptions.IdempotencyConflict):
            memory.create("trip", **changed, idempotency_key="k")
    with pytest.raises(exceptions.IdempotencyConflict):
        memory.create("another", title="Lisbon", idempotency_key="k")
    with pytest.raises(exceptions.SessionExists):
        memory.create("trip", title="Lisbon", idempotency_key="another")


def test_each_owner_has_keys_of_their_own(memory: ConversationSummaryBufferMemory) -> None:
    anna, bert = (get_user_model().objects.create(username=name) for name in ("anna", "bert"))
    created = [memory.session("s", owner=user).create(idempotency_key="k") for user in (anna, bert)]
    created.append(memory.session("s", visitor="v").create(idempotency_key="k"))
    assert len({session.pk for session in created}) == 3
    assert not any(session.replayed for session in created)


def test_a_key_goes_with_the_session_that_it_created(memory: ConversationSummaryBufferMemory) -> None:
    first = memory.create("trip", idempotency_key="k")
    memory.delete("trip")
    again = memory.create("trip", idempotency_key="k")
    assert (again.pk == first.pk, again.replayed) == (False, False)


def test_a_retry_of_a_fork_returns_the_copy(memory: ConversationSummaryBufferMemory) -> None:
    memory.append("s", QUESTION, QUESTION)
    first = memory.fork("s", 1, key="copy", idempotency_key="k")
    memory.truncate("s", 0)
    again = memory.fork("s", 1, key="copy", idempotency_key="k")
    assert (again.pk, again.replayed, first.replayed) == (first.pk, True, False)
    for changed in ({"at": 2, "key": "copy"}, {"at": 1, "key": "b"}, {"at": 1, "key": "copy", "title": "x"}):
        with pytest.raises(exceptions.IdempotencyConflict):
            memory.fork("s", **changed, idempotency_key="k")  # type: ignore[arg-type]
    with pytest.raises(exceptions.IdempotencyConflict):
        memory.create("copy", idempotency_key="k")


def test_a_retry_of_a_replacement_returns_its_receipt(memory: ConversationSummaryBufferMemory) -> None:
    chat = memory.session("s")
    chat.append(QUESTION, ChatMessage.ai("Nowhere."))
    revision = models.Session.objects.get().revision
    first = chat.replace(1, ChatMessage.ai("In Alfama."), revision=revision, idempotency_key="k")
    assert first[:2] == (2, 2)
    again = chat.replace(1, ChatMessage.ai("In Alfama."), revision=revision, idempotency_key="k")
    assert again == first._replace(replayed=True)
    with pytest.raises(exceptions.StaleRevision):
        chat.replace(1, ChatMessage.ai("In Alfama."), revision=revision)
    with pytest.raises(exceptions.IdempotencyConflict):
        chat.append(ChatMessage.ai("In Alfama."), idempotency_key="k")
    with pytest.raises(exceptions.IdempotencyConflict):
        chat.replace(0, ChatMessage.ai("In Alfama."), idempotency_key="k")
    assert [message.message.text for message in chat.history()] == ["Where do we eat?", "In Alfama."]


def test_a_replacement_that_is_refused_deletes_nothing(memory: ConversationSummaryBufferMemory) -> None:
    chat = memory.session("s")
    chat.append(QUESTION, ChatMessage.ai("Nowhere."))
    with pytest.raises(exceptions.ToolResultRefused):
        chat.replace(1, ChatMessage.tool("found", "c1"))
    with pytest.raises(exceptions.UnknownMessage):
        chat.replace(3, QUESTION)
    assert [message.position for message in chat.history()] == [1, 2]
    assert list(integrity.check(models.Session.objects.all())) == []


def test_a_message_that_takes_the_place_of_another_has_another_id(memory: ConversationSummaryBufferMemory) -> None:
    chat, ids = memory.session("s"), set()
    for _ in range(3):
        chat.replace(0, QUESTION, QUESTION)
        session = models.Session.objects.get()
        ids |= {row.public_id for row in models.Message.objects.shown(session)}
    assert len(ids) == 6
    kept = {row.position: row.public_id for row in models.Message.objects.shown(session)}
    chat.replace(1, QUESTION)
    changed = {row.position: row.public_id for row in models.Message.objects.shown(session)}
    assert (changed[1], changed[2] in ids) == (kept[1], False)
    copy = memory.fork("s", 2, key="copy")
    assert not {row.public_id for row in models.Message.objects.shown(copy)} & {*ids, *changed.values()}


def test_feedback_changes_the_revision_and_not_the_epoch(memory: ConversationSummaryBufferMemory) -> None:
    chat = memory.session("s")
    chat.append(QUESTION)
    before = models.Session.objects.get()
    chat.update_message(1, metadata={"thumb": "up"})
    after = models.Session.objects.get()
    assert (after.epoch, after.revision, after.updated_at) == (before.epoch, before.revision + 1, before.updated_at)
    assert chat.history()[0].message.metadata == {"thumb": "up"}
    with pytest.raises(exceptions.StaleRevision):
        chat.update_message(1, metadata={}, revision=before.revision)
    chat.redact(1)
    with pytest.raises(exceptions.RedactedMessage):
        chat.update_message(1, metadata={"thumb": "up"})
    assert chat.history()[0].message.metadata == {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", ["create", "fork", "replace", "append"])
def test_requests_with_one_key_at_the_same_time_are_carried_out_once(
    memory: ConversationSummaryBufferMemory, operation: str
) -> None:
    chat = memory.session("s")
    chat.append(QUESTION, ChatMessage.ai("Nowhere."))
    revision = models.Session.objects.get().revision
    reply = ChatMessage.ai("In Alfama.")
    work: Callable[[], Any] = {
        "create": lambda: memory.create("new", idempotency_key="k"),
        "fork": lambda: memory.fork("s", 1, key="copy", idempotency_key="k"),
        "replace": lambda: chat.replace(1, reply, revision=revision, idempotency_key="k"),
        "append": lambda: chat.append(reply, idempotency_key="k"),
    }[operation]
    barrier = threading.Barrier(5)

    def retry() -> Any:
        barrier.wait(processes.PATIENCE)
        return work()

    results = [thread.result() for thread in [InThread(retry) for _ in range(5)]]
    assert sorted(result.replayed for result in results) == [False, True, True, True, True]
    assert len({getattr(result, "pk", result[:2] if isinstance(result, tuple) else 0) for result in results}) == 1
    assert models.Session.objects.count() == (2 if operation in ("create", "fork") else 1)
    assert list(integrity.check(models.Session.objects.all())) == []
