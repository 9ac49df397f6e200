"""The table of embeddings. Only :mod:`.vectors` writes it."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_convmemory.models import Session

# Django would take the model for one of the app whose package this is in.
if not apps.is_installed("django_convmemory.contrib.embeddings"):
    raise ImproperlyConfigured('Add "django_convmemory.contrib.embeddings" to INSTALLED_APPS.')


class Vector(models.Model):
    """The embedding of the message at ``position``.

    A message without words to embed has an empty one. So the vectors of a session tell how far it is embedded.
    """

    pk = models.CompositePrimaryKey("session_id", "position")
    session = models.ForeignKey(
        Session,
        verbose_name=_("session"),
        on_delete=models.CASCADE,
        related_name="convmemory_vectors",
        db_index=False,  # The primary key begins with it.
    )
    position = models.BigIntegerField(_("position"))
    # A checksum of the model's name: vectors of two models cannot be compared.
    model = models.IntegerField(_("model"))
    # A signed byte for each number. The length of the vector is lost, and a cosine does not need it.
    data = models.BinaryField(_("numbers"))

    class Meta:
        app_label = "convmemory_embeddings"
        verbose_name = _("embedding")
        verbose_name_plural = _("embeddings")

    def __str__(self) -> str:
        return f"{self.session_id}: {self.position}"
