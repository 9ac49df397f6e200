"""The chaos tests' own machinery: what they report, and what they leave behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from django.db import connection

from tests import folding, processes
from tests.chaos import __main__ as chaos, guard, servers, suite, watching
from tests.chaos.faults import changes, registry
from tests.chaos.faults.registry import Function
from tests.chaos.runs import Report, Run
from tests.chaos.watching import Seen
from tests.openai_server import Exchange
from tests.servers import REQUIRED

pytestmark = pytest.mark.slow


class QuietRun:
    """A run without a site."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def recover(self) -> float:
        return 0.5

    def report(self, fault: str, recovery: float) -> Report:
        return Report(
            fault=fault,
            site="postgresql, redis",
            seed=7,
            messages=0,
            summaries=0,
            waste=0,
            recovery=recovery,
            problems=[*self.problems],
        )


def absent(run: Run) -> None:
    servers.program("/nowhere/libfaketime*", "a-program-that-nobody-has")


def skipped(run: Run) -> None:
    raise servers.NotRun("no --old was given")


def report_of(inject: Function) -> Report:
    fault = dataclasses.replace(registry.faults()["clocks_an_hour_apart"], inject=inject)
    return chaos.run_one(cast("Run", QuietRun()), fault)


def test_a_fault_whose_program_is_missing_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "REQUIRED", False)

    report = report_of(absent)

    assert (report.not_run, report.problems) == ("/nowhere/libfaketime* is not installed", [])


def test_a_missing_program_is_a_failure_where_every_service_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "REQUIRED", True)

    report = report_of(absent)

    assert report.problems == ["clocks_an_hour_apart was not run, because /nowhere/libfaketime* is not installed"]


def test_a_fault_that_cannot_occur_here_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "REQUIRED", True)

    report = report_of(skipped)

    assert (report.not_run, report.problems) == ("no --old was given", [])


def test_a_fault_that_was_not_run_does_not_count_as_a_run() -> None:
    ran = dataclasses.asdict(report_of(lambda run: None))
    not_run = ran | {"not_run": "faketime is not installed"}

    lines = suite.summary([ran, not_run])

    assert [line.split(" | ")[2] for line in lines if line.startswith("| clocks an hour apart ")] == ["1"]
    assert "NOT RUN: clocks_an_hour_apart on postgresql, redis: faketime is not installed." in lines
    assert lines[-1] == "1 runs, 1 not run, 0 failed."


def test_the_documentation_has_each_fault_under_the_heading_of_the_report() -> None:
    page = (processes.ROOT / "docs/reliability.md").read_text()
    documented = {}
    for section in page.split("\n### ")[1:]:
        heading, _, text = section.partition("\n")
        for cells in [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]:
            if heading in list(registry.Heading) and cells[0].strip() not in ("fault", "---"):
                documented[cells[0].strip().replace(" ", "_")] = (heading, cells[1].strip())

    faults = registry.faults().values()

    assert documented == {
        fault.name: (fault.heading, fault.says) for fault in faults if fault.drawn is not registry.Drawn.NAMED
    }


def test_a_prompt_after_a_redaction_is_excused_if_the_lease_was_extended_before_it() -> None:
    redacted = changes.Redacted()
    redacted.returned["[[a.1]]"] = 100.0

    def call(started: float, *, read: float, checked: float, text: str = "[[a.1]] [[a.2]]") -> Exchange:
        headers = {"x-read": str(read), "x-lease-written": str(checked)}
        return Exchange("answer", "/v1", headers, {"messages": [{"content": text}]}, started)

    in_time = call(99.0, read=98.0, checked=97.0)
    another = call(103.0, read=98.0, checked=97.0, text="[[a.2]]")
    excused = call(103.0, read=98.0, checked=99.0)
    checked_before_reading = call(103.0, read=98.0, checked=97.0)
    checked_too_late = call(104.0, read=98.0, checked=101.0)

    late = redacted.late([in_time, another, excused, checked_before_reading, checked_too_late])

    assert late == [(3.0, True), (3.0, False), (4.0, False)]


@pytest.mark.django_db(transaction=True)
def test_a_worker_notes_when_it_reads_messages_and_when_it_writes_its_lease(
    tmp_path: pathlib.Path, settings: Any
) -> None:
    settings.SITE = {"gates": str(tmp_path)}
    seen = []
    model = folding.MarkerModel(lambda request: seen.append((Seen.lease_written, Seen.read)))
    memory = folding.build(model)
    folding.talk(memory, 8)
    Seen.lease_written = Seen.read = 0.0
    began = time.time()

    with connection.execute_wrapper(watching._execute):
        memory.compact("s")

    [(lease_written, read)] = seen
    assert began <= lease_written
    assert began <= read


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    # Not pytest's own, which the users of the servers may not enter.
    with tempfile.TemporaryDirectory() as path:
        pathlib.Path(path).chmod(0o755)
        yield pathlib.Path(path)


def processes_in(folder: pathlib.Path) -> list[str]:
    """Return the command lines of the processes that have something to do with the folder."""
    commands = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            traces = [(path / name).read_text(errors="replace") for name in ("cmdline", "environ")]
            traces.append(str((path / "cwd").readlink()))
        except OSError:
            continue  # It ended meanwhile, or is somebody else's.
        if any(str(folder) in trace for trace in traces):
            commands.append(traces[0].replace("\0", " "))
    return commands


@contextlib.contextmanager
def running(folder: pathlib.Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the chaos tests, and wait until a worker runs."""
    with (folder.parent / f"{folder.name}.output").open("wb+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=processes.ROOT,
            env=os.environ | {"TMPDIR": str(folder)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    pathlib.Path(output.name).unlink()

    def a_worker_runs() -> bool:
        assert process.poll() is None
        return any(" ready." in log.read_text() for log in folder.glob("**/worker1.log"))

    try:
        processes.wait_until(a_worker_runs, "a worker runs")
        yield process
    finally:
        process.kill()
        process.wait()


def nothing_is_left(folder: pathlib.Path) -> None:
    processes.wait_until(lambda: not processes_in(folder), "all processes end")
    processes.wait_until(lambda: not list(folder.iterdir()), "all files are removed")


def require(*programs: str) -> None:
    try:
        for program in programs:
            servers.program(program, f"/usr/sbin/{program}", f"/usr/lib/postgresql/*/bin/{program}")
    except servers.Absent as absent:
        if REQUIRED:
            raise
        pytest.skip(str(absent))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_interrupted_chaos_tests_leave_no_process_and_no_file(folder: pathlib.Path, number: signal.Signals) -> None:
    require("redis-server")
    with running(folder, "tests.chaos", "--database", "sqlite", "--runs", "1000") as process:
        assert processes_in(folder)

        process.send_signal(number)

        process.wait(processes.PATIENCE)
        nothing_is_left(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_an_interrupted_suite_leaves_no_server(folder: pathlib.Path, number: signal.Signals) -> None:
    require("initdb", "pgbouncer", "rabbitmq-server")
    with running(folder, "tests.chaos.suite", "--site", "pgbouncer, rabbitmq", "--runs", "1000") as process:
        names = ("bin/postgres", "pgbouncer", "rabbit", "epmd", "celery", "tests.chaos.client")

        def all_run() -> bool:  # The clients start only after the worker.
            commands = " ".join(processes_in(folder))
            return all(name in commands for name in names)

        processes.wait_until(all_run, f"these run: {', '.join(names)}")

        process.send_signal(number)

        process.wait(processes.PATIENCE)
        nothing_is_left(folder)


def test_a_process_is_ended_by_the_signal_that_it_names(folder: pathlib.Path) -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGQUIT, lambda *_: sys.exit(5)); print(flush=True); signal.pause()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {guard.MARK: "a-test", guard.ENDS_BY: "SIGQUIT"},
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)

        guard.end_started("a-test", folder)
        assert process.wait(processes.PATIENCE) == 5
