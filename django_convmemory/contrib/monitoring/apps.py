"""The app for monitoring: add ``"django_convmemory.contrib.monitoring"`` to ``INSTALLED_APPS`` to check its setting."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class MonitoringConfig(AppConfig):
    name = "django_convmemory.contrib.monitoring"
    label = "convmemory_monitoring"

    def ready(self) -> None:
        from django_convmemory.contrib.monitoring import conf

        checks.register(conf.check_settings, "convmemory")
