"""The processes of a site under test: its workers, and what serves requests."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from tests.chaos import servers

if TYPE_CHECKING:
    from tests.chaos.site import Site

ROOT = pathlib.Path(__file__).parent.parent.parent


class Died(Exception):
    """The process ended before it answered."""


class Process:
    """A process of the site."""

    def __init__(
        self,
        site: Site,
        name: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
        folder: pathlib.Path = ROOT,
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> None:
        self.environment = environment or {}
        self.log = site.folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=folder,
                env=site.environment | self.environment,
                stderr=log,
                start_new_session=True,
                stdin=stdin,
                stdout=log if stdout is None else stdout,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(servers.PATIENCE)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Worker(Process):
    """A worker of the app's queue, with two child processes that run its tasks."""

    def __init__(
        self, site: Site, name: str, *, environment: dict[str, str] | None = None, folder: pathlib.Path = ROOT
    ) -> None:
        super().__init__(
            site,
            name,
            *(("tests.chaos.database_worker", site.queue) if site.broker is None else self._celery(site, name)),
            environment=environment,
            folder=folder,
        )

    def _celery(self, site: Site, name: str) -> tuple[str, ...]:
        return (
            *("celery", "--app", "tests.chaos.app", "worker", "--queues", site.queue, "--pool", "prefork"),
            *("--concurrency", "2", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            *("--hostname", f"{name}@%h", "--loglevel", "INFO"),
        )

    def children(self) -> list[int]:
        """Return the ids of the processes that run the tasks."""
        with contextlib.suppress(FileNotFoundError):
            return [int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    @property
    def ready(self) -> bool:
        return " ready." in self.log.read_text()


class Client(Process):
    """A process that serves requests, one after the other."""

    def __init__(self, site: Site, name: str, environment: dict[str, str] | None = None) -> None:
        super().__init__(
            *(site, name, "tests.chaos.client"),
            environment=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._turn = threading.Lock()

    def wait_until_ready(self) -> None:
        self._answer()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer. Raises :class:`Died`."""
        with self._turn:
            try:
                self._requests.write(json.dumps(request).encode() + b"\n")
                self._requests.flush()
            except BrokenPipeError:
                raise Died from None
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise Died
        answer: dict[str, Any] = json.loads(line)
        return answer
