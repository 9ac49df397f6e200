"""The chaos tests' own machinery: what it leaves behind, and what the documentation says about it."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import pytest

from tests import processes
from tests.chaos import servers
from tests.chaos.faults import registry
from tests.servers import REQUIRED

pytestmark = pytest.mark.slow


def test_the_documentation_has_each_fault_under_the_heading_of_the_report() -> None:
    page = (processes.ROOT / "docs/inside/reliability.md").read_text()
    documented = {}
    for section in page.split("\n### ")[1:]:
        heading, _, text = section.partition("\n")
        if heading in list(registry.Heading):
            for name, says in re.findall(r"^- \*\*(.*?)\*\*: (.*(?:\n  .*)*)", text, re.MULTILINE):
                documented[name.replace(" ", "_")] = (heading, says.replace("\n  ", " "))

    faults = registry.faults().values()

    assert documented == {
        fault.name: (fault.heading, fault.says) for fault in faults if fault.drawn is not registry.Drawn.NAMED
    }


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_an_interrupted_suite_leaves_no_process_and_no_file(number: signal.Signals) -> None:
    try:
        for program in ("initdb", "pgbouncer", "rabbitmq-server"):
            servers.program(program, f"/usr/sbin/{program}", f"/usr/lib/postgresql/*/bin/{program}")
    except servers.Absent as absent:
        if REQUIRED:
            raise
        pytest.skip(str(absent))
    names = ("bin/postgres", "pgbouncer", "rabbit", "epmd", "celery", "tests.chaos.client")
    # Not pytest's own folder, which the users of the servers may not enter.
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        folder.chmod(0o755)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.suite", "--site", "pgbouncer, rabbitmq", "--runs", "1000"],
            cwd=processes.ROOT,
            env=os.environ | {"TMPDIR": path},
        )

        def all_run() -> bool:
            assert process.poll() is None
            commands = " ".join(processes_in(folder))
            return all(name in commands for name in names)

        with process:
            try:
                processes.wait_until(all_run, f"these run: {', '.join(names)}")
            finally:
                process.send_signal(number)
            process.wait(processes.PATIENCE)
        processes.wait_until(lambda: not processes_in(folder), "all processes end")
        processes.wait_until(lambda: not list(folder.iterdir()), "all files are removed")
