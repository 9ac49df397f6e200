"""The signal ``content_changed``: it comes whenever content goes or is copied, or else the content stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction

from django_convmemory import models
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.signals import content_changed
from tests.indexes import build, say

# Real transactions, because one of them is rolled back.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendors]

Change = tuple[int, int | None, int | None]


@pytest.fixture
def memory(transactional_db: None) -> ConversationMemory:
    memory = build()
    say(memory, 6)
    return memory


@pytest.fixture
def changes(memory: ConversationMemory) -> Iterator[list[Change]]:
    """The positions of the changes of the session ``s``, and from where they were copied."""
    received: list[Change] = []

    def receive(session_id: int, first: int, last: int | None, copied_from: int | None, **kwargs: Any) -> None:
        assert connection.in_atomic_block
        received.append((first, last, copied_from))

    content_changed.connect(receive)
    yield received
    content_changed.disconnect(receive)


def replace(memory: ConversationMemory) -> None:
    memory.replace("s", 2, ChatMessage.human("another one"))


REMOVALS: dict[str, tuple[Callable[[ConversationMemory], Any], Change]] = {
    "redact": (lambda memory: memory.redact("s", 3), (3, 3, None)),
    "truncate": (lambda memory: memory.truncate("s", 4), (5, None, None)),
    "pop": (lambda memory: memory.pop("s"), (6, None, None)),
    "replace": (replace, (3, None, None)),
    "clear": (lambda memory: memory.clear("s"), (1, None, None)),
    "delete": (lambda memory: memory.delete("s"), (1, None, None)),
    "erase": (
        lambda memory: call_command("convmemory_erase", key="s", interactive=False, verbosity=0),
        (1, None, None),
    ),
    "the admin, and a cascade": (lambda memory: models.Session.objects.all().delete(), (1, None, None)),
}


@pytest.mark.parametrize("name", REMOVALS)
def test_each_removal_of_content_sends_its_positions(
    memory: ConversationMemory, changes: list[Change], name: str
) -> None:
    remove, expected = REMOVALS[name]
    remove(memory)
    assert changes == [expected]


def test_a_prune_of_sessions_sends_what_it_deletes(memory: ConversationMemory, changes: list[Change]) -> None:
    models.Session.objects.update(updated_at="2001-01-01T00:00Z")
    call_command("convmemory_prune", inactive_for="9d", verbosity=0)
    assert changes == [(1, None, None)]


def test_deleting_the_owner_sends_what_goes_with_the_user(changes: list[Change]) -> None:
    user = get_user_model().objects.create(username="ines")
    memory = build()
    say(memory, 2, memory.session("theirs", owner=user))
    user.delete()
    assert changes == [(1, None, None)]


def test_a_fork_sends_the_session_that_it_copies(memory: ConversationMemory, changes: list[Change]) -> None:
    memory.fork("s", 4, key="copy")
    assert changes == [(1, 4, models.Session.objects.get(key="s").pk)]


def test_what_changes_no_content_sends_nothing(memory: ConversationMemory, changes: list[Change]) -> None:
    say(memory, 1)
    memory.update_message("s", 1, metadata={"seen": True})
    memory.truncate("s", 9)
    memory.update("s", title="Herons")
    call_command("convmemory_check", reindex=True, verbosity=0)
    assert changes == []


@pytest.mark.parametrize("caller", [nullcontext, transaction.atomic], ids=["alone", "in a transaction that goes on"])
@pytest.mark.parametrize("name", sorted(REMOVALS))
def test_an_error_of_a_receiver_undoes_the_change(
    memory: ConversationMemory, name: str, caller: Callable[[], AbstractContextManager[Any]]
) -> None:
    def refuse(**kwargs: Any) -> None:
        raise RuntimeError("the copy elsewhere cannot be removed")

    content_changed.connect(refuse)
    try:
        with caller(), pytest.raises(RuntimeError, match="elsewhere"):
            REMOVALS[name][0](memory)
    finally:
        content_changed.disconnect(refuse)
    assert [stored.message.text for stored in memory.history("s")] == [f"heron number {number}" for number in range(6)]
