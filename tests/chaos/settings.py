"""Settings of the site under test, for all of its processes: ``CONVMEMORY_CHAOS`` names a file with the rest."""

import json
import os
import pathlib

from tests.settings import *  # noqa: F403

SITE = json.loads(pathlib.Path(os.environ["CONVMEMORY_CHAOS"]).read_text())

KEPT = {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
# Keep connections between requests, as busy sites do.
DATABASES = {alias: KEPT | entry for alias, entry in SITE["databases"].items()}
# What only this process has, in the database of the conversations.
CHANGES = json.loads(os.environ.get("CONVMEMORY_CHAOS_DATABASE", "{}"))
CHANGED = DATABASES["memory" if "memory" in DATABASES else "default"]
OPTIONS = CHANGED.get("OPTIONS", {}) | CHANGES.pop("OPTIONS", {})
CHANGED |= {"OPTIONS": OPTIONS} | CHANGES
DATABASE_ROUTERS = SITE["routers"]
CONVMEMORY = SITE["memories"]

if SITE["broker"] is None:
    INSTALLED_APPS = [*INSTALLED_APPS, "django_tasks_db"]  # noqa: F405
    TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default", SITE["queue"]]}}

# For the processes of web.py.
ALLOWED_HOSTS = ["*"]
CONVMEMORY_API = {
    "RESPONDER": os.environ.get("CONVMEMORY_CHAOS_RESPONDER"),
    "AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"],
}
REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"convmemory_turn": None}}

CELERY_BROKER_URL = SITE["broker"]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_TASK_CREATE_MISSING_QUEUES = True
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
