"""A retry of a request whose answer was lost changes nothing, whatever has happened in between."""

from __future__ import annotations

import hashlib
import io
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import transaction

from django_convmemory import exceptions, models
from django_convmemory.clock import Clock
from django_convmemory.maintenance import integrity
from django_convmemory.management.commands import convmemory_prune
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules.counters import Batch, Entry
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from tests import processes
from tests.folding import MarkerModel, build
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.django_db, pytest.mark.vendors]

QUESTION = ChatMessage.human("Where do we eat?")


@pytest.fixture
def memory() -> ConversationSummaryBufferMemory:
    return build(MarkerModel(), 10**6)


@pytest.fixture
def chat(memory: ConversationSummaryBufferMemory) -> SessionHandle:
    return memory.session("s")


# Keys of appends.


def removals(keep: int) -> dict[str, Callable[[SessionHandle], Any]]:
    """Ways to remove a session's messages after the position ``keep``."""
    return {
        "clear": lambda chat: chat.clear(),
        "truncate": lambda chat: chat.truncate(keep),
        "pop": lambda chat: chat.pop(),
        "replace": lambda chat: chat.replace(keep, ChatMessage.human("hello")),
        "redact, and truncate": lambda chat: chat.redact(keep + 1) and chat.truncate(keep),
    }


@pytest.mark.parametrize("keep", [0, 1], ids=["all", "one of two"])
@pytest.mark.parametrize("cut", removals(0))
def test_a_key_stays_used_after_one_of_its_messages_was_removed(store: Store, cut: str, keep: int) -> None:
    chat = build(MarkerModel(), 10**6, store=store).session("s")
    batch = [QUESTION] * (keep + 1)
    chat.append(*batch, idempotency_key="k")
    removals(keep)[cut](chat)
    left = chat.history()

    for again in (batch, [*batch[:-1], ChatMessage.human("Where else?")]):
        with pytest.raises(exceptions.IdempotencyConflict, match="se a new key"):
            chat.append(*again, idempotency_key="k")
        with pytest.raises(exceptions.IdempotencyConflict):
            chat.replace(0, *again, idempotency_key="k")
    assert chat.history() == left
    assert not chat.append(*batch, idempotency_key="another").replayed


def test_a_redaction_deletes_the_hash_of_a_key_whose_other_messages_were_removed(store: Store) -> None:
    memory = build(MarkerModel(), 10**6, store=store)
    chat = memory.session("s")
    chat.append(QUESTION, ChatMessage.ai("In the old mill."), idempotency_key="k")
    chat.pop()

    chat.redact(1)

    if isinstance(store, InMemoryStore):
        assert [used.content for used in store.session(memory.resolve("s")).keys.values()] == [""]
    else:
        assert models.UsedKey.objects.get().content == ""


def grow_old(store: Store, days: float) -> None:
    """Let the messages of the used keys be removed so many days ago."""
    if isinstance(store, InMemoryStore):
        for session in store._sessions.values():
            for used in session.keys.values():
                used.gone_at = time.time() - days * 86400
    else:
        models.UsedKey.objects.filter(gone_at__isnull=False).update(gone_at=Clock(-days * 86400))


def test_a_key_is_forgotten_a_month_after_its_messages_were_removed(store: Store) -> None:
    chat = build(MarkerModel(), 10**6, store=store).session("s")
    chat.append(QUESTION, idempotency_key="k")
    chat.clear()
    grow_old(store, 29.9)
    with pytest.raises(exceptions.IdempotencyConflict):
        chat.append(QUESTION, idempotency_key="k")
    grow_old(store, 30.1)
    first = chat.append(ChatMessage.human("Where else?"), idempotency_key="k")
    assert not first.replayed
    assert chat.append(ChatMessage.human("Where else?"), idempotency_key="k") == first._replace(replayed=True)
    chat.clear()
    grow_old(store, 30.1)
    assert not chat.replace(0, QUESTION, idempotency_key="k").replayed


def test_pruning_deletes_the_keys_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convmemory_prune, "_BATCH", 1)
    memory = build(MarkerModel(), 10**6)
    for key in ("a", "b", "c"):
        memory.append(key, QUESTION, idempotency_key="k")
    memory.clear("a")
    grow_old(memory.store, 30.1)
    memory.clear("b")
    for options, left in (({"dry_run": True}, 3), ({}, 2)):
        call_command("convmemory_prune", "--inactive-for", "90d", stdout=io.StringIO(), **options)
        assert models.UsedKey.objects.count() == left
    assert memory.append("c", QUESTION, idempotency_key="k").replayed


def test_a_retry_is_recognized_after_a_change_of_the_secret_key(settings: Any) -> None:
    memory = build(MarkerModel(), 10**6)
    memory.append("s", QUESTION, idempotency_key="k")
    content = models.UsedKey.objects.get().content
    assert hashlib.sha256(QUESTION.text.encode()).hexdigest() != content != Batch([Entry(QUESTION, 1)]).payload_hash
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["another", settings.SECRET_KEY]
    assert memory.append("s", QUESTION, idempotency_key="k").replayed
    with pytest.raises(exceptions.IdempotencyConflict):
        memory.append("s", ChatMessage.human("Where else?"), idempotency_key="k")
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(exceptions.IdempotencyConflict):
        memory.append("s", QUESTION, idempotency_key="k")


def test_a_used_key_does_not_break_the_callers_transaction(memory: ConversationSummaryBufferMemory) -> None:
    chat = memory.session("s")
    with transaction.atomic():
        first = chat.append(QUESTION, idempotency_key="k")
        assert chat.append(QUESTION, idempotency_key="k") == first._replace(replayed=True)
        with pytest.raises(exceptions.IdempotencyConflict):
            chat.append(ChatMessage.human("Where else?"), idempotency_key="k")
        chat.append(ChatMessage.ai("In Alfama."))
    assert [stored.message.text for stored in chat.history()] == ["Where do we eat?", "In Alfama."]
    assert list(integrity.check(models.Session.objects.all())) == []


def test_a_retry_in_a_damaged_session_is_refused(memory: ConversationSummaryBufferMemory) -> None:
    memory.append("s", QUESTION, idempotency_key="k")
    models.Message.objects.all().delete()
    with pytest.raises(exceptions.IdempotencyConflict):
        memory.append("s", QUESTION, idempotency_key="k")


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("session", ["there", "new"])
@pytest.mark.parametrize(
    ("ends", "text"),
    [("commit", QUESTION.text), ("commit", "other"), ("rollback", "other"), ("clear", QUESTION.text)],
)
def test_an_append_waits_for_another_with_its_key(
    memory: ConversationSummaryBufferMemory, session: str, ends: str, text: str, chat: SessionHandle
) -> None:
    if session == "there":
        chat.append(ChatMessage.human("hello"))
    with transaction.atomic():
        first = chat.append(QUESTION, idempotency_key="k")
        second = InThread(lambda: chat.append(ChatMessage.human(text), idempotency_key="k"))
        assert second.is_waiting()
        if ends == "clear":
            chat.clear()
        transaction.set_rollback(ends == "rollback")
    stored = 1
    if ends == "commit" and text == QUESTION.text:
        assert second.result() == first._replace(replayed=True)
    elif ends == "rollback":
        assert not second.result().replayed
    else:
        stored = 0
        with pytest.raises(exceptions.IdempotencyConflict):
            second.result()
    assert models.Message.objects.filter(content=text).count() == stored
    assert list(integrity.check(models.Session.objects.all())) == []


def test_each_message_has_an_id_of_its_own_for_ever(store: Store) -> None:
    chat, ids = build(MarkerModel(), 10**6, store=store).session("s"), list[uuid.UUID]()
    for _ in range(3):
        receipt = chat.replace(0, QUESTION, QUESTION)
        assert tuple(stored.id for stored in chat.history()) == receipt.ids
        ids += receipt.ids
    # They are in the order of time.
    assert sorted(set(ids)) == ids
    assert {(message_id.version, message_id.variant) for message_id in ids} == {(7, uuid.RFC_4122)}
    changed = chat.replace(1, QUESTION, idempotency_key="k").ids
    assert changed[0] not in ids
    chat.memory.fork("s", 2, key="copy")
    assert [stored.id for stored in chat.memory.history("copy")] == [ids[-2], *changed]
    # A copy has no keys: they belong to the appends to the original.
    assert not chat.memory.append("copy", QUESTION, idempotency_key="k").replayed


# Keys of creations and replacements.


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


def test_feedback_changes_the_details_and_not_the_messages(memory: ConversationSummaryBufferMemory) -> None:
    chat = memory.session("s")
    chat.append(QUESTION)
    before = models.Session.objects.get()
    chat.update_message(1, metadata={"thumb": "up"})
    after = models.Session.objects.get()
    assert (after.epoch, after.revision, after.details) == (before.epoch, before.revision, before.details + 1)
    assert after.updated_at == before.updated_at
    assert chat.history()[0].message.metadata == {"thumb": "up"}
    chat.redact(1)
    with pytest.raises(exceptions.StaleRevision):
        chat.update_message(1, metadata={}, revision=before.revision)
    with pytest.raises(exceptions.RedactedMessage):
        chat.update_message(1, metadata={"thumb": "up"})
    assert chat.history()[0].message.metadata == {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", ["create", "fork", "replace", "append"])
def test_requests_with_one_key_at_the_same_time_are_carried_out_once(
    memory: ConversationSummaryBufferMemory, operation: str, chat: SessionHandle
) -> None:
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
