"""The Celery app of a project, for the worker processes that tests start: ``celery --app tests.celery_app worker``."""

import os
import pathlib
import tempfile
from typing import Any

from celery import Celery
from celery.signals import worker_process_init

app = Celery("tests")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_process_init.connect
def note_the_pid(**kwargs: Any) -> None:
    """Write the id of the process that runs the tasks to a file, so that a test can kill it."""
    (pathlib.Path(tempfile.gettempdir()) / "pid").write_text(str(os.getpid()))
