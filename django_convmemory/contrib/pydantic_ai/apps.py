"""The app that keeps the conversations of pydantic-ai's adapters."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from django_convmemory import signals


class PydanticAIConfig(AppConfig):
    name = "django_convmemory.contrib.pydantic_ai"
    label = "convmemory_pydantic_ai"
    verbose_name = _("Conversations of pydantic-ai")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Follow the messages that are removed, redacted or copied."""
        from django_convmemory.contrib.pydantic_ai import entries

        signals.content_changed.connect(entries.follow)
