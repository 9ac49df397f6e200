"""The settings of the tests, with the MCP server, and tasks of Django that are stored in the database."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "django_convmemory.contrib.mcp", "django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default", "convmemory"]}}
