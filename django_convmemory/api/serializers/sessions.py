"""Sessions: what a client may set, how it may filter them, and what it sees."""

from __future__ import annotations

import functools
import json
import operator
import uuid
from collections.abc import Sequence
from typing import Any, TypedDict

from django.db.models import Q
from django.db.models.functions import Left
from rest_framework import serializers

from django_convmemory import clock, models
from django_convmemory.api.serializers import base
from django_convmemory.rules.values import MAX_KEY_LENGTH, MAX_TITLE_LENGTH
from django_convmemory.store import columns

# In characters: the longest text of a preview, and the longest wire form that is read for one. An image is longer.
MAX_TEXT = 200
_LONGEST_WIRE = 20_000


class SessionSerializer(serializers.Serializer[Any]):
    """A session."""

    id = serializers.UUIDField(source="public_id")
    url = serializers.SerializerMethodField()
    alias = serializers.CharField()
    key = serializers.CharField()
    title = serializers.CharField()
    metadata = base.JSONObject()
    archived = base.IsSet(source="archived_at")
    starred = base.IsSet(source="starred_at")
    state = serializers.ChoiceField(choices=models.SessionState.choices)
    messages = serializers.IntegerField(source="last_position")
    tokens = serializers.SerializerMethodField()
    covered_position = serializers.IntegerField()
    current_version = serializers.IntegerField()
    forked_from = serializers.SerializerMethodField()
    fork_position = serializers.IntegerField(allow_null=True)
    revision = serializers.IntegerField()
    created_at = base.Time()
    updated_at = base.Time()

    def get_url(self, session: models.Session) -> str:
        url: str = self.context["url"]("session", session)
        return url

    def get_forked_from(self, session: models.Session) -> uuid.UUID | None:
        """The id of the session that this one is a copy of. Null also if that session is not yours."""
        # A row that is no fork may come without the annotation.
        parent: uuid.UUID | None = session.parent if session.forked_from_id else None  # type: ignore[attr-defined]
        return parent

    def get_tokens(self, session: models.Session) -> int:
        return session.unpinned_tokens + session.pinned_tokens


def last_messages(sessions: Sequence[models.Session], using: str) -> dict[int, dict[str, Any]]:
    """Return the previews of the last messages of ``sessions``, by the primary keys of the sessions."""
    places = [Q(session_id=session.pk, position=session.last_position) for session in sessions if session.last_position]
    if not places:
        return {}
    rows = models.Message.objects.using(using).filter(functools.reduce(operator.or_, places))
    names = ("session_id", "position", "role", "created_at", "redacted_at")
    return {
        session_id: {
            "position": position,
            "role": role,
            "text": "" if redacted_at else _text(role, content, wire),
            "created_at": clock.aware(created_at, using),
            "redacted": redacted_at is not None,
        }
        for session_id, position, role, created_at, redacted_at, content, wire in rows.values_list(
            *names, Left("content", MAX_TEXT), Left("wire", _LONGEST_WIRE + 1)
        )
    }


def _text(role: str, content: str | None, wire: str | None) -> str:
    if content is None and wire is not None and len(wire) <= _LONGEST_WIRE:
        content = columns.message_of(role, "", None, json.loads(wire), None).text
    return (content or "")[:MAX_TEXT]


class ListedSessionSerializer(SessionSerializer):
    """A session in a list. ``last_message`` is null if it has no messages."""

    last_message = serializers.SerializerMethodField()

    def get_last_message(self, session: models.Session) -> dict[str, Any] | None:
        preview: dict[str, Any] | None = self.context["last_messages"].get(session.pk)
        return preview


class NewSession(base.StrictSerializer):
    """The fields of a new session. Every field is optional."""

    alias = base.Alias(default=base.FirstAlias())
    key = base.Text(max_length=MAX_KEY_LENGTH, required=False)
    title = base.Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, default="")
    metadata = base.Metadata(default=dict)


class SessionChanges(base.StrictSerializer):
    """The fields of a session that its owner may change."""

    title = base.Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, required=False)
    metadata = base.Metadata(required=False)
    archived = base.Flag(required=False)
    starred = base.Flag(required=False)


class SessionQuery(base.PageQuery):
    """The filters and the order of a list of sessions. The source of a filter is its lookup."""

    alias = base.Alias(required=False)
    state = base.Choice(choices=models.SessionState.choices, required=False)
    created_after = base.Moment(required=False, source="created_at__gte")
    created_before = base.Moment(required=False, source="created_at__lt")
    updated_after = base.Moment(required=False, source="updated_at__gte")
    updated_before = base.Moment(required=False, source="updated_at__lt")
    key = base.Text(max_length=MAX_KEY_LENGTH, required=False)
    search = base.Text(max_length=255, required=False, source="title__icontains")
    archived = base.Choice(choices=["false", "true", "any"], default="false")
    starred = base.Choice(choices=["false", "true", "any"], default="any")
    ordering = base.Choice(
        choices=["-created", "created", "-updated", "updated", "-starred", "starred"],
        default="-created",
        help_text="By `starred`, only starred sessions are listed, by the time when they were starred.",
    )


class Truncation(base.StrictSerializer):
    """The message after which all messages are deleted, by its id. null: all messages."""

    after = base.MessageId(allow_null=True)


class Fork(base.StrictSerializer):
    """The id of the message with which the copy ends, its key, and its title. Without one it has the original's."""

    at = base.MessageId()
    key = base.Text(max_length=MAX_KEY_LENGTH, required=False)
    title = base.Text(max_length=MAX_TITLE_LENGTH, allow_blank=True, required=False)


class Lag(TypedDict):
    """What no summary covers yet."""

    messages: int
    tokens: int


class StatusSerializer(serializers.Serializer[Any]):
    """The state of a session's compaction."""

    state = serializers.ChoiceField(choices=models.SessionState.choices)
    pause = serializers.ChoiceField(
        choices=models.AliasState.REASONS,
        allow_null=True,
        help_text="Why the model of the session's memory is not called now, or null if it is.",
    )
    due_since = base.Time(allow_null=True)
    lag = serializers.SerializerMethodField()
    attempts = serializers.IntegerField()
    next_attempt_at = base.Time(allow_null=True)
    last_error = serializers.SerializerMethodField()
    last_position = serializers.IntegerField()
    covered_position = serializers.IntegerField()
    current_version = serializers.IntegerField()
    revision = serializers.IntegerField()

    def get_lag(self, session: models.Session) -> Lag:
        """The messages and tokens that no summary covers yet."""
        counters = session.counters
        return {"messages": counters.tail_count, "tokens": counters.tail_tokens}

    def get_last_error(self, session: models.Session) -> str:
        """The kind of the last error. Only the site's staff see the provider's message, in the admin."""
        return session.last_error.partition(":")[0]
