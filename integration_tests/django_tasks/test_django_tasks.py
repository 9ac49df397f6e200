"""The scheduler of Django's tasks, with a worker process of the package django-tasks-db."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone
from django_tasks_db.backend import DatabaseBackend
from django_tasks_db.models import DBTaskResult

from django_convmemory import checks, models
from django_convmemory.contrib.django_tasks import DjangoTasksScheduler
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.scheduling import NullScheduler
from tests import processes
from tests.openai_server import Behaviour, OpenAIServer
from tests.outages import skip
from tests.projects import append_until_due, asking, change, row

QUEUE = "convmemory"


class BrokenBackend(DatabaseBackend):
    """A backend whose database is gone."""

    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("The database of the tasks is gone.")


def convmemory(server: OpenAIServer) -> dict[str, Any]:
    return {
        "default": {
            "OPTIONS": {"max_token_limit": 200},
            "CHAT_MODEL": asking(server),
            "SCHEDULER": {
                "BACKEND": "django_convmemory.contrib.django_tasks.DjangoTasksScheduler",
                "OPTIONS": {"queue": QUEUE},
            },
        }
    }


@pytest.fixture
def memory(server: OpenAIServer, settings: Any) -> ConversationMemory:
    settings.CONVMEMORY = convmemory(server)
    return memories["default"]


@contextlib.contextmanager
def started(folder: pathlib.Path, *command: str, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command of Django with these settings."""
    settings = {"INSTALLED_APPS": list(django_settings.INSTALLED_APPS), "TASKS": django_settings.TASKS} | settings
    process = processes.start(folder, "django", *command, **settings)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def worker(
    server: OpenAIServer, tmp_path: pathlib.Path
) -> Callable[[], contextlib.AbstractContextManager[subprocess.Popen[bytes]]]:
    """Return what starts a worker process."""

    def start() -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        folder = tmp_path / f"worker{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        options = ("--queue-name", QUEUE, "--interval", "0.1", "--no-startup-delay", "--no-reload")
        return started(folder, "db_worker", *options, CONVMEMORY=convmemory(server))

    return start


def folded(session: models.Session) -> Callable[[], bool]:
    return lambda: row(session).due_since is None and not row(session).lease_token


@pytest.mark.django_db(transaction=True)
def test_a_worker_folds_what_is_due_and_makes_it_again_on_request(
    memory: ConversationMemory, worker: Any, server: OpenAIServer
) -> None:
    session = append_until_due(memory)
    assert list(DBTaskResult.objects.values_list("queue_name", flat=True)) == [QUEUE]

    with worker():
        processes.wait_until(folded(session), "the session is folded")
        assert len(server.log) == 1
        assert memory.load("user-1").summary is not None
        assert memory.request_rebuild("user-1")
        processes.wait_until(lambda: row(session).current_version == 2, "the summary is made again")

    assert list(integrity.check(models.Session.objects.all())) == []


@pytest.mark.django_db(transaction=True)
def test_after_a_worker_was_killed_a_sweep_has_its_session_folded(
    memory: ConversationMemory, worker: Any, server: OpenAIServer
) -> None:
    server.queue(Behaviour("hang"))
    session = append_until_due(memory)
    with worker() as process:
        processes.wait_until(lambda: server.log, "the model is asked")
        process.kill()
    # As if the lease had ended, and the time of the next attempt had come.
    skip(60)
    change(session, lease_expires_at=timezone.now(), next_attempt_at=None)

    call_command("convmemory_sweep", verbosity=0)
    with worker():
        processes.wait_until(folded(session), "the session is folded")

    assert row(session).current_version == 1


@pytest.mark.django_db(transaction=True)
def test_a_worker_clears_a_backlog_of_which_one_session_was_sent(
    memory: ConversationMemory, worker: Any, settings: Any
) -> None:
    scheduler, memory.scheduler = memory.scheduler, NullScheduler()
    sessions = [append_until_due(memory, f"user-{number}") for number in range(3)]
    memory.scheduler = scheduler
    assert not DBTaskResult.objects.exists()
    skip(60)

    call_command("convmemory_sweep", "--limit", "1", verbosity=0)
    assert DBTaskResult.objects.count() == 1
    with worker():
        for session in sessions:
            processes.wait_until(folded(session), "the session is folded")


@pytest.mark.django_db(transaction=True)
def test_an_append_does_not_fail_if_no_task_can_be_stored(
    memory: ConversationMemory, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.TASKS = {"default": {"BACKEND": f"{__name__}.BrokenBackend", "QUEUES": ["default", QUEUE]}}

    session = append_until_due(memory)

    assert "was not sent" in caplog.text
    # So a sweep finds it when it has been due for a minute.
    assert (row(session).due_since is not None, row(session).queued_at) == (True, None)
    assert memory.request_compaction("user-1") is False


def test_settings_that_cannot_work_are_refused(memory: ConversationMemory, settings: Any) -> None:
    with pytest.raises(ValueError, match=r"TASKS cannot take the tasks of the DjangoTasksScheduler: .*'fast'"):
        DjangoTasksScheduler(queue="fast")
    with pytest.raises(ValueError, match=r"TASKS cannot take the tasks of the DjangoTasksScheduler: .*other"):
        DjangoTasksScheduler(backend="other")


@pytest.mark.django_db
def test_a_check_warns_of_backends_without_a_worker(memory: ConversationMemory, settings: Any) -> None:
    module = "django.tasks" if find_spec("django.tasks") else "django_tasks"
    settings.TASKS = {"default": {"BACKEND": f"{module}.backends.immediate.ImmediateBackend", "QUEUES": []}}
    [warning] = checks.check_scheduler()
    assert warning.id == "convmemory.W002"
    assert "uses the DjangoTasksScheduler: a request that appends waits for the model" in str(warning.msg)

    settings.TASKS = {"default": {"BACKEND": f"{module}.backends.dummy.DummyBackend", "QUEUES": []}}
    assert "DummyBackend" in str(memories["default"].scheduler.problem)  # type: ignore[attr-defined]
    assert checks.check_scheduler() == []


@pytest.mark.django_db(transaction=True)
def test_the_settings_of_the_page_work(settings: Any, tmp_path: pathlib.Path) -> None:
    page = (processes.ROOT / "docs/guides/development.md").read_text()
    names: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(page.split("```python\n# settings.py\n")[1].split("```")[0], names)  # noqa: S102
    assert set(names["INSTALLED_APPS"]) <= set(django_settings.INSTALLED_APPS)
    settings.TASKS, settings.CONVMEMORY = names["TASKS"], names["CONVMEMORY"]
    [command] = [line.split()[2:] for line in page.splitlines() if line.startswith("python manage.py db_worker")]

    session = append_until_due(memories["default"])
    call_command("check", "--database", "default")
    with started(tmp_path, *command, "--no-reload", TASKS=names["TASKS"], CONVMEMORY=names["CONVMEMORY"]):
        processes.wait_until(folded(session), "the session is folded")


@pytest.mark.django_db(transaction=True)
def test_a_failed_request_leaves_the_callers_transaction_usable(
    memory: ConversationMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_until_due(memory)
    monkeypatch.setattr(DBTaskResult._meta, "db_table", "a_table_that_is_not_there")
    with transaction.atomic():
        assert memory.request_compaction("user-1") is False
        assert models.Session.objects.count() == 1


def checked(folder: pathlib.Path, tasks: dict[str, Any], **options: str) -> tuple[int, str]:
    """Run the system checks with these TASKS. Return the exit code and the output."""
    scheduler = {
        "BACKEND": "django_convmemory.contrib.django_tasks.DjangoTasksScheduler",
        "OPTIONS": options,
    }
    memory = {"default": {"SCHEDULER": scheduler}}
    with started(folder, "check", "--tag", "convmemory", TASKS=tasks, CONVMEMORY=memory) as process:
        code = process.wait(processes.PATIENCE)
    return code, (folder / "output").read_text()


@pytest.mark.parametrize(
    "tasks",
    [
        {},
        {"default": {}},
        {"default": {"BACKEND": "nowhere.Backend"}},
        {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": None}},
    ],
)
def test_tasks_that_cannot_be_used_are_an_error_of_the_check(tasks: dict[str, Any], tmp_path: pathlib.Path) -> None:
    _, output = checked(tmp_path, tasks)
    assert "TASKS cannot be used" in output
    assert "Traceback" not in output


def test_a_backend_of_another_name_is_enough(tmp_path: pathlib.Path) -> None:
    tasks = {"slow": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["one"]}}
    code, output = checked(tmp_path, tasks, backend="slow", queue="one")
    assert code == 0, output
