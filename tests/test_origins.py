"""What a task carries from the request that made a session due."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from celery.signals import before_task_publish

from django_convmemory import tasks
from django_convmemory.core import observers
from django_convmemory.core.observers import Observer
from tests.projects import Project, append_until_due, configured

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db(transaction=True)

REQUEST = contextvars.ContextVar("REQUEST", default="none")


class Naming(Observer):
    """Sends the name of the request."""

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


def test_the_thread_that_sends_has_the_context_of_the_request(local_site: Project, settings: Settings) -> None:
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


def test_the_task_of_an_append_carries_what_observers_send(
    local_site: Project, settings: Settings, naming: Naming
) -> None:
    memory = configured(settings, local_site)
    token = REQUEST.set("mine")
    try:
        append_until_due(memory)
    finally:
        REQUEST.reset(token)

    assert published(local_site)["convmemory_origin"] == {"request": "mine"}


def test_the_task_of_a_sweep_carries_nothing(local_site: Project, settings: Settings, naming: Naming) -> None:
    memory = configured(settings, None)
    append_until_due(memory)
    list(tasks.send_due(configured(settings, local_site), limit=10, hint_age=0))

    assert "convmemory_origin" not in published(local_site)


def test_without_an_observer_a_task_carries_nothing(local_site: Project, settings: Settings) -> None:
    append_until_due(configured(settings, local_site))
    assert "convmemory_origin" not in published(local_site)
