"""Processes that tests start, on the test database, with their own settings."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import connection

ROOT = pathlib.Path(__file__).parent.parent
# Seconds to wait for an event that must happen. Only a bound for hangs: nothing is promised about the time.
PATIENCE = 60.0


def run(
    command: Sequence[str | os.PathLike[str]],
    folder: pathlib.Path = ROOT,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. The ``stdout`` that is returned is all that it prints, warnings included."""
    return subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def output_of(command: Sequence[str | os.PathLike[str]], *arguments: Any, **options: Any) -> str:
    """Call :func:`run`, and return all that the command prints. Raises AssertionError if the command fails."""
    done = run(command, *arguments, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def start(folder: pathlib.Path, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
    """Start ``python -m`` with these arguments. ``settings`` override the settings of the tests.

    ``folder`` is an empty folder of the process's own. Its output goes to the file ``output`` there.
    """
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=environment(folder, **settings),
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def environment(folder: pathlib.Path, **settings: Any) -> dict[str, str]:
    """Return the environment of a process on the test database. The arguments are those of :func:`start`."""
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (folder / "process_settings.py").write_text("from tests.settings import *\n\n" + "".join(lines))
    return {
        **os.environ,
        "CONVMEMORY_TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
        "DJANGO_SETTINGS_MODULE": "process_settings",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        # A process that is killed leaves its temporary files here.
        "TMPDIR": str(folder),
    }


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ask the process to end, and return its exit code. Kill it if it does not end."""
    process.terminate()
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait until ``condition`` holds. Raises AssertionError, naming ``what``, if it never does."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"never happened: {what}"
        time.sleep(0.05)
