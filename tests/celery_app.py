"""The Celery app of a project, for the worker processes that tests start: ``celery --app tests.celery_app worker``."""

import os
import pathlib
import sys
import tempfile
from typing import Any

from celery import Celery
from celery.signals import task_prerun, worker_process_init

app = Celery("tests")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


FOLDER = pathlib.Path(tempfile.gettempdir())


@worker_process_init.connect
def note_the_pid(**kwargs: Any) -> None:
    """Write the id of the process that runs the tasks to a file, so that a test can kill it."""
    (FOLDER / "pid").write_text(str(os.getpid()))


@task_prerun.connect
def note_what_is_imported(**kwargs: Any) -> None:
    """Write the modules that are imported before the first task to a file."""
    if not (modules := FOLDER / "modules").exists():
        modules.write_text("\n".join(sys.modules))
