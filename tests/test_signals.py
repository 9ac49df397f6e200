"""When the signals are sent."""

from __future__ import annotations

from typing import Any

import pytest
from django.dispatch import Signal

from django_convmemory import signals
from django_convmemory.conversation import Receipt
from django_convmemory.memory import ConversationBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.stores.in_memory import InMemoryStore
from django_convmemory.stores.orm import ORMStore


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("store_class", [InMemoryStore, ORMStore])
def test_messages_appended_is_sent_once_for_an_append_that_is_replayed(store_class: Any) -> None:
    receipts: list[Receipt] = []

    def receive(sender: Any, receipt: Receipt, **arguments: Any) -> None:
        receipts.append(receipt)

    signal: Signal = signals.messages_appended
    memory = ConversationBufferMemory(store_class())
    signal.connect(receive)
    try:
        first = memory.append("s", ChatMessage.human("hello"), idempotency_key="k")
        replayed = memory.append("s", ChatMessage.human("hello"), idempotency_key="k")
    finally:
        signal.disconnect(receive)
    assert replayed == first._replace(replayed=True)
    assert receipts == [first]
