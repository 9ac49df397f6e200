"""The worker's app: ``celery --app benchmarks.worker_rate.celery_app worker``."""

from celery import Celery

app = Celery("benchmark")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
