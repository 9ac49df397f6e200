"""Celery worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator

from django_convmemory import models
from tests import processes, projects
from tests.openai_server import OpenAIServer


@dataclasses.dataclass
class Worker:
    """A worker process of one queue, and the model that it calls."""

    site: projects.Project
    server: OpenAIServer
    folder: pathlib.Path

    def versions(self, session: models.Session) -> list[int]:
        return list(models.Summary.objects.filter(session=session).values_list("version", flat=True))

    def folded(self, session: models.Session) -> Callable[[], bool]:
        return lambda: projects.row(session).due_since is None and not projects.row(session).lease_token

    def modules(self) -> list[str]:
        """The modules that were imported before the first task."""
        return (self.folder / "modules").read_text().split()


@contextlib.contextmanager
def worker_of(broker_url: str, folder: pathlib.Path) -> Iterator[Worker]:
    """Start a worker with one process. Its log and other files are in ``folder``."""
    site = projects.make_project(broker_url)
    with OpenAIServer() as server:
        memory = {
            "OPTIONS": {"max_token_limit": 200},
            "CHAT_MODEL": projects.asking(server),
            "SCHEDULER": {"BACKEND": "django_convmemory.tasks.CeleryScheduler", "OPTIONS": {"queue": site.queue}},
        }
        options = projects.celery_settings(broker_url, site.queue)
        process = processes.start(
            folder,
            *("celery", "--app", "tests.celery_app", "worker", "--queues", site.queue, "--pool", "prefork"),
            *("--concurrency", "1", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            *("--loglevel", "INFO"),
            **{f"CELERY_{name.upper()}": value for name, value in options.items()},
            CONVMEMORY={"default": memory},
        )
        try:
            yield Worker(site, server, folder)
        finally:
            processes.stop(process)
            site.remove(broker_url)
            site.app.close()
