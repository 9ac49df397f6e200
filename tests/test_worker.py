"""A worker process: ordinary tasks, tasks delivered twice, kills, and time limits."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from django_convmemory import clock, tasks
from tests import processes, projects
from tests.openai_server import Behaviour
from tests.projects import append_until_due, change, configured, row
from tests.workers import Worker, worker_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture(scope="module")
def workers(
    django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Worker]]:
    """Start the worker of a broker on first use: a start takes seconds."""
    started: dict[str, Worker] = {}
    with contextlib.ExitStack() as stack:

        def start(broker_url: str) -> Worker:
            if broker_url not in started:
                with django_db_blocker.unblock():
                    started[broker_url] = stack.enter_context(worker_of(broker_url, tmp_path_factory.mktemp("worker")))
            return started[broker_url]

        yield start


@pytest.fixture
def worker(workers: Callable[[str], Worker], broker_url: str) -> Iterator[Worker]:
    """An idle worker, whose Celery app is the current one here."""
    worker = workers(broker_url)
    worker.server.forget()
    with projects.current(worker.site):
        yield worker


def test_a_worker_folds_what_an_append_made_due(worker: Worker, settings: Settings) -> None:
    memory = configured(settings, worker.site)

    session = append_until_due(memory)

    processes.wait_until(worker.folded(session), "the session is folded")
    assert worker.versions(session) == [1]
    assert len(worker.server.log) == 1
    assert memory.load("user-1").summary is not None


def test_a_worker_has_imported_the_client_before_its_first_task(worker: Worker, settings: Settings) -> None:
    session = append_until_due(configured(settings, worker.site))

    processes.wait_until(worker.folded(session), "the session is folded")
    assert "openai" in worker.modules()


def test_a_worker_makes_a_summary_anew_when_it_is_asked_to(worker: Worker, settings: Settings) -> None:
    memory = configured(settings, worker.site)
    session = append_until_due(memory)
    processes.wait_until(worker.folded(session), "the session is folded")

    assert memory.request_rebuild("user-1")

    processes.wait_until(lambda: row(session).current_version == 2, "the summary is made anew")
    assert memory.load("user-1").covered == row(session).covered_position
    assert len(worker.server.log) == 2


def test_a_task_that_comes_again_makes_no_second_call(worker: Worker, settings: Settings) -> None:
    memory, before = configured(settings, worker.site), worker.done()
    worker.server.queue(Behaviour(latency=1.0))
    session = append_until_due(memory)
    assert worker.server.wait_for(lambda log: len(log) == 1, processes.PATIENCE)

    tasks.compact("default", session.pk)  # as a second worker would
    for _ in range(3):
        tasks.CeleryScheduler(worker.site.queue).send(memory, session.pk)

    processes.wait_until(lambda: worker.done() == before + 4, "every task is done")
    assert worker.folded(session)()
    assert worker.versions(session) == [1]
    assert len(worker.server.log) == 1


def test_a_killed_worker_costs_one_call(worker: Worker, settings: Settings) -> None:
    memory, before = configured(settings, worker.site), worker.done()
    worker.server.queue(Behaviour("hang"))
    session = append_until_due(memory)
    assert worker.server.wait_for(lambda log: len(log) == 1, processes.PATIENCE)

    os.kill(worker.pid(), signal.SIGKILL)

    # The broker delivers the task again. It finds the dead worker's lease, and does nothing.
    processes.wait_until(lambda: worker.done() == before + 1, "the task comes back")
    assert worker.versions(session) == []
    assert row(session).lease_token
    assert list(tasks.send_due(memory, limit=10, hint_age=0)) == []

    change(session, lease_expires_at=clock.Clock(-1), next_attempt_at=clock.Clock(-1))
    assert list(tasks.send_due(memory, limit=10, hint_age=0)) == [session.pk]

    processes.wait_until(worker.folded(session), "the session is folded")
    assert worker.versions(session) == [1]
    assert len(worker.server.log) == 2


def test_the_soft_limit_gives_the_lease_back(worker: Worker, settings: Settings) -> None:
    memory = configured(settings, None)
    worker.server.queue(Behaviour("hang"))
    session = append_until_due(memory)

    tasks.compact.apply_async(("default", session.pk), queue=worker.site.queue, soft_time_limit=1, time_limit=60)

    processes.wait_until(lambda: row(session).last_error, "the limit")
    stopped = row(session)
    assert "SoftTimeLimitExceeded" in stopped.last_error
    assert stopped.due_since is not None
    assert stopped.lease_token == ""
    assert stopped.next_attempt_at is not None
