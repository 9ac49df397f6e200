"""Settings of the site under test, for all of its processes: ``CONVMEMORY_CHAOS`` names a file with the rest."""

import json
import os
import pathlib

from tests.settings import *  # noqa: F403

SITE = json.loads(pathlib.Path(os.environ["CONVMEMORY_CHAOS"]).read_text())

KEPT = {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
# Keep connections between requests, as busy sites do.
DATABASES = {alias: KEPT | entry for alias, entry in SITE["databases"].items()}
DATABASE_ROUTERS = SITE["routers"]
CONVMEMORY = SITE["memories"]

CELERY_BROKER_URL = SITE["broker"]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_TASK_CREATE_MISSING_QUEUES = True
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
