"""A worker process: an ordinary task, and its time limit. The chaos suite kills workers and delivers tasks again."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from django_convmemory import tasks
from tests import processes, projects
from tests.openai_server import Behaviour
from tests.projects import append_until_due, configured, row
from tests.workers import Worker, worker_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def worker(broker_url: str, tmp_path: pathlib.Path) -> Iterator[Worker]:
    """An idle worker, whose Celery app is the current one here."""
    with worker_of(broker_url, tmp_path) as worker, projects.current(worker.site):
        yield worker


def test_a_worker_folds_what_an_append_made_due(worker: Worker, settings: Any) -> None:
    memory = configured(settings, worker.site)

    session = append_until_due(memory)

    processes.wait_until(worker.folded(session), "the session is folded")
    assert worker.versions(session) == [1]
    assert len(worker.server.log) == 1
    assert memory.load("user-1").summary is not None
    assert "openai" in worker.modules()


def test_the_soft_limit_gives_the_lease_back(worker: Worker, settings: Any) -> None:
    memory = configured(settings, None)
    worker.server.queue(Behaviour("hang"))
    session = append_until_due(memory)

    # So late that a busy machine has asked the model by then. In between, Python may ignore an exception of a signal.
    tasks.compact.apply_async(("default", session.pk), queue=worker.site.queue, soft_time_limit=5, time_limit=60)

    processes.wait_until(lambda: row(session).last_error, "the limit")
    stopped = row(session)
    assert "SoftTimeLimitExceeded" in stopped.last_error
    assert stopped.due_since is not None
    assert stopped.lease_token == ""
    assert stopped.next_attempt_at is not None
