"""The Celery app of the site: ``celery --app tests.chaos.app worker``."""

import pathlib
from typing import Any

from celery import Celery
from celery.signals import worker_init, worker_process_init
from django.conf import settings
from django.dispatch import receiver

import django_convmemory
from django_convmemory import signals
from tests.chaos import gates, watching

app = Celery("chaos")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_process_init.connect
def watch_itself(**kwargs: Any) -> None:
    watching.watch()


@worker_init.connect
def name_the_code(**kwargs: Any) -> None:
    print(f"The worker runs {pathlib.Path(django_convmemory.__file__).parent}.", flush=True)


@receiver(signals.summary_published)
def wait_after_publishing(**kwargs: Any) -> None:
    gates.pass_through(pathlib.Path(settings.SITE["gates"]), gates.AFTER_PUBLISH)  # type: ignore[misc]
