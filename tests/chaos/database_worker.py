"""A worker of Django's own tasks: ``python -m tests.chaos.database_worker QUEUE``.

As a supervisor does, it runs two ``db_worker`` commands and restarts one that ends. Each is this module too, with
``--child``, because it also watches itself as a Celery worker of the site does.
"""

from __future__ import annotations

import importlib
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import django
from django.core.management import call_command

PROCESSES = 2


def supervise(queue: str) -> None:
    """Run the commands until this process is terminated."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    command = [sys.executable, "-m", "tests.chaos.database_worker", queue, "--child"]
    children: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            children = [child for child in children if child.poll() is None]
            while len(children) < PROCESSES:
                children.append(subprocess.Popen(command))
            time.sleep(0.1)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def run_tasks(queue: str) -> None:
    """Run the command ``db_worker``."""
    django.setup()
    import django_convmemory
    from tests.chaos import app, gates, watching  # noqa: F401  app waits at the gates

    def begin(task_result: Any, **kwargs: Any) -> None:
        gates.note_the_session(args=task_result.args)

    def end(**kwargs: Any) -> None:
        gates.leave()

    signals = importlib.import_module("django_tasks_db.compat")
    signals.task_started.connect(begin, weak=False)
    signals.task_finished.connect(end, weak=False)
    watching.watch()
    print(f"The worker runs {pathlib.Path(django_convmemory.__file__).parent}. It is ready.", flush=True)
    options = {"interval": 0.1, "startup_delay": False, "reload": False}
    call_command("db_worker", queue_name=queue, **options)


if __name__ == "__main__":
    if "--child" in sys.argv:
        run_tasks(sys.argv[1])
    else:
        supervise(sys.argv[1])
