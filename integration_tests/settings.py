"""The settings of the tests, with the apps that need a framework, and with a task framework that stores its tasks.

The types are checked with these settings, also where no framework is installed.
"""

import importlib.util

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

_NEED = {"django_tasks_db": "django_tasks_db", "django_convmemory.contrib.pydantic_ai": "pydantic_ai"}

INSTALLED_APPS = [
    *_APPS,
    "django_convmemory.contrib.mcp",
    *(app for app, package in _NEED.items() if importlib.util.find_spec(package)),
]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default", "convmemory"]}}
