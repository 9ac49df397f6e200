"""Django projects in this process that use Celery: an app, its queue, and a memory that sends to the queue."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, _state

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.sender import sender
from tests import processes

if TYPE_CHECKING:
    from tests.openai_server import OpenAIServer

# Celery's stubs leave these names out.
celery_state: Any = _state

TURN = "The cat sat on the mat and thought about the sea. " * 4


def scripted(**options: Any) -> dict[str, Any]:
    """Return the setting of a scripted chat model."""
    return {"BACKEND": "django_convmemory.chat_models.scripted.ScriptedChatModel", "OPTIONS": options}


def asking(server: OpenAIServer) -> dict[str, Any]:
    """Return the setting of a chat model that asks this server."""
    return {
        "BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel",
        "OPTIONS": {"model": "fake", "api_key": "none", "base_url": server.base_url},
    }


@dataclasses.dataclass
class Project:
    """A project's Celery app, and its queue."""

    app: Celery
    queue: str

    def depth(self) -> int:
        """How many tasks are in the queue, after this process has sent its hints."""
        assert sender().flush(processes.PATIENCE)
        with self.app.connection_for_read() as connection:
            channel: Any = connection.default_channel
            if connection.transport.driver_type != "amqp":
                return int(channel._size(self.queue))
            try:
                return int(channel.queue_declare(self.queue, passive=True).message_count)
            except connection.channel_errors:
                return 0  # Nothing was ever sent.

    def take(self) -> Any:
        assert sender().flush(processes.PATIENCE)
        with self.app.connection_for_read() as connection:
            return self.app.amqp.queues[self.queue].bind(connection.default_channel).get(no_ack=True)

    def remove(self, broker_url: str) -> None:
        """Delete the queue and its traces on the broker, which may have another URL here."""
        with self.app.connection_for_write(broker_url) as connection:
            channel: Any = connection.default_channel
            channel.queue_delete(self.queue)
            kind = connection.transport.driver_type
            if kind == "amqp":
                channel.exchange_delete(self.queue)
        if kind == "redis":
            import redis

            with redis.Redis.from_url(broker_url) as client:
                for key in client.scan_iter(match=f"{self.queue}:*"):
                    client.delete(key)


def celery_settings(broker_url: str, queue: str) -> dict[str, Any]:
    """Return settings that leave only the queue on the broker, and share nothing with other tests."""
    return {
        "broker_url": broker_url,
        "broker_transport_options": {"global_keyprefix": f"{queue}:"},
        "broker_connection_retry_on_startup": True,
        "task_create_missing_queues": True,
        "worker_enable_remote_control": False,
    }


@contextlib.contextmanager
def project(broker_url: str, *, real: str = "", **settings: Any) -> Iterator[Project]:
    """Make a project, and make its Celery app current as :func:`current` does.

    If ``real`` names the broker, the project's queue is deleted there at the end.
    """
    made = make_project(broker_url, **settings)
    try:
        with current(made):
            yield made
    finally:
        if real:
            made.remove(real)
        made.app.close()


def make_project(broker_url: str, **settings: Any) -> Project:
    """Return a new project, with its own queue."""
    queue = f"convmemory-{uuid.uuid4().hex}"
    app = Celery("project", set_as_current=False, fixups=[])
    app.conf.update(celery_settings(broker_url, queue) | settings)
    return Project(app, queue)


@contextlib.contextmanager
def current(made: Project) -> Iterator[None]:
    """Make the project's Celery app current in all threads, as a Django project does."""
    default, before = celery_state.default_app, celery_state._tls.current_app
    made.app.set_current()
    made.app.set_default()
    try:
        yield
    finally:
        sender().close()
        celery_state._set_current_app(before)
        celery_state.set_default_app(default)


def configured(
    settings: Any,
    site: Project | None,
    *,
    model: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
) -> ConversationMemory:
    """Return the memory ``default``. It sends tasks to the site's queue, or, without a site, no tasks."""
    scheduler = {
        "BACKEND": "django_convmemory.tasks.CeleryScheduler" if site else "django_convmemory.scheduling.NullScheduler",
        "OPTIONS": {"queue": site.queue} if site else {},
    }
    entry = {**settings.CONVMEMORY["default"], "SCHEDULER": scheduler}
    if model:
        entry |= {"CHAT_MODEL": model, "FALLBACK_CHAT_MODEL": None}
    if options:
        entry |= {"OPTIONS": options}
    settings.CONVMEMORY = {"default": entry}
    return memories["default"]


def append_until_due(memory: ConversationMemory, key: str = "user-1") -> models.Session:
    while not memory.append(key, ChatMessage.human(TURN)).due:
        pass
    assert sender().flush(processes.PATIENCE)
    return models.Session.objects.get(alias=memory.alias, key=key)


def row(session: models.Session) -> models.Session:
    return models.Session.objects.get(pk=session.pk)


def change(session: models.Session, **values: Any) -> None:
    models.Session.objects.filter(pk=session.pk).update(**values)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name in ("django_convmemory.tasks", "django_convmemory.sender") and record.levelno >= logging.WARNING
    ]
