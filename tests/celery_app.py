"""The Celery app of a project, for the worker processes that tests start: ``celery --app tests.celery_app worker``."""

import pathlib
import sys
import tempfile
from typing import Any

from celery import Celery
from celery.signals import task_prerun

app = Celery("tests")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@task_prerun.connect
def note_what_is_imported(**kwargs: Any) -> None:
    """Write the modules that are imported before the first task to a file."""
    if not (modules := pathlib.Path(tempfile.gettempdir()) / "modules").exists():
        modules.write_text("\n".join(sys.modules))
