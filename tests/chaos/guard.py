"""Ends what the chaos tests started, however they themselves end.

A guard is a process of its own, so it outlives a test that is killed. It reads a pipe that only the test can write.
When the test ends, the pipe closes. The guard then ends all processes that inherited its mark in their environment, and
those whose working directory is in the test's folder: Redis overwrites its environment. At last it removes the folder.
It needs ``/proc``, as the servers need Debian's packages.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator

MARK = "CONVMEMORY_CHAOS_GUARD"
# The name of the signal that ends a process. The default is SIGKILL.
ENDS_BY = "CONVMEMORY_CHAOS_ENDS_BY"
# Seconds after which a process is killed that its own signal has not ended. It may have a guard that does the same.
PATIENCE = 30.0


@contextlib.contextmanager
def guarded(prefix: str = "chaos-") -> Iterator[pathlib.Path]:
    """Make a folder for the block. At its end the folder, and all processes that were started meanwhile, are gone.

    The same happens if this process is interrupted, terminated or killed. Use it once in a process.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        pathlib.Path(folder).chmod(0o755)  # The servers have their own users.
        os.environ |= {MARK: mark, "TMPDIR": folder}
        tempfile.tempdir = folder
        os.environ.pop(ENDS_BY, None)  # of this process, not of those that it starts
        # A session of its own, because the terminal interrupts all processes of a session.
        guard = subprocess.Popen(
            [sys.executable, __file__, mark, folder], stdin=subprocess.PIPE, start_new_session=True
        )
        # A handler would wait for the main thread, which may wait for a database that does not answer.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            yield pathlib.Path(folder)
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()


def started(mark: str, folder: pathlib.Path) -> dict[int, signal.Signals]:
    """Return the processes that inherited ``mark`` or work in ``folder``, each with the signal that ends it."""
    processes = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        # It may have ended meanwhile, or be somebody else's.
        with contextlib.suppress(OSError):
            entries = (path / "environ").read_bytes().decode(errors="replace").split("\0")
            environment = {name: value for name, _, value in (entry.partition("=") for entry in entries)}
            ours = environment.get(MARK) == mark or (path / "cwd").readlink().is_relative_to(folder)
            if ours and int(path.name) != os.getpid():
                processes[int(path.name)] = signal.Signals[environment.get(ENDS_BY, "SIGKILL")]
    return processes


def end_started(mark: str, folder: pathlib.Path) -> None:
    """End the processes that :func:`started` finds, and those that they start meanwhile."""
    signalled: set[int] = set()
    began = time.monotonic()
    while processes := started(mark, folder):
        for pid, number in processes.items():
            late = time.monotonic() - began > PATIENCE
            if late or pid not in signalled:
                signalled.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else number)
                    os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


def main(mark: str, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_started(mark, pathlib.Path(folder))
    # The guard of a process that was started here may be removing its part at the same time.
    ends = time.monotonic() + PATIENCE
    while pathlib.Path(folder).exists():
        shutil.rmtree(folder, ignore_errors=time.monotonic() < ends)


if __name__ == "__main__":
    main(*sys.argv[1:])
