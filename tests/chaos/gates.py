"""Points at which a worker of the site stops, for as long as a file is there: what is to be killed at one, waits."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

# Between the claim and the model's call; between its answer and the publishing; between the two rows that are written
# then; between that and the task's end.
BEFORE_CALL, AFTER_ANSWER = "before_call", "after_answer"
BETWEEN_WRITES, AFTER_PUBLISH = "between_writes", "after_publish"


def pass_through(folder: pathlib.Path, name: str) -> None:
    """Go on at once, or when the gate is opened. For the worker."""
    if not (folder / name).exists():
        return
    (folder / f"{name}.{os.getpid()}").touch()
    while (folder / name).exists():
        time.sleep(0.005)


class Gates:
    """The gates of a site, for the test."""

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
        """Return the ids of the processes that came to the gate since it was closed."""
        return [int(arrived.suffix[1:]) for arrived in self.folder.glob(f"{name}.*")]
