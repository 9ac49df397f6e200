"""A folder as the message broker, for a machine without a broker. It is kombu's, with two corrections:

- kombu writes a message under its final name. A worker may read half a message and stop. Here the message is written
  under another name and then renamed.
- kombu takes a message by moving it to the system's temporary folder. If that is on another disk, two workers may both
  get the message. Here the message is renamed within its folder.
"""

from __future__ import annotations

import os
import queue as queues
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps, loads


class Channel(filesystem.Channel):
    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        path = Path(self.data_folder_out, f"{time.monotonic_ns():020}_{uuid.uuid4()}.{queue}.msg")
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(dumps(message), encoding="utf-8")
        unfinished.rename(path)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        for path in sorted(Path(self.data_folder_in).iterdir()):
            if path.name.partition(".")[2] == f"{queue}.msg":
                taken = path.with_name(f"{path.name}.taken")
                try:
                    path.rename(taken)
                except FileNotFoundError:  # Another worker has taken it.
                    continue
                message = loads(taken.read_text(encoding="utf-8"))
                taken.unlink()
                return message
        raise queues.Empty


class Transport(filesystem.Transport):
    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        # A worker checks between two calls whether it must stop. Celery's timeout of two seconds is too long for that.
        super().drain_events(connection, timeout=min(timeout or 0.2, 0.2))


def options(folder: Path) -> dict[str, Any]:
    """Create the broker's folders in ``folder`` and return the transport's options."""
    messages, control = folder / "messages", folder / "control"
    for path in (messages, control):
        path.mkdir(parents=True, exist_ok=True)
    return {
        "data_folder_in": os.fspath(messages),
        "data_folder_out": os.fspath(messages),
        "control_folder": os.fspath(control),
        "polling_interval": 0.1,  # seconds
    }
