"""What actions take and return."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from django_convmemory.api.fields import Flag, Text, WholeNumber
from django_convmemory.api.serializers.base import StrictSerializer
from django_convmemory.core.values import MAX_KEY_LENGTH, MAX_TITLE_LENGTH

# The most sessions that one request deletes.
MAX_DELETED = 100


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
    """The position at which the copy ends, its key, and its title. Without a title it has that of the original."""

    at = WholeNumber()
    key = Text(max_length=MAX_KEY_LENGTH, required=False)
    title = Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, required=False)


class SessionId(serializers.UUIDField):
    """The id of a session. A number is none."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class SessionIds(StrictSerializer):
    """The sessions to delete."""

    ids = serializers.ListField(child=SessionId(), min_length=1, max_length=MAX_DELETED)


class Deleted(serializers.Serializer[Any]):
    """The number of sessions that were deleted."""

    deleted = serializers.IntegerField()


class Accepted(serializers.Serializer[Any]):
    """A worker will do what was asked for. ``status`` is the address that shows its progress."""

    status = serializers.URLField()
