"""The system check of ``settings.CONVMEMORY_API``."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_convmemory.api import conf


def register() -> None:
    checks.register(check_settings)


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Report what is wrong with ``CONVMEMORY_API``, if the site sets it."""
    if not hasattr(settings, conf.NAME):
        return []
    try:
        limits = conf.limits()
        conf.classes((limits.scope, *limits.permission_classes, *limits.throttle_classes))
        conf.classes(limits.authentication_classes or ())
    except ImproperlyConfigured as error:
        return [
            checks.Error(
                str(error),
                hint="Correct the key, or remove it to use its default. docs/api.md lists the keys and their defaults.",
                id="convmemory.E010",
            )
        ]
    return []
