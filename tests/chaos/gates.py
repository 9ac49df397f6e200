"""Gates: points at which a worker of the site waits while a file exists, so that a test can kill it there.

A gate is closed for one session. A worker that comes with another one passes: for example, one that a fault before has
left waiting for the model.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

from celery.signals import task_postrun, task_prerun
from django.conf import settings

# Between reading the messages and building the prompt of them.
AFTER_READ = "after_read"
# Between the claim and the model's call; between the model's answer and publishing.
BEFORE_CALL, AFTER_ANSWER = "before_call", "after_answer"
# After the first statement that publishes, so in its transaction; between publishing and the end of the task.
BETWEEN_WRITES, AFTER_PUBLISH = "in_publish", "after_publish"


class _Worker:
    """What this process, if it is one that runs tasks, works on."""

    session_id: int | None = None


@task_prerun.connect
def note_the_session(args: Any = (), **kwargs: Any) -> None:
    """Note the session of the task that begins: the tasks that fold take the alias and the session's id."""
    _Worker.session_id = args[1] if len(args) == 2 else None


@task_postrun.connect
def leave(**kwargs: Any) -> None:
    """Note that the task has ended, whichever gates it came to."""
    for arrived in pathlib.Path(settings.SITE["gates"]).glob(f"*.{os.getpid()}"):  # type: ignore[misc]
        arrived.unlink(missing_ok=True)


def pass_through(folder: pathlib.Path, name: str) -> None:
    """Wait while the gate is closed for the session of this process's task. Called by the worker."""
    with contextlib.suppress(FileNotFoundError):
        if (folder / name).read_text() == str(_Worker.session_id):
            (folder / f"{name}.{os.getpid()}").touch()
            while (folder / name).exists():
                time.sleep(0.005)


class Gates:
    """The gates of a site. Used by the test."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir()

    @contextlib.contextmanager
    def closed(self, name: str, session_id: int) -> Iterator[None]:
        """Close a gate for a session until the end of the block."""
        for arrived in self.folder.glob(f"{name}.*"):
            arrived.unlink(missing_ok=True)
        # Renamed, so that no worker reads half of it.
        (self.folder / f"closing {name}").write_text(str(session_id))
        (self.folder / f"closing {name}").rename(self.folder / name)
        try:
            yield
        finally:
            (self.folder / name).unlink()

    def arrivals(self, name: str) -> list[int]:
        """Return the processes that have reached the gate since it was closed, and that are still at their task."""
        return [int(arrived.suffix[1:]) for arrived in self.folder.glob(f"{name}.*")]
