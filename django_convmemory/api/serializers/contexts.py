"""The context of a session, the versions of its summary, and what a search finds in its messages."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from django_convmemory import models
from django_convmemory.api.serializers import base
from django_convmemory.messages import ROLES
from django_convmemory.search.hits import Hit
from django_convmemory.search.searching import MAX_NEIGHBOURS


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


class HitSessionSerializer(serializers.Serializer[Any]):
    """The session that a hit is in."""

    id = serializers.UUIDField(source="public_id")
    url = serializers.SerializerMethodField()
    title = serializers.CharField()
    archived = base.IsSet(source="archived_at")

    def to_representation(self, hit: Hit) -> Any:
        # A hit has the name of its session. The view has read the rows of these names.
        return super().to_representation(self.context["sessions"][hit.session.name_hash])

    def get_url(self, session: models.Session) -> str:
        url: str = self.context["url"]("session", session)
        return url


class HitSerializer(QuoteSerializer):
    """A message that a search found, with its session. ``neighbours`` is empty unless the request asks for them."""

    session = HitSessionSerializer(source="*")
    neighbours = serializers.SerializerMethodField()

    def get_neighbours(self, hit: Hit) -> list[dict[str, Any]]:
        # A search does not read these fields of the neighbours.
        unread = {"id", "format", "item", "usage"}
        stored = (neighbour.to_json() for neighbour in hit.neighbours)
        return [{name: value for name, value in fields.items() if name not in unread} for fields in stored]
