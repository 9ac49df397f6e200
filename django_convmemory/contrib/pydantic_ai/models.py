"""The tables of conversations: what pydantic-ai keeps of them beside their messages.

Only :mod:`.store` and :mod:`.entries` write them.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_convmemory.fields import ExactCharField, ExactJSONField
from django_convmemory.models import Session

# Django would take the models for those of the app whose package this is in.
if not apps.is_installed("django_convmemory.contrib.pydantic_ai"):
    raise ImproperlyConfigured('Add "django_convmemory.contrib.pydantic_ai" to INSTALLED_APPS.')


class Conversation(models.Model):
    """What pydantic-ai keeps of a session: the fields of a ``ConversationRecord``."""

    session = models.OneToOneField(
        Session,
        verbose_name=_("session"),
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="convmemory_conversation",
    )
    revision = models.CharField(_("revision"), max_length=64)
    # The session's own revision after the last save. If the session has another one, somebody else changed messages.
    session_revision = models.BigIntegerField(_("revision of the session"))
    # The other fields, as JSON.
    record = ExactJSONField(_("record"))
    saved_at = models.DateTimeField(_("saved at"))

    class Meta:
        app_label = "convmemory_pydantic_ai"
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")

    def __str__(self) -> str:
        return f"{self.session_id}: {self.revision}"


class Entry(models.Model):
    """The id of a stored message, or a whole message of a branch that the conversation has left."""

    session = models.ForeignKey(
        Session,
        verbose_name=_("session"),
        on_delete=models.CASCADE,
        related_name="convmemory_entries",
        db_index=False,  # Meta.indexes has one that begins with it.
    )
    # A fork has the ids of its original.
    entry_id = ExactCharField(_("entry"), max_length=255)
    # The position of the last row of the message. NULL: it is in no history, and the next two columns have it.
    position = models.BigIntegerField(_("position"), null=True, blank=True)
    parent_id = ExactCharField(_("entry before it"), max_length=255, null=True, blank=True)
    message: models.Field[Any, Any] = ExactJSONField(_("message"), null=True, blank=True)

    class Meta:
        app_label = "convmemory_pydantic_ai"
        verbose_name = _("entry")
        verbose_name_plural = _("entries")
        constraints = [models.UniqueConstraint(fields=["entry_id", "session"], name="convmemory_entry_id")]
        indexes = [models.Index(fields=["session", "position"], name="convmemory_entry_position")]

    def __str__(self) -> str:
        return str(self.entry_id)
