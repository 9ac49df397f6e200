"""``manage.py convmemory_partition`` on filled tables, while others write, with interruptions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import random
import signal
import threading
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command

from django_convmemory.contrib.partitions import tables
from django_convmemory.contrib.partitions.conversion import Refused
from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.memory import ConversationMemory
from django_convmemory.messages import ChatMessage
from tests import processes
from tests.long_sessions import fill
from tests.partitioning.conversions import (
    PARTITIONS,
    Interrupted,
    after,
    check,
    convert,
    everything,
    is_kept,
    memory,
)
from tests.processes import wait_until
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.release, pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("filled")]


@dataclasses.dataclass
class Writer:
    """Changes its own sessions at random until it is stopped, and knows what must be stored in the end."""

    name: str
    stopped: threading.Event
    texts: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    changes: int = 0

    def run(self) -> None:
        chance, chat = random.Random(self.name), memory()
        while not self.stopped.is_set():
            self.change(chance, chat)
            self.changes += 1

    def change(self, chance: random.Random, chat: ConversationMemory) -> None:
        key = f"{self.name} {chance.randrange(12)}"
        texts = self.texts.setdefault(key, [])
        kind = chance.choice(["append"] * 6 + ["redact", "truncate", "clear", "delete", "update", "replace"])
        if kind == "append":
            new = [f"{self.name} {self.changes}.{number}" for number in range(chance.choice((1, 1, 1, 3)))]
            chat.append(key, *map(ChatMessage.human, new), idempotency_key=f"{self.name} {self.changes}")
            texts += new
        elif kind == "delete":
            chat.delete(key)
            texts.clear()
        elif kind == "clear":
            chat.clear(key)
            texts.clear()
        elif texts:
            place = chance.randrange(len(texts))
            if kind == "redact":
                chat.redact(key, place + 1)
                texts[place] = ""
            elif kind == "update" and texts[place]:
                chat.update_message(key, place + 1, metadata={"seen": self.changes})
            elif kind == "truncate":
                chat.truncate(key, place)
                del texts[place:]
            elif kind == "replace":
                chat.replace(key, place, ChatMessage.human(f"{self.name} {self.changes}"))
                texts[place:] = [f"{self.name} {self.changes}"]


@contextlib.contextmanager
def writers(count: int = 4) -> Iterator[list[Writer]]:
    """Let so many threads write during the block, and compare what they know with what is stored after it."""
    stopped = threading.Event()
    writing = [Writer(f"writer {number}", stopped) for number in range(count)]
    threads = [InThread(writer.run) for writer in writing]
    try:
        yield writing
    finally:
        stopped.set()
        for thread in threads:
            thread.result()
    for writer in writing:
        for key, texts in writer.texts.items():
            assert [row.message.text for row in memory().history(key, limit=10_000)] == texts, key


def test_nothing_is_lost_and_nothing_is_there_twice_while_others_write() -> None:
    fill(memory(), "long", 60_000)
    before = everything()
    pages: list[str] = []
    with writers() as writing:
        wait_until(lambda: all(writer.changes > 20 for writer in writing), "The writers do not write.")
        convert(after("Copied", lambda: pages.append("one")))
        counts = [writer.changes for writer in writing]
        wait_until(
            lambda: all(writer.changes > count + 20 for writer, count in zip(writing, counts, strict=True)),
            "The writers do not write after the conversion.",
        )
    assert len(pages) > 2
    is_kept(before)
    check()


def test_a_killed_conversion_is_continued(tmp_path: pathlib.Path) -> None:
    fill(memory(), "long", 60_000)
    before = everything()
    with writers(2):
        process = processes.start(tmp_path, "django", "convmemory_partition", "--partitions", str(PARTITIONS))
        with process:
            try:
                wait_until(is_copying, "The conversion does not copy.")
            finally:
                process.send_signal(signal.SIGKILL)
        begun = tables.read_state(PatientDatabase("default", 300))
        assert begun is not None
        assert not begun.copied
        with pytest.raises(CommandError, match="A conversion to 16 partitions has begun"):
            call_command("convmemory_partition", "--partitions", "8", verbosity=0)
        convert()
    is_kept(before)
    check()


def is_copying() -> bool:
    begun = tables.read_state(PatientDatabase("default", 300))
    return begun is not None and begun.pages is not None and begun.next_page > 0


def test_a_conversion_can_be_interrupted_after_each_step() -> None:
    before = everything()
    steps = []

    def interrupt(sentence: str) -> None:
        if sentence not in steps:
            steps.append(sentence)
            raise Interrupted

    for number in itertools.count():
        assert number < 20
        try:
            convert(interrupt)
        except Interrupted:
            memory().append("chat 2", ChatMessage.human(f"in between {number}"))
        if steps[-1].startswith("Dropped"):
            break
    words = [sentence.partition(" ")[0] for sentence in steps]
    assert words == ["Created", "Every", "Copied", "Checked", "Compared", "Swapped", "Dropped"]
    is_kept(before)
    check()


@pytest.mark.parametrize("step", ["Created", "Every", "Copied", "Checked", "Compared", "Swapped"])
def test_a_conversion_that_another_one_overtakes_is_refused(step: str) -> None:
    before = everything()
    with pytest.raises(Refused, match="Another process has probably taken it"):
        convert(after(step, convert))
    is_kept(before)
    check()


def test_two_conversions_that_begin_at_once_leave_one_whole_table() -> None:
    meeting = threading.Barrier(2)

    def begin() -> str:
        meeting.wait()
        try:
            convert()
        except Refused as error:
            return str(error)
        return "partitioned already"

    refusals = [each.result() for each in [InThread(begin) for _ in range(2)]]
    # Each may have been overtaken by the other.
    with contextlib.suppress(Refused):
        convert()
    assert all("partitioned already" in why or "Another process" in why for why in refusals)
    check()
