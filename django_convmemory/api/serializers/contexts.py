"""The context of a session, and the versions of its summary."""

from __future__ import annotations

from rest_framework import serializers

from django_convmemory import models
from django_convmemory.api.fields import Choice, QueryNumber, Text
from django_convmemory.api.serializers.base import RowSerializer, StrictSerializer


class ContextQuery(StrictSerializer):
    """The parameters of a context."""

    recall = Text(
        required=False,
        help_text=(
            "Quote messages that are not shown any more: those that match the newest user message (`1`), those that "
            "match this text, or none (`0`). By default, the option `recall` of the memory decides."
        ),
    )
    max_tokens = QueryNumber(required=False)
    format = Choice(choices=["messages", "openai", "text"], default="messages")


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
