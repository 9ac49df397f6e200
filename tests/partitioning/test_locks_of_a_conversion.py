"""A conversion waits for locks so that nobody waits for it, and says for whom it waits."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from django_convmemory.contrib.partitions import conversion, tables
from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.messages import ChatMessage
from tests import processes
from tests.partitioning.conversions import after, check, convert, memory, rows, talk
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.release, pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("unpartitioned")]


@contextlib.contextmanager
def held(work: Callable[[], Any], until: threading.Event) -> Iterator[int]:
    """Keep the transaction of ``work`` open in another thread until the event. Yield the process id of its session."""
    pids: list[int] = []
    began = threading.Event()

    def hold() -> None:
        with transaction.atomic():
            work()
            pids.extend(pid for (pid,) in rows("SELECT pg_backend_pid()"))
            began.set()
            assert until.wait(processes.PATIENCE)

    holding = InThread(hold)
    try:
        assert began.wait(processes.PATIENCE)
        yield pids[0]
    finally:
        until.set()
        holding.result()


@pytest.mark.parametrize(
    ("step", "work"),
    [
        ("Every", lambda: memory().redact("chat 6", 2)),
        ("Compared", lambda: rows("SELECT count(*) FROM convmemory_message")),
        ("Swapped", lambda: rows("SELECT 1 FROM convmemory_message_old LIMIT 1")),
    ],
    ids=["a change that the copy waits for", "a reader before the swap", "a reader of the old table"],
)
def test_a_conversion_says_whom_it_waits_for_and_nobody_waits_for_it(
    step: str, work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_LONG_WAIT", 0.1)
    talk()
    told = threading.Event()
    with contextlib.ExitStack() as stack:
        pid = 0

        def report(sentence: str) -> None:
            nonlocal pid
            if sentence.startswith(step):
                pid = stack.enter_context(held(work, told))
            if sentence.startswith("Waiting"):
                assert f"{pid} (client backend)" in sentence
                memory().append("chat 1", ChatMessage.human("Meanwhile."))
                told.set()

        convert(report)
    assert told.is_set()
    check()


def test_the_server_writes_early_during_a_conversion_and_as_before_after_it() -> None:
    before = rows("SHOW backend_flush_after")
    with PatientDatabase("default", 300).transaction():
        assert rows("SHOW backend_flush_after") == [("1MB",)]
    assert rows("SHOW backend_flush_after") == before != [("1MB",)]


def test_steps_about_the_whole_table_may_take_longer_than_the_sites_statements() -> None:
    limits: dict[str, str] = {}

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        with connection.connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            limits["compare" if "hashtext" in sql else sql.partition(" ")[0]] = cursor.fetchone()[0]
        return execute(sql, params, many, context)

    talk()
    rows("SET statement_timeout = '5s'")
    with connection.execute_wrapper(note):
        convert()
    assert [limits[step] for step in ("INSERT", "ALTER", "ANALYZE", "compare")] == ["0"] * 4
    assert rows("SHOW statement_timeout") == [("5s",)]


def test_statistics_wait_for_an_autovacuum_of_a_partition_as_long_as_it_takes() -> None:
    talk()
    rows("SET lock_timeout = '50ms'")
    with contextlib.ExitStack() as stack:

        def vacuum() -> None:
            done = threading.Event()
            # The lock of VACUUM.
            lock = "LOCK TABLE convmemory_message_p03 IN SHARE UPDATE EXCLUSIVE MODE"
            stack.enter_context(held(lambda: rows(lock), done))
            threading.Timer(0.5, done.set).start()

        convert(after("Checked", vacuum))
    assert rows("SHOW lock_timeout") == [("50ms",)]
    check()


def test_the_server_ends_a_step_whose_process_was_stopped_and_it_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory().append("a", *[ChatMessage.human(f"message {number}") for number in range(3)])
    monkeypatch.setattr("django_convmemory.contrib.partitions.database.IDLE_SECONDS", 1)
    database, waited, begun = PatientDatabase("default", 300), threading.Event(), threading.Event()

    def step() -> Any:
        database.rows("LOCK TABLE convmemory_message IN ACCESS EXCLUSIVE MODE")
        if not begun.is_set():
            begun.set()
            time.sleep(3)  # As if the process were stopped.
        return database.value("SELECT count(*) FROM convmemory_message")

    counting = InThread(lambda: database.give_way(step, waited.set))
    assert begun.wait(processes.PATIENCE)
    memory().append("a", ChatMessage.human("meanwhile"))
    assert counting.result() == 4


def test_a_portion_is_not_copied_for_a_conversion_that_another_process_has_begun() -> None:
    memory().append("a", *[ChatMessage.human(f"message {number}") for number in range(3)])
    database = PatientDatabase("default", 300)
    table = conversion.table_of(database)
    tables.build(table, 4)  # Nothing is mirrored yet, so there are no pages to copy.

    with pytest.raises(conversion.Overtaken):
        next(conversion.copy(table, lambda: None))
    conversion.abort(database, lambda sentence: None)
