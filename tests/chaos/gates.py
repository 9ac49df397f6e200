"""Gates: points at which a worker of the site waits while a file exists, so that a test can kill it there."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

# Between the claim and the model's call; between the model's answer and publishing.
BEFORE_CALL, AFTER_ANSWER = "before_call", "after_answer"
# Between the two rows that publishing writes; between publishing and the end of the task.
BETWEEN_WRITES, AFTER_PUBLISH = "between_writes", "after_publish"


def pass_through(folder: pathlib.Path, name: str) -> None:
    """Wait while the gate is closed. Called by the worker."""
    if not (folder / name).exists():
        return
    (folder / f"{name}.{os.getpid()}").touch()
    while (folder / name).exists():
        time.sleep(0.005)


class Gates:
    """The gates of a site. Used by the test."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir()

    @contextlib.contextmanager
    def closed(self, name: str) -> Iterator[None]:
        """Close a gate until the end of the block."""
        for arrived in self.folder.glob(f"{name}.*"):
            arrived.unlink()
        (self.folder / name).touch()
        try:
            yield
        finally:
            (self.folder / name).unlink()

    def arrivals(self, name: str) -> list[int]:
        """Return the ids of the processes that have reached the gate since it was closed."""
        return [int(arrived.suffix[1:]) for arrived in self.folder.glob(f"{name}.*")]
