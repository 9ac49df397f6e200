"""Processes that have used the table before a conversion go on with their statements after it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from django_convmemory.contrib.partitions import conversion
from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.memory import ConversationBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store import database, preparing
from django_convmemory.store.orm import ORMStore
from tests import processes
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.release, pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("unpartitioned")]


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """Begin as a new process does. Databases of other tests have had the same name."""
    database._partitioned.clear()
    preparing._given_up.clear()
    yield
    database._partitioned.clear()
    preparing._given_up.clear()


class Process:
    """A chat in a thread with a connection of its own, as in another process."""

    def __init__(self) -> None:
        self.memory = ConversationBufferMemory(ORMStore(), scheduler=NullScheduler())
        self.texts: list[str] = []
        self.began, self.converted = threading.Event(), threading.Event()
        self.prepared: list[set[Any]] = []

    def run(self, around: Callable[[], Any]) -> None:
        try:
            for _ in range(2 * preparing.SENT_FIRST):
                self.chat()
            self.note_prepared()
        finally:
            self.began.set()
        assert self.converted.wait(processes.PATIENCE)
        for _ in range(2 * preparing.SENT_FIRST):
            with around():
                self.chat()
                self.chat()
        self.note_prepared()

    def chat(self) -> None:
        memory, number = self.memory, len(self.texts)
        memory.append("chat", ChatMessage.human(f"heron {number}"))
        for replayed in (False, True):
            receipt = memory.append("chat", ChatMessage.ai(f"reply {number}"), idempotency_key=f"key {number}")
            assert receipt.replayed is replayed
        self.texts += [f"heron {number}", f"reply {number}"]
        assert [message.text for message in memory.load("chat", max_tokens=100_000)] == self.texts
        assert [stored.message.text for stored in memory.history("chat", limit=1000)] == self.texts
        assert memory.search("heron", session="chat", limit=100).complete

    def note_prepared(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, prepare_time FROM pg_prepared_statements WHERE name LIKE 'convmemory%'")
            self.prepared.append(set(cursor.fetchall()))


@contextlib.contextmanager
def started(process: Process, around: Callable[[], Any]) -> Iterator[None]:
    thread = InThread(lambda: process.run(around))
    try:
        assert process.began.wait(processes.PATIENCE)
        yield
    finally:
        process.converted.set()
        thread.result()


@pytest.mark.parametrize("around", [contextlib.nullcontext, transaction.atomic])
def test_what_was_prepared_and_known_before_a_conversion_is_right_after_it(
    around: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another process would not forget that the table was whole.
    monkeypatch.setattr(database, "forget_partitions", lambda: None)
    process = Process()

    with started(process, around):
        conversion.convert(PatientDatabase("default", 300), 16, lambda sentence: None)

    before, after = process.prepared
    # An append, an append with a key, and a load. None of them was prepared again.
    assert len(before) == 3
    assert before == after
    assert not database.is_partitioned(connection)
