"""The context of a session, and the versions of its summary."""

from __future__ import annotations

from typing import Any, get_args

from rest_framework import serializers

from django_convmemory import models
from django_convmemory.api.fields import Choice, PageSize, QueryNumber, Text
from django_convmemory.api.serializers.base import RowSerializer, StrictSerializer
from django_convmemory.api.serializers.messages import Wire
from django_convmemory.api.serializers.search import QuoteSerializer
from django_convmemory.core.context import PartName
from django_convmemory.maintenance.explain import Disposition, Explained
from django_convmemory.messages import ROLES


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


class SummarySerializer(RowSerializer):
    """A version of the summary. It covers the conversation up to and including ``last_position``."""

    part = serializers.SerializerMethodField()
    valid = serializers.SerializerMethodField()

    class Meta:
        model = models.Summary
        extra_kwargs = {
            "stand_in": {"help_text": "The fallback made it because the model was unavailable. It will be rebuilt."},
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
