"""What actions take and return."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from django_convmemory.api.fields import Flag, Text, WholeNumber
from django_convmemory.api.serializers.base import StrictSerializer
from django_convmemory.core.values import MAX_KEY_LENGTH


class Truncation(StrictSerializer):
    """The position after which all messages are deleted."""

    after = WholeNumber()


class Truncated(serializers.Serializer[Any]):
    """The number of messages that were deleted."""

    removed = serializers.IntegerField()


class Redaction(StrictSerializer):
    """Whether to redact the message in copies of the session too."""

    forks = Flag(default=True)


class Redacted(serializers.Serializer[Any]):
    """The number of sessions in which the message was emptied, and whether a worker was folding one of them."""

    sessions = serializers.IntegerField()
    in_flight = serializers.BooleanField()


class Fork(StrictSerializer):
    """The position at which the copy ends, and the key of the copy."""

    at = WholeNumber()
    key = Text(max_length=MAX_KEY_LENGTH, required=False)


class Accepted(serializers.Serializer[Any]):
    """A worker will do what was asked for. ``status`` is the address that shows its progress."""

    status = serializers.URLField()
