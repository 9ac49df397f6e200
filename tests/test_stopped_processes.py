"""A process that is stopped in the middle of an operation holds up nobody for long, and nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from typing import Any

import pytest
from django.db import connection

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.messages import ChatMessage
from django_convmemory.store import transactions
from tests import processes
from tests.folding import MarkerModel, build, session, talk
from tests.stopping import OPERATIONS, Case
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only_on("postgresql", "mariadb"), pytest.mark.slow]

MEASURES = bool(os.environ.get("CONVMEMORY_TEST_HELD"))
# Seconds for which a process is stopped: longer than the database lets it hold a lock.
HELD = float(os.environ.get("CONVMEMORY_TEST_HELD") or 2.6)
TESTED = OPERATIONS if MEASURES else ("append_many", "truncate", "index", "compact")
# Seconds that an append may take, to the stopped session and to any other one. Beside other tests, these are only a
# bound: without the limit, an append would wait for ever.
LONGEST_WAIT = transactions.IDLE_SECONDS + (0.5 if MEASURES else 2.0)
LONGEST_BESIDE = 0.5 if MEASURES else 1.5


class Stopped(threading.Thread):
    """Appends to the session of a stopped process, continues the process, and notes how long the append took."""

    def __init__(self, case: Case, pid: int) -> None:
        super().__init__()
        self.case = case
        self.pid = pid
        self.seconds = float("inf")
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.case.append_meanwhile()
            self.seconds = time.monotonic() - began
            time.sleep(max(0.0, HELD - self.seconds))  # The time for which the process is stopped.
        finally:
            with contextlib.suppress(ProcessLookupError):  # The test has failed, and has killed it.
                os.kill(self.pid, signal.SIGCONT)
            connection.close()


class Beside(threading.Thread):
    """Appends to another session all the time, and notes the longest wait."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0.0
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        memory = build(MarkerModel(), 10**6)
        try:
            memory.append("another", ChatMessage.human("hello"))
            while not self.ended.wait(0.02):
                began = time.monotonic()
                memory.append("another", ChatMessage.human("hello"))
                self.longest = max(self.longest, time.monotonic() - began)
        except BaseException:
            self.longest = float("inf")
            raise
        finally:
            connection.close()


@pytest.mark.parametrize("operation", TESTED)
def test_a_stopped_operation_holds_up_appends_for_two_seconds_and_ends_right(
    operation: str, tmp_path: pathlib.Path, record_property: Any
) -> None:
    code = f"import pathlib; from tests import stopping; stopping.main({operation!r}, pathlib.Path({str(tmp_path)!r}))"
    program = processes.start(tmp_path, "django", "shell", "--verbosity", "0", "--command", code)
    stopped: dict[int, Stopped] = {}
    ended: set[int] = set()
    beside = Beside()
    try:
        count = follow(tmp_path / "output", program, operation, stopped, ended)
    finally:
        # Processes that are still there hold locks, for which the threads would wait.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.kill()
        program.wait()
        beside.ended.set()
        for thread in (beside, *stopped.values()):
            thread.join()

    assert set(stopped) == ended == set(range(1, count + 1))
    right = json.loads((tmp_path / "right.json").read_text())
    for result, _ in right:
        assert "error" not in result, result["error"]
    for number, thread in sorted(stopped.items()):
        outcome = [json.loads((tmp_path / f"{number}.json").read_text()), thread.case.state()]
        assert outcome in right, f"stopped after statement {number}"
    assert list(integrity.check(models.Session.objects.all())) == []
    assert list(integrity.orphans("default")) == []
    waits = {number: thread.seconds for number, thread in stopped.items()}
    record_property(f"{operation}: longest wait for one of {count} stopped processes", f"{max(waits.values()):.2f} s")
    record_property(f"{operation}: longest wait of another session", f"{beside.longest:.2f} s")
    assert max(waits.values()) <= LONGEST_WAIT, waits
    assert beside.longest <= LONGEST_BESIDE


def test_a_sweep_that_stops_holds_up_the_sessions_that_it_sends_for_two_seconds() -> None:
    memory = build(MarkerModel())
    talk(memory, 12)
    locked = threading.Event()

    def stop(execute: Any, statement: str, *arguments: Any) -> Any:
        result = execute(statement, *arguments)
        if "UPDATE" in statement and not locked.is_set():
            locked.set()
            time.sleep(HELD)
        return result

    def sweep() -> list[int]:
        with connection.execute_wrapper(stop):
            return memory.sweep()

    sweeping = InThread(sweep)
    assert locked.wait(processes.PATIENCE)
    began = time.monotonic()
    memory.append("s", ChatMessage.human("hello"))
    waited = time.monotonic() - began

    assert sweeping.result() == [session().pk]
    assert LONGEST_BESIDE < waited <= LONGEST_WAIT


def follow(
    output: pathlib.Path,
    program: subprocess.Popen[bytes],
    operation: str,
    stopped: dict[int, Stopped],
    ended: set[int],
) -> int:
    """Do as the lines of the program say until it ends. Return the number of statements of the operation."""
    count, read = 0, 0
    ends = time.monotonic() + processes.PATIENCE + HELD
    while True:
        is_over = program.poll() is not None
        lines = output.read_text().split("\n")[:-1]
        for line in lines[read:]:
            event, number, *pid = line.split()
            if event == "statements":
                count = int(number)
            elif event == "stopped":
                stopped[int(number)] = Stopped(Case(operation, number), int(pid[0]))
            elif event == "ended":
                ended.add(int(number))
            else:
                program.wait(processes.PATIENCE)
                raise AssertionError(output.read_text())
        read = len(lines)
        if is_over:
            return count
        assert time.monotonic() < ends, "\n".join(lines)
        time.sleep(0.01)
