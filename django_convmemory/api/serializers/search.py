"""Searches and their hits."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from django_convmemory import models
from django_convmemory.api.fields import Alias, JSONObject, QueryNumber, Text
from django_convmemory.api.serializers.base import PageQuery, UTCTime
from django_convmemory.api.serializers.messages import Wire
from django_convmemory.messages import ROLES
from django_convmemory.search.hits import Hit
from django_convmemory.search.searching import MAX_NEIGHBOURS


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
    archived = serializers.SerializerMethodField()

    def to_representation(self, hit: Hit) -> Any:
        # A hit has the name of its session. The view has read the rows of these names.
        return super().to_representation(self.context["sessions"][hit.session.name_hash])

    def get_url(self, session: models.Session) -> str:
        url: str = self.context["url"]("session", session)
        return url

    def get_archived(self, session: models.Session) -> bool:
        return session.archived_at is not None


class NeighbourSerializer(serializers.Serializer[Any]):
    """A stored message before or after a hit."""

    position = serializers.IntegerField()
    message = Wire()
    kind = serializers.CharField(source="message.kind")
    metadata = JSONObject(source="message.metadata")
    tokens = serializers.IntegerField()
    created_at = UTCTime()
    redacted = serializers.BooleanField()


class HitSerializer(QuoteSerializer):
    """A message that a search found, with its session. ``neighbours`` is empty unless the request asks for them."""

    session = HitSessionSerializer(source="*")
    neighbours = NeighbourSerializer(many=True)
