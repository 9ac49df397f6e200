"""Sessions: what a client may set, how it may filter them, and what it sees of them, of summaries and of hits."""

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
from django_convmemory.messages import ROLES
from django_convmemory.rules.values import MAX_KEY_LENGTH, MAX_TITLE_LENGTH
from django_convmemory.search.hits import Hit
from django_convmemory.search.searching import MAX_NEIGHBOURS
from django_convmemory.store import columns

# In characters: the longest text of a preview, and the longest wire form that is read for one. An image is longer.
MAX_TEXT = 200
_LONGEST_WIRE = 20_000


class LinkSerializer(serializers.Serializer[Any]):
    """The id and the address of a session."""

    id = serializers.UUIDField(source="public_id")
    url = serializers.SerializerMethodField()

    def get_url(self, session: models.Session) -> str:
        return str(self.context["url"]("session", session))


class SessionSerializer(LinkSerializer):
    """A session."""

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
    # Without places, Django sends no statement.
    rows = models.Message.objects.using(using).filter(functools.reduce(operator.or_, places, Q(pk__in=[])))
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

    def get_last_message(self, session: models.Session) -> Any:
        return self.context["last_messages"].get(session.pk)


class NewSession(base.StrictSerializer):
    """The fields of a new session. Every field is optional."""

    alias = base.Alias(default=base.first_alias)
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


class ContextQuery(base.StrictSerializer):
    """The parameters of a context."""

    recall = base.Text(
        required=False,
        help_text=(
            "Quote messages that are not shown any more: those that match the newest user message (`1`), those that "
            "match this text, or none (`0`). By default, the option `recall` of the memory decides."
        ),
    )
    max_tokens = base.QueryNumber(required=False)
    format = base.Choice(choices=["messages", "openai", "text"], default="messages")


class SummarySerializer(serializers.Serializer[Any]):
    """A version of the summary. It covers the conversation up to and including ``last_position``."""

    version = serializers.IntegerField()
    parent_version = serializers.IntegerField(allow_null=True)
    first_position = serializers.IntegerField()
    last_position = serializers.IntegerField()
    text = serializers.CharField()
    tokens = serializers.IntegerField()
    model = serializers.CharField()
    shortened = serializers.BooleanField()
    fallback = serializers.BooleanField()
    stand_in = serializers.BooleanField(
        help_text="The fallback made it because the model was unavailable. It will be rebuilt."
    )
    carried = serializers.BooleanField(
        help_text="No model summarized these messages. The text is that of the version before."
    )
    cut = serializers.BooleanField(help_text="A message was too long, and its rest is not in the text.")
    part = base.IsSet(
        source="part_end", help_text="It ends within the exchange that ends at `last_position`. No context shows it."
    )
    building = serializers.BooleanField(help_text="It is not finished, and no context shows it.")
    valid = serializers.SerializerMethodField()
    created_at = base.Time()

    def get_valid(self, summary: models.Summary) -> bool:
        return summary.invalidated_at is None


class SearchQuery(base.PageQuery):
    """The parameters of a search."""

    q = base.Text(help_text="What to look for: any text, for example a question. Its first 20 000 characters count.")
    neighbours = base.QueryNumber(
        max_value=MAX_NEIGHBOURS,
        default=0,
        help_text="How many messages before and after each hit come with it. A page has fewer hits then.",
    )


class SearchAllQuery(SearchQuery):
    """The parameters of a search in all sessions."""

    alias = base.Alias(required=False, help_text="The memory whose sessions are searched.")


class SearchSessionQuery(SearchQuery):
    """The parameters of a search in one session."""

    after = base.QueryNumber(required=False, help_text="Find only messages after this position.")
    before = base.QueryNumber(required=False, help_text="Find only messages before this position.")


class PieceSerializer(serializers.Serializer[Any]):
    """A piece of an excerpt. ``marked`` is true for words of the query."""

    text = serializers.CharField()
    marked = serializers.BooleanField()


class QuoteSerializer(serializers.Serializer[Any]):
    """A message that a search found. The pieces of the excerpt, one after the other, are its text."""

    position = serializers.IntegerField()
    created_at = base.UTCTime()
    role = serializers.ChoiceField(choices=ROLES)
    excerpt = PieceSerializer(many=True, source="pieces")


class HitSessionSerializer(LinkSerializer):
    """The session that a hit is in."""

    title = serializers.CharField()
    archived = base.IsSet(source="archived_at")

    def to_representation(self, hit: Hit) -> Any:
        # A hit has the name of its session. The view has read the rows of these names.
        return super().to_representation(self.context["sessions"][hit.session.name_hash])


class HitSerializer(QuoteSerializer):
    """A message that a search found, with its session. ``neighbours`` is empty unless the request asks for them."""

    session = HitSessionSerializer(source="*")
    neighbours = serializers.SerializerMethodField()

    def get_neighbours(self, hit: Hit) -> list[dict[str, Any]]:
        # A search does not read these fields of the neighbours.
        unread = {"id", "format", "item", "usage"}
        stored = (neighbour.to_json() for neighbour in hit.neighbours)
        return [{name: value for name, value in fields.items() if name not in unread} for fields in stored]
