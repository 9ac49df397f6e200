"""A Celery worker that ends with the process that started it, whatever becomes of that.

``python worker.py`` is ``celery -A mysite worker --queues convmemory``, but for its end: it stops when its standard
input is closed, which the operating system does for a process that is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

READY = b"ready\n"
# One process with threads, so that none is left when it ends. A folder and two threads need no talk among workers.
OPTIONS = ["--queues=convmemory", "--pool=threads", "--concurrency=2", "--loglevel=INFO"]
QUIET = ["--without-gossip", "--without-mingle", "--without-heartbeat"]


class WorkerFailed(Exception):
    """The worker did not start, or ended too soon."""


class Worker:
    """The process, from ``__enter__`` to ``__exit__``; what it says goes into the file ``log``."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            # In a session of its own, where Ctrl-C does not reach it: it ends when we say so.
            self.process = subprocess.Popen(
                [sys.executable, Path(__file__).resolve()],
                cwd=Path(__file__).parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the worker: in its own time first, and by force after that, also where we are interrupted meanwhile."""
        try:
            self.process.communicate(timeout=8)  # closes its standard input
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait_until_ready(self, seconds: float = 30.0) -> None:
        """Return when the worker takes tasks. Raises :class:`WorkerFailed`."""
        assert self.process.stdout is not None
        given_up = threading.Timer(seconds, self.process.kill)
        given_up.start()
        ready = READY in iter(self.process.stdout.readline, b"")
        given_up.cancel()
        if not ready:
            raise WorkerFailed(self._failure("did not start"))

    def check(self) -> None:
        """Raise :class:`WorkerFailed` unless the worker runs."""
        if self.process.poll() is not None:
            raise WorkerFailed(self._failure("ended"))

    def _failure(self, what: str) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"The Celery worker {what}. The end of {self.log}:", *lines[-12:]])


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    from celery.signals import worker_ready
    from mysite.celery import app

    worker_ready.connect(_say_ready)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    app.worker_main(["worker", *OPTIONS, *QUIET])


def _say_ready(**kwargs: Any) -> None:
    os.write(1, READY)  # past Celery, which logs what is printed


def _end_with_the_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(1)


if __name__ == "__main__":
    main()
