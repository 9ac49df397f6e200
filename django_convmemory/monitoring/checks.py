"""The system check of ``settings.CONVMEMORY_MONITORING``."""

from __future__ import annotations

from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_convmemory.monitoring import conf


def register() -> None:
    checks.register(check_settings)


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Report what is wrong with ``CONVMEMORY_MONITORING``."""
    try:
        conf.options()
    except ImproperlyConfigured as error:
        hint = "Correct the key, or remove it to use its default. docs/howto/telemetry.md lists the keys."
        return [checks.Error(str(error), hint=hint, id="convmemory.E014")]
    return []
