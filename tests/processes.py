"""Processes that tests start: on the test database, with settings of their own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from django.db import connection

ROOT = pathlib.Path(__file__).parent.parent
# Seconds after which something that must happen has not. A failure is then reported: no promise is made of the time.
PATIENCE = 60.0


def start(folder: pathlib.Path, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
    """Start ``python -m`` with these arguments; its settings are the tests', but for those given.

    What it prints is in ``output`` in ``folder``, an empty folder of its own.
    """
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (folder / "process_settings.py").write_text("from tests.settings import *\n\n" + "".join(lines))
    environment = {
        **os.environ,
        "CONVMEMORY_TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
        "DJANGO_SETTINGS_MODULE": "process_settings",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        # For what a process leaves behind that is killed.
        "TMPDIR": str(folder),
    }
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ask the process to end, and return its exit code; one that does not end is killed."""
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
