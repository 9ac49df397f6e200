"""The Celery app of the site: ``celery --app tests.chaos.app worker``."""

import pathlib
from typing import Any

from celery import Celery
from celery.signals import worker_init, worker_process_init
from django.conf import settings
from django.db.models.signals import pre_save
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


@receiver(pre_save)
def wait_between_the_writes(sender: type, **kwargs: Any) -> None:
    # By its name, because this module is imported before the apps are ready.
    if sender.__name__ == "Summary":
        gates.pass_through(pathlib.Path(settings.SITE["gates"]), gates.BETWEEN_WRITES)  # type: ignore[misc]


@receiver(signals.summary_published)
def wait_after_publishing(**kwargs: Any) -> None:
    gates.pass_through(pathlib.Path(settings.SITE["gates"]), gates.AFTER_PUBLISH)  # type: ignore[misc]
