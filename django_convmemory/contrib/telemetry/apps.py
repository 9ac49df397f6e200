"""The app that turns telemetry on: add ``"django_convmemory.contrib.telemetry"`` to ``INSTALLED_APPS``."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from django_convmemory import observers


class TelemetryConfig(AppConfig):
    name = "django_convmemory.contrib.telemetry"
    label = "convmemory_telemetry"
    verbose_name = _("Telemetry of the conversation memory")

    def ready(self) -> None:
        """Report to the providers of OpenTelemetry that the site sets, whenever it sets them."""
        try:
            from django_convmemory.contrib.telemetry import observer
        except ImportError as error:
            raise ImproperlyConfigured(
                f"INSTALLED_APPS has {self.name!r}, which needs OpenTelemetry ({error}). "
                'Install "django-convmemory[otel]".'
            ) from error
        observers.add(observer.Telemetry())
