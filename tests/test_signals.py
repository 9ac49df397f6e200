"""When the signals are sent."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.dispatch import Signal

from django_convmemory import signals
from django_convmemory.memory import ConversationBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.append import Receipt
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("store_class", [InMemoryStore, ORMStore])
def test_messages_appended_is_sent_after_the_commit_and_once_for_an_append_that_is_replayed(store_class: Any) -> None:
    received: list[tuple[Any, Receipt]] = []

    def receive(sender: Any, receipt: Receipt, **arguments: Any) -> None:
        received.append((sender, receipt))

    signal: Signal = signals.messages_appended
    memory = ConversationBufferMemory(store_class())
    signal.connect(receive)
    try:
        with transaction.atomic():
            first = memory.append("s", ChatMessage.human("hello"), idempotency_key="k")
            assert received == [] or store_class is InMemoryStore
        replayed = memory.append("s", ChatMessage.human("hello"), idempotency_key="k")
    finally:
        signal.disconnect(receive)
    assert replayed == first._replace(replayed=True)
    assert received == [(ConversationBufferMemory, first)]
