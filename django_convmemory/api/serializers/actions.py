"""What actions take and return."""

from __future__ import annotations

from django_convmemory.api.fields import Flag, Text, WholeNumber
from django_convmemory.api.serializers.base import StrictSerializer
from django_convmemory.rules.values import MAX_KEY_LENGTH, MAX_TITLE_LENGTH


class Truncation(StrictSerializer):
    """The position after which all messages are deleted."""

    after = WholeNumber()


class Redaction(StrictSerializer):
    """Whether to redact the message in copies of the session too."""

    forks = Flag(default=True)


class Fork(StrictSerializer):
    """The position at which the copy ends, its key, and its title. Without a title it has that of the original."""

    at = WholeNumber()
    key = Text(max_length=MAX_KEY_LENGTH, required=False)
    title = Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, required=False)
