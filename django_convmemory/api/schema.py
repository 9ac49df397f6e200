"""The OpenAPI schema of the endpoints, for drf-spectacular. Only sites that install that package load this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.extensions import (
    OpenApiSerializerExtension,
    OpenApiSerializerFieldExtension,
    OpenApiViewExtension,
)
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_field,
    extend_schema_serializer,
    extend_schema_view,
)
from rest_framework.serializers import BaseSerializer

from django_convmemory.api import conf, fields, problems, serializers
from django_convmemory.api.negotiation import JSONLinesRenderer
from django_convmemory.messages import ROLES

# Fields and serializers whose schema drf-spectacular cannot derive.

_CONTENT: dict[str, Any] = {
    "oneOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]},
        },
    ],
    "description": "A string, or a list of content parts.",
}
_TOOL_CALLS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "object", "properties": {"id": {"type": "string", "minLength": 1}}, "required": ["id"]},
}
_WIRE: dict[str, Any] = {
    "type": "object",
    "description": "A message in chat-completions form.",
    "properties": {"role": {"type": "string", "enum": list(ROLES)}},
    "required": ["role"],
    "additionalProperties": {},
}
for _field, _schema in (
    (serializers.Content, _CONTENT),
    (serializers.ToolCalls, _TOOL_CALLS),
    (serializers.Wire, _WIRE),
    (fields.Metadata, {"type": "object", "additionalProperties": {}}),
):
    extend_schema_field(_schema)(_field)


class _Alias(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """The aliases are a setting, so they are read when the schema is made."""

    target_class = "django_convmemory.api.fields.Alias"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        return {"type": "string", "enum": conf.aliases()}


class _ContextMessages(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    target_class = "django_convmemory.api.serializers.ContextMessages"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        part = auto_schema.resolve_serializer(serializers.PartSerializer, direction).ref
        return {"type": "array", "items": {"anyOf": [part, _WIRE]}}


class _Strict(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """The schema says that unknown fields are refused."""

    target_class = "django_convmemory.api.serializers.StrictSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema: dict[str, Any] = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return schema | {"additionalProperties": False}


class _NewMessage(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """The fields that a message must have depend on its role."""

    target_class = "django_convmemory.api.serializers.NewMessage"
    priority = 1

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema: dict[str, Any] = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)

        def variant(roles: list[str], *required: str, own: str = "") -> dict[str, Any]:
            others = {"tool_calls", "tool_call_id"} - {own}
            properties = {name: field for name, field in schema["properties"].items() if name not in others}
            content = _CONTENT | ({"nullable": True} if roles == ["assistant"] else {})
            # In an allOf, because drf-spectacular would join the enumerations of all fields with the name "role".
            role = {"allOf": [{"type": "string", "enum": roles}]}
            return {
                "type": "object",
                "properties": properties | {"role": role, "content": content},
                "required": ["role", *required],
                "additionalProperties": False,
            }

        return {
            "oneOf": [
                variant(["user", "system", "developer"], "content"),
                variant(["assistant"], own="tool_calls"),
                variant(["tool"], "content", "tool_call_id", own="tool_call_id"),
            ],
            "description": schema.get("description", ""),
        }


# With a prefix, because the site may have a component Session of its own.
for _serializer in vars(serializers).values():
    if isinstance(_serializer, type) and issubclass(_serializer, BaseSerializer):
        _name = _serializer.__name__.removesuffix("Serializer")
        extend_schema_serializer(component_name=f"ConvMemory{_name}")(_serializer)

# Parameters and responses.

_ID = OpenApiParameter("session_id", OpenApiTypes.UUID, OpenApiParameter.PATH, description="The `id` of the session.")
_POSITION = OpenApiParameter(
    "position",
    {"type": "integer", "minimum": 1, "maximum": fields.MAX_INTEGER},
    OpenApiParameter.PATH,
    description="The position of the message in the session, counted from 1.",
)
_VERSION = OpenApiParameter(
    "version", {"type": "integer", "minimum": 1, "maximum": fields.MAX_INTEGER}, OpenApiParameter.PATH
)
_NO_FORMAT = OpenApiParameter("format", exclude=True)
_CURSOR = OpenApiParameter(
    "cursor", str, description="The start of the page. Take it from the `next` or `previous` address of another page."
)
_LIMIT = OpenApiParameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": 200}, description="The largest number of entries on a page."
)
_IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    str,
    OpenApiParameter.HEADER,
    description="The `ETag` of an earlier response. If nothing has changed, the response is 304.",
)
_IF_MATCH = OpenApiParameter(
    "If-Match",
    {"type": "string", "minLength": 1},
    OpenApiParameter.HEADER,
    description="The `ETag` of the session or of its context. If it has changed since, the response is 412.",
)
_REQUIRED_IF_MATCH = OpenApiParameter(
    "If-Match",
    {"type": "string", "minLength": 1},
    OpenApiParameter.HEADER,
    required=True,
    description="The `ETag` of the session or of its context, or `*` for any state.",
)
_IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255},
    OpenApiParameter.HEADER,
    description="A retry with the same key and content stores nothing. It returns what the first request stored.",
)

_ETAG = OpenApiParameter("ETag", str, OpenApiParameter.HEADER, response=[200, 201, 304])
_LOCATION = OpenApiParameter("Location", OpenApiTypes.URI, OpenApiParameter.HEADER, response=[201, 202])

_DESCRIPTIONS = {
    400: "The input is not valid. `errors` lists each error with its place.",
    401: "The request is not authenticated.",
    403: "The request is not permitted.",
    404: "The session, or the part of it that the address names, does not exist or is not yours.",
    406: "No acceptable representation.",
    409: "The current state of the session does not allow the operation.",
    411: "The body has no `Content-Length`.",
    412: "The session has changed since the `ETag` in `If-Match`, or `If-Match` is not an `ETag`.",
    413: "The body is too large.",
    415: "The body is not sent as `application/json`.",
    422: "The idempotency key was used before with other content.",
    428: "`If-Match` is missing.",
    429: "Too many requests.",
    503: "The operation is not possible at the moment. Try again later.",
}
_READ = (401, 403, 404, 406)
_WRITE = (400, 401, 403, 404, 406, 411, 412, 413, 415)


def _responses(successes: Mapping[Any, Any], *error_codes: int) -> dict[Any, Any]:
    errors = {
        (code, problems.MEDIA_TYPE): OpenApiResponse(serializers.Problem, description=_DESCRIPTIONS[code])
        for code in sorted(set(error_codes))
    }
    return {**successes, **errors}


_UNCHANGED = {304: OpenApiResponse(description="Nothing has changed since the `ETag` in `If-None-Match`.")}
_REPLY = OpenApiExample(
    "A message of the user", {"messages": [{"role": "user", "content": "What is Rust?"}]}, request_only=True
)
_EXCHANGE = OpenApiExample(
    "A reply of the model, stored by a trusted service",
    {
        "messages": [{"role": "assistant", "content": "A systems language."}],
        "usage": {"prompt_tokens": 120, "completion_tokens": 7},
    },
    request_only=True,
)

_Operation = dict[str, Any]


def _session(name: str, summary: str, tag: str, **more: Any) -> _Operation:
    parameters = [_ID, *more.pop("parameters", [])]
    return {"operation_id": f"convmemory_{name}", "summary": summary, "tags": [tag], "parameters": parameters, **more}


SESSIONS, MESSAGES, CONTEXT, COMPACTION = "Sessions", "Messages", "Context", "Compaction"

OPERATIONS: dict[str, dict[str, _Operation]] = {
    "SessionList": {
        "get": {
            "operation_id": "convmemory_sessions_list",
            "summary": "List sessions",
            "tags": [SESSIONS],
            "parameters": [serializers.SessionQuery, _CURSOR, _LIMIT],
            "responses": _responses({200: serializers.SessionSerializer(many=True)}, 400, *_READ),
        },
        "post": {
            "operation_id": "convmemory_sessions_create",
            "summary": "Create a session",
            "tags": [SESSIONS],
            "parameters": [_LOCATION, _ETAG],
            "request": serializers.NewSession,
            "responses": _responses({201: serializers.SessionSerializer}, 409, *_WRITE),
            "examples": [OpenApiExample("With a title", {"key": "trip", "title": "Lisbon"}, request_only=True)],
        },
    },
    "SessionDetail": {
        "get": _session(
            "sessions_retrieve",
            "Read a session",
            SESSIONS,
            parameters=[_IF_NONE_MATCH, _ETAG],
            responses=_responses({200: serializers.SessionSerializer, **_UNCHANGED}, *_READ),
        ),
        "patch": _session(
            "sessions_update",
            "Change the title and the metadata of a session",
            SESSIONS,
            parameters=[_IF_MATCH, _ETAG],
            request=serializers.SessionChanges,
            responses=_responses({200: serializers.SessionSerializer}, 412, 428, *_WRITE),
            examples=[OpenApiExample("A title", {"title": "Lisbon in May"}, request_only=True)],
        ),
        "delete": _session(
            "sessions_delete",
            "Delete a session with its messages and summaries",
            SESSIONS,
            responses=_responses({204: None}, *_READ),
        ),
    },
    "SessionStatus": {
        "get": _session(
            "sessions_status",
            "Read the state of compaction",
            COMPACTION,
            parameters=[_IF_NONE_MATCH, _ETAG],
            responses=_responses({200: serializers.StatusSerializer, **_UNCHANGED}, *_READ),
        ),
    },
    "MessageList": {
        "get": _session(
            "messages_list",
            "List all messages, folded ones included",
            MESSAGES,
            parameters=[serializers.MessageQuery, _CURSOR, _LIMIT],
            responses=_responses({200: serializers.MessageSerializer(many=True)}, 400, *_READ),
        ),
        "post": _session(
            "messages_append",
            "Append messages: all of them or none",
            MESSAGES,
            parameters=[_IDEMPOTENCY_KEY],
            request=serializers.NewMessages,
            responses=_responses(
                {
                    201: OpenApiResponse(serializers.ReceiptSerializer, description="The messages were stored."),
                    200: OpenApiResponse(
                        serializers.ReceiptSerializer,
                        description="The messages were stored by an earlier request with this key.",
                    ),
                },
                *(409, 422, 429, 503),
                *_WRITE,
            ),
            examples=[_REPLY, _EXCHANGE],
        ),
    },
    "MessageDetail": {
        "get": _session(
            "messages_retrieve",
            "Read a message",
            MESSAGES,
            parameters=[_POSITION],
            responses=_responses({200: serializers.MessageSerializer}, *_READ),
        ),
    },
    "MessageRedaction": {
        "post": _session(
            "messages_redact",
            "Empty a message and every summary that covers it",
            MESSAGES,
            parameters=[_POSITION],
            request=serializers.Redaction,
            responses=_responses({200: serializers.Redacted}, 503, *_WRITE),
        ),
    },
    "ContextDetail": {
        "get": _session(
            "context_retrieve",
            "Read the context: what a model is sent next",
            CONTEXT,
            parameters=[serializers.ContextQuery, _LIMIT, _IF_NONE_MATCH, _ETAG],
            responses=_responses({200: serializers.ContextSerializer, **_UNCHANGED}, 400, *_READ),
        ),
    },
    "SummaryList": {
        "get": _session(
            "summaries_list",
            "List the versions of the summary, newest first",
            CONTEXT,
            parameters=[_CURSOR, _LIMIT],
            responses=_responses({200: serializers.SummarySerializer(many=True)}, 400, *_READ),
        ),
    },
    "SummaryDetail": {
        "get": _session(
            "summaries_retrieve",
            "Read a version of the summary",
            CONTEXT,
            parameters=[_VERSION],
            responses=_responses({200: serializers.SummarySerializer}, *_READ),
        ),
    },
    "Truncate": {
        "post": _session(
            "sessions_truncate",
            "Delete the messages after a position, to get another answer",
            MESSAGES,
            parameters=[_REQUIRED_IF_MATCH],
            request=serializers.Truncation,
            responses=_responses({200: serializers.Truncated}, 412, 428, 503, *_WRITE),
            examples=[OpenApiExample("All but the first two", {"after": 2}, request_only=True)],
        ),
    },
    "Clear": {
        "post": _session(
            "sessions_clear",
            "Delete all messages and summaries but keep the session",
            SESSIONS,
            request=serializers.Nothing,
            responses=_responses({204: None}, 503, *_WRITE),
        ),
    },
    "Fork": {
        "post": _session(
            "sessions_fork",
            "Copy a session as it was at a position",
            SESSIONS,
            parameters=[_LOCATION, _ETAG],
            request=serializers.Fork,
            responses=_responses({201: serializers.SessionSerializer}, 409, 503, *_WRITE),
            examples=[OpenApiExample("The first four messages", {"at": 4, "key": "what if"}, request_only=True)],
        ),
    },
    "Compact": {
        "post": _session(
            "sessions_compact",
            "Ask a worker to fold what is due",
            COMPACTION,
            parameters=[_LOCATION],
            request=serializers.Nothing,
            responses=_responses({202: serializers.Accepted}, 409, 429, *_WRITE),
        ),
    },
    "Rebuild": {
        "post": _session(
            "sessions_rebuild",
            "Ask a worker to make the summary again from the messages",
            COMPACTION,
            parameters=[_LOCATION],
            request=serializers.Nothing,
            responses=_responses({202: serializers.Accepted}, 409, 429, 503, *_WRITE),
        ),
    },
    "Export": {
        "get": _session(
            "sessions_export",
            "Export a session as one line of JSON",
            SESSIONS,
            parameters=[_NO_FORMAT],
            responses=_responses(
                {
                    (200, JSONLinesRenderer.media_type): OpenApiResponse(
                        OpenApiTypes.STR, description="One line of JSON, which `convmemory_import` reads."
                    )
                },
                400,
                *_READ,
            ),
        ),
    },
}


class _Documented(OpenApiViewExtension):  # type: ignore[no-untyped-call]
    """A view with the operations above. drf-spectacular registers each subclass when it is defined."""

    operations: dict[str, _Operation]

    def view_replacement(self) -> Any:
        documented = {method: extend_schema(**operation) for method, operation in self.operations.items()}
        view: Any = self.target_class
        return extend_schema_view(**documented)(type(view.__name__, (view,), {}))


for _name, _operations in OPERATIONS.items():
    type(
        f"_{_name}",
        (_Documented,),
        {"target_class": f"django_convmemory.api.views.{_name}", "operations": _operations},
    )
