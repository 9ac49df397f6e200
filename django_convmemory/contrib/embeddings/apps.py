"""The app that keeps an embedding of each message.

Words find the matches of a search, and the embeddings change the order of the best ones.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from django_convmemory import signals


class EmbeddingsConfig(AppConfig):
    name = "django_convmemory.contrib.embeddings"
    label = "convmemory_embeddings"
    verbose_name = _("Embeddings of the conversation memory")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Follow the messages that are removed or copied."""
        from django_convmemory.contrib.embeddings import vectors

        signals.content_changed.connect(vectors.follow)
