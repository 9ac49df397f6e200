"""What the API accepts and what it returns.

Input with an unknown field is refused. Otherwise a misspelt field would be ignored without a word.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, get_args

from django.conf import settings
from django.db import router
from django.db.models import DateTimeField
from rest_framework import ISO_8601, serializers

from django_convmemory import clock, models
from django_convmemory.api import conf
from django_convmemory.api.fields import Alias, Choice, Flag, Metadata, PageSize, QueryNumber, Text, WholeNumber
from django_convmemory.conf import DEFAULT_ALIAS
from django_convmemory.conversation import Receipt
from django_convmemory.core import usage
from django_convmemory.core.context import PartName
from django_convmemory.core.hits import Hit
from django_convmemory.core.search import MAX_NEIGHBOURS
from django_convmemory.core.values import MAX_KEY_LENGTH, MAX_TITLE_LENGTH
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.maintenance.explain import Disposition, Explained
from django_convmemory.messages import ROLES, ChatMessage
from django_convmemory.stores import columns

# How many unknown fields an error names.
_MAX_NAMED = 5


class StrictSerializer(serializers.Serializer[Any]):
    """Input that refuses unknown fields."""

    default_error_messages = {"unknown_field": "This field does not exist. Allowed fields: {fields}."}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and not data.keys() <= self.fields.keys():
            known = ", ".join(name for name, field in self.fields.items() if not field.read_only) or "none"
            error = self.error_messages["unknown_field"].format(fields=known)
            unknown = sorted(data.keys() - self.fields.keys())[:_MAX_NAMED]
            raise serializers.ValidationError(
                {name: [serializers.ErrorDetail(error, "unknown_field")] for name in unknown}
            )
        return super().to_internal_value(data)


class UTCTime(serializers.DateTimeField):
    """A time with a zone, in UTC, whatever time zone and format the site uses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"format": ISO_8601, "default_timezone": dt.UTC, **options})


class Time(UTCTime):
    """The time of a row, which has no zone if the site uses none."""

    def get_attribute(self, instance: Any) -> Any:
        moment = super().get_attribute(instance)
        return moment and clock.aware(moment, instance._state.db)


class RowSerializer(serializers.ModelSerializer[Any]):
    """A row of the database, as the API shows it."""

    serializer_field_mapping = {**serializers.ModelSerializer.serializer_field_mapping, DateTimeField: Time}


# Sessions.


class SessionSerializer(RowSerializer):
    """A session."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    state = serializers.ChoiceField(choices=models.SessionState.choices, read_only=True)
    messages = serializers.IntegerField(source="last_position", read_only=True)
    tokens = serializers.SerializerMethodField()
    metadata = serializers.JSONField(read_only=True)
    url = serializers.SerializerMethodField()

    class Meta:
        model = models.Session
        fields = [
            "id",
            "url",
            "alias",
            "key",
            "title",
            "metadata",
            "state",
            "messages",
            "tokens",
            "covered_position",
            "current_version",
            "fork_position",
            "revision",
            "created_at",
            "updated_at",
        ]
        read_only_fields = fields

    def get_url(self, session: models.Session) -> str:
        url: str = self.context["url"]("session", session)
        return url

    def get_tokens(self, session: models.Session) -> int:
        return session.unpinned_tokens + session.pinned_tokens


class NewSession(StrictSerializer):
    """The fields of a new session. Every field is optional."""

    alias = Alias(default=DEFAULT_ALIAS)
    key = Text(max_length=MAX_KEY_LENGTH, required=False)
    title = Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, default="")
    metadata = Metadata(default=dict)


class SessionChanges(StrictSerializer):
    """The fields of a session that its owner may change."""

    title = Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, required=False)
    metadata = Metadata(required=False)


_ZONED = re.compile(r"[-\d]+[Tt ][\d:.]+(?:[Zz]|[-+]\d\d:\d\d)", re.ASCII)


class Moment(serializers.DateTimeField):
    """A time with a time zone (RFC 3339)."""

    def __init__(self, **options: Any) -> None:
        # In UTC, because converting the first or the last possible hour to the site's zone would overflow.
        super().__init__(**{"input_formats": [ISO_8601], "default_timezone": dt.UTC, **options})

    def to_internal_value(self, value: Any) -> Any:
        if not isinstance(value, str) or not _ZONED.fullmatch(value):
            self.fail("invalid", format='RFC 3339 with a time zone: 2026-01-31T12:00:00Z, or +02:00 (write "+" as %2B)')
        moment = super().to_internal_value(value)
        try:
            return moment if settings.USE_TZ else clock.naive(moment, router.db_for_write(models.Session))
        except OverflowError:  # The site's own zone has no such time.
            self.fail("overflow")


class PageQuery(StrictSerializer):
    """The parameters of every list."""

    cursor = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="The start of the page. Take it from the `next` or `previous` address of another page.",
    )
    limit = PageSize(required=False)


class SessionQuery(PageQuery):
    """The filters and the order of a list of sessions. The source of a filter is its lookup."""

    alias = Alias(required=False)
    state = Choice(choices=models.SessionState.choices, required=False)
    created_after = Moment(required=False, source="created_at__gte")
    created_before = Moment(required=False, source="created_at__lt")
    updated_after = Moment(required=False, source="updated_at__gte")
    updated_before = Moment(required=False, source="updated_at__lt")
    search = Text(max_length=255, required=False, source="title__icontains")
    ordering = Choice(choices=["-created", "created", "-updated", "updated"], default="-created")


class StatusSerializer(RowSerializer):
    """The state of a session's compaction."""

    state = serializers.ChoiceField(choices=models.SessionState.choices, read_only=True)
    pause = serializers.ChoiceField(
        choices=models.AliasState.REASONS,
        allow_null=True,
        read_only=True,
        help_text="Why the model of the session's memory is not called now, or null if it is.",
    )
    lag = serializers.SerializerMethodField()
    last_error = serializers.SerializerMethodField()

    class Meta:
        model = models.Session
        fields = [
            "state",
            "pause",
            "due_since",
            "lag",
            "attempts",
            "next_attempt_at",
            "last_error",
            "last_position",
            "covered_position",
            "current_version",
            "revision",
        ]
        read_only_fields = fields

    def get_lag(self, session: models.Session) -> dict[str, int]:
        """The messages and tokens that no summary covers yet: ``{"messages", "tokens"}``."""
        counters = session.counters
        return {
            "messages": counters.unpinned_count - counters.covered_count,
            "tokens": counters.unpinned_tokens - counters.covered_tokens,
        }

    def get_last_error(self, session: models.Session) -> str:
        """The kind of the last error. Only the site's staff see the provider's message, in the admin."""
        return session.last_error.partition(":")[0]


# Messages.


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
    name = Text(max_length=64, required=False)
    tool_calls = ToolCalls(required=False)
    tool_call_id = Text(max_length=255, required=False)
    kind = Text(max_length=32, default="chat")
    metadata = Metadata(default=dict)

    def validate(self, attrs: dict[str, Any]) -> Any:
        kind, metadata = attrs.pop("kind"), attrs.pop("metadata")
        try:
            return ChatMessage.from_openai(attrs, kind=kind, metadata=metadata)
        except InvalidMessage as error:
            raise serializers.ValidationError(str(error), "invalid_message") from None


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


class ReceiptSerializer(serializers.Serializer[Receipt]):
    """The result of an append."""

    first_position = serializers.IntegerField()
    last_position = serializers.IntegerField()
    tokens = serializers.IntegerField()
    due = serializers.BooleanField()
    replayed = serializers.BooleanField()


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
    """A stored message. ``usage`` is null unless the site stored it with the reply.

    ``item`` is the item of another framework for which the message stands, in the form that ``format`` names. It is
    null for a message with the format ``chat``, and for a redacted one.
    """

    position = serializers.IntegerField()
    message = Wire()
    kind = serializers.CharField()
    metadata = serializers.JSONField()
    format = serializers.CharField()
    item = serializers.JSONField(allow_null=True)
    tokens = serializers.IntegerField()
    usage = UsageSerializer(allow_null=True)
    created_at = Time()
    redacted = serializers.BooleanField()

    def to_representation(self, row: models.Message) -> dict[str, Any]:
        # Without the fields' own methods, which would take most of the time of a page.
        message = columns.message_of_row(row)
        reported = usage.read(row.usage)
        return {
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


# Search.


class SearchQuery(PageQuery):
    """The parameters of a search."""

    q = Text(help_text="What to look for: any text, for example a question. Its first 20 000 characters count.")
    neighbours = QueryNumber(
        max_value=MAX_NEIGHBOURS,
        default=0,
        help_text="How many messages before and after each hit come with it. A page has fewer hits then.",
    )


class SearchAllQuery(SearchQuery):
    """The parameters of a search in all sessions."""

    alias = Alias(required=False, help_text="The memory whose sessions are searched.")


class SearchSessionQuery(SearchQuery):
    """The parameters of a search in one session."""

    after = QueryNumber(required=False, help_text="Find only messages after this position.")
    before = QueryNumber(required=False, help_text="Find only messages before this position.")


class PieceSerializer(serializers.Serializer[Any]):
    """A piece of an excerpt. ``marked`` is true for words of the query."""

    text = serializers.CharField()
    marked = serializers.BooleanField()


class QuoteSerializer(serializers.Serializer[Any]):
    """A message that a search found. The pieces of the excerpt, one after the other, are its text."""

    position = serializers.IntegerField()
    created_at = UTCTime()
    role = serializers.ChoiceField(choices=ROLES)
    excerpt = PieceSerializer(many=True, source="pieces")


class HitSessionSerializer(serializers.Serializer[Any]):
    """The session that a hit is in."""

    id = serializers.UUIDField(source="public_id")
    url = serializers.SerializerMethodField()
    title = serializers.CharField()

    def to_representation(self, hit: Hit) -> Any:
        # A hit has the name of its session. The view has read the rows of these names.
        return super().to_representation(self.context["sessions"][hit.session.name_hash])

    def get_url(self, session: models.Session) -> str:
        url: str = self.context["url"]("session", session)
        return url


class NeighbourSerializer(serializers.Serializer[Any]):
    """A stored message before or after a hit."""

    position = serializers.IntegerField()
    message = Wire()
    kind = serializers.CharField(source="message.kind")
    metadata = serializers.JSONField(source="message.metadata")
    tokens = serializers.IntegerField()
    created_at = UTCTime()
    redacted = serializers.BooleanField()


class HitSerializer(QuoteSerializer):
    """A message that a search found, with its session. ``neighbours`` is empty unless the request asks for them."""

    session = HitSessionSerializer(source="*")
    neighbours = NeighbourSerializer(many=True)


# The context.


class ContextQuery(StrictSerializer):
    """The parameters of a context. With ``explain=1`` the response also explains each message, a page at a time."""

    recall = Text(
        required=False,
        help_text=(
            "Quote messages that are not shown any more: those that match the newest user message (`1`), those that "
            "match this text, or none (`0`). By default, the option `recall` of the memory decides."
        ),
    )
    max_tokens = QueryNumber(required=False)
    format = Choice(choices=["messages", "openai", "text"], default="messages")
    explain = Choice(choices=["0", "1"], default="0")
    before = QueryNumber(required=False)
    limit = PageSize(required=False)


class PartSerializer(serializers.Serializer[Any]):
    """A message of a context, and the part of the context that it belongs to."""

    part = serializers.ChoiceField(choices=list(get_args(PartName)))
    position = serializers.IntegerField(allow_null=True)
    tokens = serializers.IntegerField()
    message = Wire()


class ExplainedSerializer(serializers.Serializer[Explained]):
    """A message of the session, and whether the context shows it, folds it or omits it."""

    position = serializers.IntegerField()
    role = serializers.ChoiceField(choices=ROLES)
    tokens = serializers.IntegerField()
    disposition = serializers.ChoiceField(choices=[disposition.value for disposition in Disposition])
    version = serializers.IntegerField(allow_null=True)


class ContextMessages(serializers.JSONField):
    """The messages of a context: with the part that each belongs to, or in the form that a provider takes."""


class ContextSerializer(serializers.Serializer[Any]):
    """What a model is sent next. ``format=text`` gives ``text``; the other formats give ``messages``."""

    messages = ContextMessages(required=False)
    text = serializers.CharField(required=False)
    summary = serializers.CharField(allow_null=True)
    covered_position = serializers.IntegerField()
    tokens = serializers.IntegerField()
    omitted = serializers.IntegerField()
    over_budget = serializers.BooleanField()
    pending = serializers.BooleanField()
    recalled = QuoteSerializer(many=True, help_text="The stored messages that are quoted because of `recall`.")
    revision = serializers.IntegerField()
    explanation = ExplainedSerializer(many=True, required=False)


# Summaries.


class SummarySerializer(RowSerializer):
    """A version of the summary. It covers the conversation up to and including ``last_position``."""

    part = serializers.SerializerMethodField()
    valid = serializers.SerializerMethodField()

    class Meta:
        model = models.Summary
        extra_kwargs = {
            "stand_in": {"help_text": "The fallback made it because the model was unavailable. It is made again."},
            "carried": {"help_text": "No model summarized these messages. The text is that of the version before."},
            "cut": {"help_text": "A message was too long, and its rest is not in the text."},
            "building": {"help_text": "It is not finished, and no context shows it."},
        }
        fields = [
            "version",
            "parent_version",
            "first_position",
            "last_position",
            "text",
            "tokens",
            "model",
            "shortened",
            "fallback",
            "stand_in",
            "carried",
            "cut",
            "part",
            "building",
            "valid",
            "created_at",
        ]
        read_only_fields = fields

    def get_part(self, summary: models.Summary) -> bool:
        """Whether it ends within the exchange that ends at ``last_position``. No context shows it."""
        return summary.part_end is not None

    def get_valid(self, summary: models.Summary) -> bool:
        return summary.invalidated_at is None


# Actions.


class Nothing(StrictSerializer):
    """An empty body: the action takes no fields."""


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


# Errors.


class ProblemError(serializers.Serializer[Any]):
    pointer = serializers.CharField(
        help_text="The place of the error in the body, or the query parameter (a JSON pointer, RFC 6901)."
    )
    detail = serializers.CharField()
    code = serializers.CharField()


class Problem(serializers.Serializer[Any]):
    """An error (problem details, RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField(help_text="The kind of the error, for programs: it does not change between releases.")
    errors = ProblemError(many=True, required=False)  # type: ignore[assignment]
