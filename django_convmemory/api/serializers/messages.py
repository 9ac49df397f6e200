"""Messages: what a client may store, and what it sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from django_convmemory import clock, models
from django_convmemory.api import conf
from django_convmemory.api.fields import Choice, JSONObject, Metadata, QueryNumber, Text, WholeNumber
from django_convmemory.api.serializers import content
from django_convmemory.api.serializers.base import PageQuery, StrictSerializer, Time
from django_convmemory.context.wire.chat import LONGEST_NAME
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ROLES, ChatMessage
from django_convmemory.rules import usage
from django_convmemory.store import columns


class Content(serializers.JSONField):
    """A string, or a list of content parts: objects with a ``type``."""

    default_error_messages = {"invalid": "The content must be a string, or a list of objects with a type."}

    def to_internal_value(self, data: Any) -> Any:
        parts = isinstance(data, list) and all(
            isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in data
        )
        if not (isinstance(data, str) or parts):
            self.fail("invalid")
        return data


class Name(Text):
    """The name of a speaker."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_length": LONGEST_NAME, **options})


class ToolCalls(serializers.JSONField):
    """The tool calls of an assistant message: objects with an ``id``."""

    default_error_messages = {"invalid": "The tool calls must be a list of objects with an id."}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, list) or not all(
            isinstance(call, Mapping) and isinstance(call.get("id"), str) and call["id"] for call in data
        ):
            self.fail("invalid")
        return data


class NewMessage(StrictSerializer):
    """A message in chat-completions form, with the ``kind`` and ``metadata`` that the site gives it."""

    role = Choice(choices=ROLES)
    content = Content(allow_null=True, required=False)
    name = Name(required=False)
    tool_calls = ToolCalls(required=False)
    tool_call_id = Text(max_length=255, required=False)
    kind = Text(max_length=32, default="chat")
    metadata = Metadata(default=dict)

    def validate(self, attrs: dict[str, Any]) -> Any:
        kind, metadata = attrs.pop("kind"), attrs.pop("metadata")
        try:
            message = ChatMessage.from_openai(attrs, kind=kind, metadata=metadata)
        except InvalidMessage as error:
            raise serializers.ValidationError(str(error), "invalid_message") from None
        errors = content.errors_of(message)
        # The permission is asked for last, because that may take two statements.
        if errors and not self.context["view"].may_write_any_role:
            raise serializers.ValidationError(errors)
        return message


class Messages(serializers.ListField):
    """A list of messages. Its length is checked before its entries are."""

    default_error_messages = {
        "too_many_messages": "The request has {count} messages; the limit is {limit}. Send them in several requests.",
    }

    def to_internal_value(self, data: Any) -> Any:
        limit = conf.limits().max_messages
        if isinstance(data, list) and len(data) > limit:
            self.fail("too_many_messages", count=len(data), limit=limit)
        return super().to_internal_value(data)


class NewMessages(StrictSerializer):
    """The messages to append: all are stored, or none. ``usage`` is what the provider reported for a reply."""

    messages = Messages(child=NewMessage(), min_length=1)
    usage = Metadata(required=False)


class Replacement(NewMessages):
    """The position after which all messages are replaced, and what takes their place."""

    after = WholeNumber()


class MessageChanges(StrictSerializer):
    """What the owner of a session may change of a message."""

    metadata = Metadata(required=False)


class Wire(serializers.Field[Any, Any, Any, Any]):
    """A message in chat-completions form."""

    def to_representation(self, value: ChatMessage) -> Any:
        return value.to_openai()


class UsageSerializer(serializers.Serializer[Any]):
    """The tokens of a reply, as the provider reported them."""

    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="The tokens of the prompt that came from the provider's cache.")
    completion_tokens = serializers.IntegerField()


class MessageSerializer(serializers.Serializer[models.Message]):
    """A stored message. ``id`` is never used again. A position is, after messages were deleted.

    ``usage`` is null unless the site stored it with the reply.

    ``item`` is the item of another framework for which the message stands, in the form that ``format`` names. It is
    null for a message with the format ``chat``, and for a redacted one.
    """

    id = serializers.UUIDField(source="public_id")
    position = serializers.IntegerField()
    message = Wire()
    kind = serializers.CharField()
    metadata = JSONObject()
    format = serializers.CharField()
    item = JSONObject(allow_null=True)
    tokens = serializers.IntegerField()
    usage = UsageSerializer(allow_null=True)
    created_at = Time()
    redacted = serializers.BooleanField()

    def to_representation(self, row: models.Message) -> dict[str, Any]:
        # Without the fields' own methods, which would take most of the time of a page.
        message = columns.message_of_row(row)
        reported = usage.read(row.usage)
        return {
            "id": str(row.public_id),
            "position": row.position,
            "message": message.to_openai(),
            "kind": message.kind,
            "metadata": message.metadata,
            "format": message.format,
            "item": message.item,
            "tokens": row.tokens,
            "usage": reported and reported._asdict(),
            "created_at": self.fields["created_at"].to_representation(
                clock.aware(row.created_at, row._state.db or "default")
            ),
            "redacted": row.redacted_at is not None,
        }


class MessageQuery(PageQuery):
    """The bounds and the order of a list of messages. The source of a bound is its lookup."""

    after = QueryNumber(required=False, source="position__gt")
    before = QueryNumber(required=False, source="position__lt")
    ordering = Choice(choices=["position", "-position"], default="position")
