"""What a task carries from the request that made a session due."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from celery.signals import before_task_publish

from django_convmemory import observers, tasks
from django_convmemory.observers import Observer, Run
from tests.projects import Project, append_until_due, configured

pytestmark = pytest.mark.django_db(transaction=True)

REQUEST = contextvars.ContextVar("REQUEST", default="none")


class Naming(Observer):
    """Sends the name of the request, and notes what a fold is told."""

    def __init__(self) -> None:
        self.origins: list[Mapping[str, str]] = []

    @contextlib.contextmanager
    def folding(self, run: Run) -> Iterator[None]:
        self.origins.append(run.origin)
        yield

    def headers(self) -> Mapping[str, str]:
        return {"request": REQUEST.get()}


@pytest.fixture
def naming() -> Iterator[Naming]:
    observer = Naming()
    observers.add(observer)
    yield observer
    observers.remove(observer)


def published(site: Project) -> Any:
    return site.take().headers


def test_the_thread_that_sends_has_the_context_of_the_request(local_site: Project, settings: Any) -> None:
    memory = configured(settings, local_site)
    seen: list[str] = []

    def receive(**kwargs: Any) -> None:
        seen.append(REQUEST.get())

    before_task_publish.connect(receive)
    token = REQUEST.set("mine")
    try:
        append_until_due(memory)
        assert local_site.depth() == 1
    finally:
        REQUEST.reset(token)
        before_task_publish.disconnect(receive)
    assert seen == ["mine"]


def test_the_fold_of_an_append_is_told_what_observers_send(local_site: Project, settings: Any, naming: Naming) -> None:
    memory = configured(settings, local_site)
    token = REQUEST.set("mine")
    try:
        session = append_until_due(memory)
    finally:
        REQUEST.reset(token)

    # As in a worker, the headers of the task are attributes of its request.
    tasks.compact.push_request(**published(local_site))
    try:
        tasks.compact.run("default", session.pk)
    finally:
        tasks.compact.pop_request()
    assert naming.origins == [{"request": "mine"}]


def test_the_task_of_a_sweep_carries_nothing(local_site: Project, settings: Any, naming: Naming) -> None:
    memory = configured(settings, None)
    append_until_due(memory)
    list(tasks.send_due(configured(settings, local_site), limit=10, queued_for=0))

    assert "convmemory_origin" not in published(local_site)


def test_without_an_observer_a_task_carries_nothing(local_site: Project, settings: Any) -> None:
    append_until_due(configured(settings, local_site))
    assert "convmemory_origin" not in published(local_site)
