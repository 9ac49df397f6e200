"""Responses that the views make without a serializer, described for the schema."""

from __future__ import annotations

from typing import Any, Literal, get_args

from rest_framework import serializers

from django_convmemory.api import pagination
from django_convmemory.api.serializers import base
from django_convmemory.api.serializers.sessions import MAX_TEXT, QuoteSerializer
from django_convmemory.context.assembly import PartName
from django_convmemory.messages import ROLES
from django_convmemory.rules.values import Receipt


class Wire(serializers.JSONField):
    """A message in chat-completions form."""


class UsageSerializer(serializers.Serializer[Any]):
    """The tokens of a reply, as the provider reported them."""

    prompt_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="The tokens of the prompt that came from the provider's cache.")
    completion_tokens = serializers.IntegerField()


class MessageSerializer(serializers.Serializer[Any]):
    """A stored message. ``id`` is never used again. A position is, after messages were deleted.

    ``usage`` is null unless the site stored it with the reply.

    ``item`` is the item of another framework for which the message stands, in the form that ``format`` names. It is
    null for a message with the format ``chat``, and for a redacted one.
    """

    id = serializers.UUIDField()
    position = serializers.IntegerField()
    message = Wire()
    kind = serializers.CharField()
    metadata = base.JSONObject()
    format = serializers.CharField()
    item = base.JSONObject(allow_null=True)
    tokens = serializers.IntegerField()
    usage = UsageSerializer(allow_null=True)
    reply_to = serializers.IntegerField(
        allow_null=True, help_text="The position of the question, of a message that a turn has stored."
    )
    cut_off = serializers.CharField(
        allow_null=True, help_text="Of the reply of a turn: length, stopped or lost if it was cut off, otherwise empty."
    )
    created_at = serializers.DateTimeField()
    redacted = serializers.BooleanField()


class NeighbourSerializer(serializers.Serializer[Any]):
    """A stored message before or after a hit."""

    position = serializers.IntegerField()
    message = Wire()
    kind = serializers.CharField()
    metadata = base.JSONObject()
    tokens = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    redacted = serializers.BooleanField()
    reply_to = serializers.IntegerField(allow_null=True)
    cut_off = serializers.CharField(allow_null=True)


class TurnSerializer(serializers.Serializer[Any]):
    """A question and its reply. ``messages`` are all of the turn: the question, calls, their results, and the reply.

    ``open``: a request is answering the question now. ``replayed``: an earlier request has stored the reply.
    ``usage`` is null if the provider reported none.
    """

    open = serializers.BooleanField()
    question = MessageSerializer()
    reply = MessageSerializer(allow_null=True)
    messages = MessageSerializer(many=True)
    usage = UsageSerializer(allow_null=True)
    replayed = serializers.BooleanField()


class PreviewSerializer(serializers.Serializer[Any]):
    """The last message of a session, for a list."""

    position = serializers.IntegerField()
    role = serializers.ChoiceField(choices=ROLES)
    text = serializers.CharField(
        help_text=(
            f"The first {MAX_TEXT} characters of its text. Empty if it is redacted, or has tool calls or images only."
        )
    )
    created_at = serializers.DateTimeField()
    redacted = serializers.BooleanField()


class Truncated(serializers.Serializer[Any]):
    """The number of messages that were deleted."""

    removed = serializers.IntegerField()


class Redacted(serializers.Serializer[Any]):
    """The number of sessions in which the message was emptied, and whether a worker was folding one of them."""

    sessions = serializers.IntegerField()
    in_flight = serializers.BooleanField()


class Accepted(serializers.Serializer[Any]):
    """A worker will do what was asked for. ``status`` is the address that shows its progress."""

    status = serializers.URLField()


class ReceiptSerializer(serializers.Serializer[Receipt]):
    """The result of an append, with the messages that are stored. ``ids`` are those of the messages."""

    first_position = serializers.IntegerField()
    last_position = serializers.IntegerField()
    tokens = serializers.IntegerField()
    due = serializers.BooleanField()
    replayed = serializers.BooleanField()
    ids = serializers.ListField(child=serializers.UUIDField())
    messages = MessageSerializer(many=True)


class PartSerializer(serializers.Serializer[Any]):
    """A message of a context, and the part of the context that it belongs to."""

    part = serializers.ChoiceField(choices=list(get_args(PartName)))
    position = serializers.IntegerField(allow_null=True)
    tokens = serializers.IntegerField()
    message = Wire()


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


# What a problem document has as its ``code``. docs/reference/api.md says what a client does about each. The codes do
# not change between releases.
ProblemCode = Literal[
    "authentication_failed",
    "body_too_large",
    "broker_unavailable",
    "csrf_failed",
    "database_unavailable",
    "empty_reply",
    "idempotency_conflict",
    "invalid",
    "invalid_argument",
    "invalid_etag",
    "invalid_idempotency_key",
    "invalid_message",
    "invalid_session",
    "length_required",
    "message_redacted",
    "message_too_large",
    "method_not_allowed",
    "not_acceptable",
    "not_authenticated",
    "not_found",
    "nothing_to_answer",
    "nothing_to_do",
    "outcome_unknown",
    "parse_error",
    "permission_denied",
    "precondition_required",
    "question_changed",
    "responder_failed",
    "role_not_allowed",
    "session_contended",
    "session_exists",
    "stale_revision",
    "throttled",
    "too_many_pinned",
    "too_many_streams",
    "tool_result_refused",
    "turn_in_progress",
    "turn_lost",
    "unknown_alias",
    "unknown_message",
    "unknown_version",
    "unsupported_media_type",
]

# What an entry of ``errors`` has as its ``code``: the kind of one wrong value. They do not change between releases.
ValueCode = Literal[
    "address_not_allowed",
    "blank",
    "content_part_not_allowed",
    "empty",
    "empty_content",
    "invalid",
    "invalid_choice",
    "invalid_message",
    "invalid_name",
    "kind_not_allowed",
    "max_length",
    "max_value",
    "message_too_large",
    "min_length",
    "min_value",
    "not_a_list",
    "not_a_pdf",
    "not_an_object",
    "not_base64",
    "null",
    "null_characters_not_allowed",
    "out_of_range",
    "overflow",
    "required",
    "too_deep",
    "too_large",
    "too_many_messages",
    "unknown_alias",
    "unknown_field",
    "unstorable",
]


class Code(serializers.ChoiceField):
    """A code of an error. ``component`` is the name of the enumeration in the schema."""

    def __init__(self, known: Any, component: str) -> None:
        super().__init__(choices=get_args(known))
        self.component = component


class ProblemError(serializers.Serializer[Any]):
    """A value that is wrong."""

    pointer = serializers.CharField(
        help_text="The place of the error in the body, or the query parameter (a JSON pointer, RFC 6901)."
    )
    detail = serializers.CharField()
    code = Code(ValueCode, "ValueCode")


class Problem(serializers.Serializer[Any]):
    """An error (problem details, RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = Code(ProblemCode, "ProblemCode")
    errors = ProblemError(many=True, required=False)  # type: ignore[assignment]


class HitPages(pagination.HitPages):
    """Pages of hits. They say whether messages were left out."""

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        address = {"type": "string", "nullable": True, "format": "uri"}
        complete = {
            "type": "boolean",
            "description": "False if messages were left out, because there are too many or they are not indexed yet.",
        }
        properties = {"next": address, "previous": address, "complete": complete, "results": schema}
        return {"type": "object", "required": list(properties), "properties": properties}


class Pages(pagination.Pages):
    """Pages of a list. ``next`` and ``previous`` may be null, and are always there."""

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        page = super().get_paginated_response_schema(schema)
        return page | {"required": list(page["properties"])}
