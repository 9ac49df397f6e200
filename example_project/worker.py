"""A Celery worker that ends with the process that started it, even if that process is killed.

``python worker.py`` is ``celery -A mysite worker --queues convmemory``, but it also stops when its standard input is
closed. The operating system closes it when the parent process ends in any way.
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
# One process with threads, so that no child process can be left behind. A single worker needs no gossip.
OPTIONS = [
    *("--queues=convmemory", "--pool=threads", "--concurrency=4", "--loglevel=INFO"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
]


class WorkerFailed(Exception):
    """The worker did not start, or ended too soon."""


class Worker:
    """The worker's process, from ``__enter__`` to ``__exit__``. Its output goes into the file ``log``."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            # In its own session, so that Ctrl-C does not reach it. __exit__ ends it.
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
        """Let the worker end by itself; kill it after 8 seconds, or if this process is interrupted."""
        try:
            self.process.communicate(timeout=8)  # closes its standard input
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait_until_ready(self, seconds: float = 30.0) -> None:
        """Return when the worker accepts tasks. Raises :class:`WorkerFailed` after ``seconds``, or if it ends."""
        assert self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        ready = READY in iter(self.process.stdout.readline, b"")
        timer.cancel()
        if not ready:
            raise WorkerFailed(self._failure("did not start"))

    def check(self) -> None:
        """Raise :class:`WorkerFailed` unless the worker runs."""
        if self.process.poll() is not None:
            raise WorkerFailed(self._failure("ended"))

    def _failure(self, event: str) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"The Celery worker {event}. The end of {self.log}:", *lines[-12:]])


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    from celery.signals import worker_ready
    from mysite.celery import app

    worker_ready.connect(_say_ready)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    app.worker_main(["worker", *OPTIONS])


def _say_ready(**kwargs: Any) -> None:
    os.write(1, READY)  # Not by print(), which Celery redirects to its log.


def _end_with_the_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(1)


if __name__ == "__main__":
    main()
