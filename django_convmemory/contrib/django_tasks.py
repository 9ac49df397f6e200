"""A scheduler for sites without Celery: it sends the work by Django's own tasks.

It needs Django 6, or the package ``django-tasks``, and a backend that a worker runs, such as that of
``django-tasks-db``::

    TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default", "convmemory"]}}

    CONVMEMORY = {
        "default": {
            "SCHEDULER": {
                "BACKEND": "django_convmemory.contrib.django_tasks.DjangoTasksScheduler",
                "OPTIONS": {"queue": "convmemory"},
            },
            …
        },
    }

``manage.py db_worker --queue-name convmemory`` runs the tasks. As with Celery, a task is only a hint, and a lost one
costs time and no data. Have cron run ``manage.py convmemory_sweep`` every minute, or ``convmemory_sweep --watch``
beside the worker: it sends the sessions whose task was lost.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from django.db import connections, transaction
from django.utils import timezone

from django_convmemory import tasks
from django_convmemory.fold.run import Outcome
from django_convmemory.scheduling import REQUESTED, Memory, Work

# Django's own framework, or the package with the same one for earlier versions.
_framework: Any = importlib.import_module("django.tasks" if find_spec("django.tasks") else "django_tasks")

logger = logging.getLogger(__name__)


def _task(function: Callable[..., None]) -> Any:
    """Make a task of a function of this module.

    A task cannot be defined without a backend, and a queue that this knows. The scheduler chooses its own later.
    """
    backends = _framework.task_backends
    try:
        alias = "default" if "default" in backends.settings else next(iter(backends))
        queue = min(backends[alias].queues, default="default")
        return _framework.task(queue_name=queue, backend=alias)(function)
    except Exception as error:
        # The check of the settings reports it.
        raise ImportError(f"TASKS cannot be used: {error!r}") from error


@_task
def compact(alias: str, session_id: int, swept: bool = False, asked: bool = False, despite_pause: bool = False) -> None:
    """Fold what is due in a session: see :func:`django_convmemory.tasks.compact`."""
    memory = tasks.memory_of(alias, session_id)
    if memory is not None:
        tasks.fold(memory, session_id, swept=swept, asked=asked, despite_pause=despite_pause)


@_task
def rebuild(alias: str, session_id: int, stand_ins: bool = False, tried: int = 0) -> None:
    """Make the summary of a session again: see :func:`django_convmemory.tasks.rebuild`."""
    memory = tasks.memory_of(alias, session_id)
    if memory is None:
        return
    result = memory.carry_out(session_id, "replace_stand_ins" if stand_ins else "rebuild", gives_way=True)
    if result.recovered:
        tasks.send_waiting(memory)
    if result.outcome != Outcome.BUSY or stand_ins:
        return
    # Another process works on the session.
    scheduler = memory.scheduler
    if isinstance(scheduler, DjangoTasksScheduler) and scheduler.defers and tried < tasks.REBUILD_TRIES:
        scheduler.enqueue(rebuild, memory, session_id, delay=memory.lease_seconds, tried=tried + 1)
    else:
        logger.warning("Session %s was not rebuilt: another process was working on it. Request it again.", session_id)


class DjangoTasksScheduler:
    """Sends a task by Django's task framework for a session that became due, after the commit of the transaction.

    ``queue`` is the name of the queue, and ``backend`` the alias in ``TASKS``. A backend that stores tasks in the
    database adds one INSERT to the append that makes a session due. If it fails, the error is logged, and a sweep sends
    the task later. Raises ValueError if ``TASKS`` has no such backend, or the backend no such queue.
    """

    after_commit = True
    queues = True

    def __init__(self, queue: str = "default", backend: str = "default") -> None:
        self.queue = queue
        self.backend = backend
        try:
            compact.using(queue_name=queue, backend=backend)
        except Exception as error:
            raise ValueError(f"TASKS cannot take the tasks of the DjangoTasksScheduler: {error}") from error

    @property
    def defers(self) -> bool:
        """Whether the backend can run a task later."""
        return bool(_framework.task_backends[self.backend].supports_defer)

    @property
    def folds_in_request(self) -> bool:
        """Whether the backend runs a task where it is sent. So does Django's default."""
        return self._is_a("ImmediateBackend")

    @property
    def problem(self) -> str | None:
        """Why no worker would get a task, or None. This does not ask the backend."""
        if self._is_a("DummyBackend"):
            return f"the backend {self.backend!r} of TASKS is the DummyBackend, which runs no task. Choose another one"
        return None

    def _is_a(self, name: str) -> bool:
        """Whether the backend is of this class. By its name: Django and the package have each a class of their own."""
        return name in [base.__name__ for base in type(_framework.task_backends[self.backend]).__mro__]

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Send a task that folds the session in ``delay`` seconds. If the backend cannot wait, a sweep sends it."""
        if delay <= (tasks.QUEUED_FOR if self.defers else 0.0):
            self.send(memory, session_id, delay=delay)

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Send the task for ``work``. Return whether it was sent. Never raises."""
        return self.enqueue(compact if work in ("compact", "retry") else rebuild, memory, session_id, **REQUESTED[work])

    def send(self, memory: Memory, session_id: int, *, delay: float = 0.0, swept: bool = False) -> bool:
        """Send a task that folds the session in ``delay`` seconds. Return whether it was sent. Never raises.

        ``swept``: when the task is done, it sends the next due session.
        """
        return self.enqueue(compact, memory, session_id, delay=delay, **({"swept": True} if swept else {}))

    def enqueue(self, of: Any, memory: Memory, session_id: int, *, delay: float = 0.0, **arguments: Any) -> bool:
        """Send the task ``of`` this module. Return whether it was sent. Never raises."""
        after = timezone.now() + dt.timedelta(seconds=delay) if delay > 0 else None
        try:
            with _savepoints():
                sent = of.using(queue_name=self.queue, backend=self.backend, run_after=after)
                sent.enqueue(memory.alias, session_id, **arguments)
        except Exception:
            logger.warning(
                "The task for session %s of memories[%r] was not sent. A sweep sends it later.",
                session_id,
                memory.alias,
                exc_info=True,
            )
            return False
        return True


@contextlib.contextmanager
def _savepoints() -> Iterator[None]:
    """Keep the caller's transactions usable if the backend fails in one of them. Nobody knows its database."""
    with contextlib.ExitStack() as stack:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                stack.enter_context(transaction.atomic(using=connection.alias))
        yield
