"""Sessions: what a client may set, how it may filter them, and what it sees."""

from __future__ import annotations

import uuid
from typing import Any, TypedDict

from rest_framework import serializers

from django_convmemory import models
from django_convmemory.api import previews
from django_convmemory.api.fields import Alias, Choice, FirstAlias, Flag, JSONObject, Metadata, Text
from django_convmemory.api.serializers.base import Moment, PageQuery, RowSerializer, StrictSerializer, UTCTime
from django_convmemory.messages import ROLES
from django_convmemory.rules.values import MAX_KEY_LENGTH, MAX_TITLE_LENGTH


class SessionSerializer(RowSerializer):
    """A session."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    state = serializers.ChoiceField(choices=models.SessionState.choices, read_only=True)
    messages = serializers.IntegerField(source="last_position", read_only=True)
    tokens = serializers.SerializerMethodField()
    metadata = JSONObject(read_only=True)
    url = serializers.SerializerMethodField()
    archived = serializers.SerializerMethodField()
    starred = serializers.SerializerMethodField()
    forked_from = serializers.SerializerMethodField()

    class Meta:
        model = models.Session
        fields = [
            "id",
            "url",
            "alias",
            "key",
            "title",
            "metadata",
            "archived",
            "starred",
            "state",
            "messages",
            "tokens",
            "covered_position",
            "current_version",
            "forked_from",
            "fork_position",
            "revision",
            "created_at",
            "updated_at",
        ]
        read_only_fields = fields

    def get_url(self, session: models.Session) -> str:
        url: str = self.context["url"]("session", session)
        return url

    def get_archived(self, session: models.Session) -> bool:
        return session.archived_at is not None

    def get_starred(self, session: models.Session) -> bool:
        return session.starred_at is not None

    def get_forked_from(self, session: models.Session) -> uuid.UUID | None:
        """The id of the session that this one is a copy of. Null also if that session is not yours."""
        # A row that is no fork may come without the annotation.
        parent: uuid.UUID | None = session.parent if session.forked_from_id else None  # type: ignore[attr-defined]
        return parent

    def get_tokens(self, session: models.Session) -> int:
        return session.unpinned_tokens + session.pinned_tokens


class PreviewSerializer(serializers.Serializer[Any]):
    """The last message of a session, for a list."""

    position = serializers.IntegerField()
    role = serializers.ChoiceField(choices=ROLES)
    text = serializers.CharField(
        help_text=(
            f"The first {previews.MAX_TEXT} characters of its text. Empty if it is redacted, or has tool calls or "
            "images only."
        )
    )
    created_at = UTCTime()
    redacted = serializers.BooleanField()


class ListedSessionSerializer(SessionSerializer):
    """A session in a list. ``last_message`` is null if it has no messages."""

    last_message = serializers.SerializerMethodField()

    class Meta(SessionSerializer.Meta):
        fields = [*SessionSerializer.Meta.fields, "last_message"]
        read_only_fields = fields

    def get_last_message(self, session: models.Session) -> dict[str, Any] | None:
        preview = self.context["last_messages"].get(session.pk)
        return None if preview is None else dict(PreviewSerializer(preview).data)


class NewSession(StrictSerializer):
    """The fields of a new session. Every field is optional."""

    alias = Alias(default=FirstAlias())
    key = Text(max_length=MAX_KEY_LENGTH, required=False)
    title = Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, default="")
    metadata = Metadata(default=dict)


class SessionChanges(StrictSerializer):
    """The fields of a session that its owner may change."""

    title = Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, required=False)
    metadata = Metadata(required=False)
    archived = Flag(required=False)
    starred = Flag(required=False)


class SessionQuery(PageQuery):
    """The filters and the order of a list of sessions. The source of a filter is its lookup."""

    alias = Alias(required=False)
    state = Choice(choices=models.SessionState.choices, required=False)
    created_after = Moment(required=False, source="created_at__gte")
    created_before = Moment(required=False, source="created_at__lt")
    updated_after = Moment(required=False, source="updated_at__gte")
    updated_before = Moment(required=False, source="updated_at__lt")
    key = Text(max_length=MAX_KEY_LENGTH, required=False)
    search = Text(max_length=255, required=False, source="title__icontains")
    archived = Choice(choices=["false", "true", "any"], default="false")
    starred = Choice(choices=["false", "true", "any"], default="any")
    ordering = Choice(
        choices=["-created", "created", "-updated", "updated", "-starred", "starred"],
        default="-created",
        help_text="By `starred`, only starred sessions are listed, by the time when they were starred.",
    )


class Lag(TypedDict):
    """What no summary covers yet."""

    messages: int
    tokens: int


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

    def get_lag(self, session: models.Session) -> Lag:
        """The messages and tokens that no summary covers yet."""
        counters = session.counters
        return {
            "messages": counters.unpinned_count - counters.covered_count,
            "tokens": counters.unpinned_tokens - counters.covered_tokens,
        }

    def get_last_error(self, session: models.Session) -> str:
        """The kind of the last error. Only the site's staff see the provider's message, in the admin."""
        return session.last_error.partition(":")[0]
