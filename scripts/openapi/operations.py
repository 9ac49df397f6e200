"""The operations of the HTTP API, for drf-spectacular: what the code of the views does not show."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from drf_spectacular.extensions import OpenApiViewExtension
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_view,
)

from django_convmemory.api import etags, problems
from django_convmemory.api.formats import EventStreamRenderer, JSONLinesRenderer
from django_convmemory.api.serializers.base import MAX_INTEGER, Nothing
from django_convmemory.api.serializers.sessions import (
    HitSerializer,
    ListedSessionSerializer,
    SessionSerializer,
    StatusSerializer,
    SummarySerializer,
)
from django_convmemory.api.views import events, messages, sessions, turns
from django_convmemory.api.views.base import ScopedView, TaggedView
from scripts.openapi import responses
from scripts.openapi.responses import MessageSerializer, TurnSerializer

# Parameters and responses.


def _header(name: str, description: str, *, required: bool = False, **limits: int | str) -> OpenApiParameter:
    schema = {"type": "string", **limits}
    return OpenApiParameter(name, schema, OpenApiParameter.HEADER, required=required, description=description)


_ID = "01980c3e-5a70-7cc4-8f0e-3b6d1f0a9c52"
_NUMBER = {"type": "integer", "minimum": 1, "maximum": MAX_INTEGER}
# Each operation has the path parameters that its method takes.
_PATH_PARAMETERS = (
    OpenApiParameter("session_id", OpenApiTypes.UUID, OpenApiParameter.PATH, description="The `id` of the session."),
    OpenApiParameter("message_id", OpenApiTypes.UUID, OpenApiParameter.PATH, description="The `id` of the message."),
    OpenApiParameter("version", _NUMBER, OpenApiParameter.PATH),
)
_NO_FORMAT = OpenApiParameter("format", exclude=True)
_IF_NONE_MATCH = _header(
    "If-None-Match", "The `ETag` of an earlier response. If nothing has changed, the response is 304."
)
_IF_MATCH = _header(
    "If-Match",
    "The `ETag` of the session or of its context. If it has changed since, the response is 412.",
    pattern=etags.IF_MATCH,
)
_REQUIRED_IF_MATCH = _header(
    "If-Match",
    "The `ETag` of the session or of its context, or `*` for any state.",
    required=True,
    pattern=etags.IF_MATCH,
)
_IDEMPOTENCY_KEY = _header(
    "Idempotency-Key",
    "A retry with the same key and content changes nothing. It returns what the first request stored.",
    minLength=1,
    maxLength=255,
)
_LAST_EVENT_ID = _header(
    "Last-Event-ID", "The `id` of the last event that the client has received. Browsers send it by themselves."
)
_ETAG = OpenApiParameter("ETag", str, OpenApiParameter.HEADER, response=[200, 201, 304])
_LOCATION = OpenApiParameter("Location", OpenApiTypes.URI, OpenApiParameter.HEADER, response=[201, 202])

_ERRORS = {
    400: "The input is not valid. `errors` lists each error with its place, unless it is in a header.",
    401: "The request is not authenticated.",
    403: "The request is not permitted.",
    404: "The session, or the part of it that the address names, does not exist or is not yours.",
    406: "No acceptable representation.",
    409: "The current state of the session does not allow the operation.",
    411: "The body has no `Content-Length`.",
    412: "The session has changed since the `ETag` in `If-Match`.",
    413: "The body, or a message in it, is too large.",
    415: "The body is not sent as `application/json`.",
    422: "The idempotency key was used before with other content.",
    428: "`If-Match` is missing.",
    429: "Too many requests.",
    502: "The model said nothing, or the site's function failed.",
    503: "The operation is not possible at the moment. Try again later.",
}
_READ = (401, 403, 404, 406)
_WRITE = (400, 401, 403, 404, 406, 411, 412, 413, 415)

# One event of a stream. Its data is JSON in a string.
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string", "enum": ["message", "summary", "state", "reset"]},
        "data": {"type": "string"},
    },
    "required": ["event", "data"],
}
_TURN_EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["start", "delta", "message", "done", "error"]},
        "data": {"type": "string"},
    },
    "required": ["event", "data"],
}


class _Operation(NamedTuple):
    """A method of a view. ``errors`` are those besides ``_READ`` or ``_WRITE``. ``examples`` are bodies of requests."""

    tag: str
    name: str
    summary: str
    responses: dict[Any, Any]
    errors: Sequence[int] = ()
    parameters: Sequence[OpenApiParameter] = ()
    examples: Mapping[str, Any] = {}


SESSIONS, MESSAGES, TURNS, SEARCH, CONTEXT = "Sessions", "Messages", "Turns", "Search", "Context"
COMPACTION = "Compaction"

_CREATED = {
    201: OpenApiResponse(SessionSerializer, "The session was created."),
    200: OpenApiResponse(SessionSerializer, "An earlier request with this key has created the session."),
}
_STORED = {
    201: OpenApiResponse(responses.ReceiptSerializer, "The messages were stored."),
    200: OpenApiResponse(responses.ReceiptSerializer, "The messages were stored by an earlier request with this key."),
}

# By view and method. The views have the parameters and bodies that they accept, as query_class and serializer_class.
OPERATIONS: dict[tuple[type[ScopedView], str], _Operation] = {
    (sessions.SessionList, "get"): _Operation(
        SESSIONS, "sessions_list", "List sessions", {200: ListedSessionSerializer(many=True)}
    ),
    (sessions.SessionList, "post"): _Operation(
        SESSIONS,
        "sessions_create",
        "Create a session",
        _CREATED,
        errors=[409, 422, 429],
        parameters=[_IDEMPOTENCY_KEY, _LOCATION, _ETAG],
        examples={"With a title": {"key": "trip", "title": "Lisbon"}},
    ),
    (sessions.SessionDetail, "get"): _Operation(
        SESSIONS, "sessions_retrieve", "Read a session", {200: SessionSerializer}
    ),
    (sessions.SessionDetail, "patch"): _Operation(
        SESSIONS,
        "sessions_update",
        "Change the title and the metadata of a session",
        {200: SessionSerializer},
        errors=[428],
        parameters=[_IF_MATCH, _ETAG],
        examples={"A title": {"title": "Lisbon in May"}},
    ),
    (sessions.SessionDetail, "delete"): _Operation(
        SESSIONS,
        "sessions_delete",
        "Delete a session with its messages and summaries",
        {204: None},
        errors=[400, 412, 428],
        parameters=[_IF_MATCH],
    ),
    (sessions.SessionStatus, "get"): _Operation(
        COMPACTION, "sessions_status", "Read the state of compaction", {200: StatusSerializer}
    ),
    (events.SessionEvents, "get"): _Operation(
        SESSIONS,
        "sessions_events",
        "Follow a session by server-sent events",
        {
            (200, EventStreamRenderer.media_type): OpenApiResponse(
                _EVENT,
                "Server-sent events. The data of `message` is a `ConvMemoryMessage`, that of `summary` a "
                "`ConvMemorySummary`, and that of `reset` and `state` a `ConvMemoryStatus`.",
            )
        },
        errors=[400, 429],
        parameters=[_LAST_EVENT_ID, _NO_FORMAT],
    ),
    (messages.MessageList, "get"): _Operation(
        MESSAGES,
        "messages_list",
        "List all messages, folded ones included",
        {200: MessageSerializer(many=True)},
    ),
    (messages.MessageList, "post"): _Operation(
        MESSAGES,
        "messages_append",
        "Append messages: all of them or none",
        _STORED,
        errors=[409, 422, 429, 503],
        parameters=[_IDEMPOTENCY_KEY],
        examples={
            "A message of the user": {"messages": [{"role": "user", "content": "What is Rust?"}]},
            "A reply of the model, stored by a trusted service": {
                "messages": [{"role": "assistant", "content": "A systems language."}],
                "usage": {"prompt_tokens": 120, "completion_tokens": 7},
            },
        },
    ),
    (messages.MessageDetail, "get"): _Operation(
        MESSAGES, "messages_retrieve", "Read a message", {200: MessageSerializer}
    ),
    (messages.MessageDetail, "patch"): _Operation(
        MESSAGES,
        "messages_update",
        "Replace the metadata of a message, for feedback or a tag",
        {200: MessageSerializer},
        errors=[409, 428],
        parameters=[_IF_MATCH, _ETAG],
        examples={"Feedback": {"metadata": {"thumb": "up"}}},
    ),
    (messages.MessageReplacement, "post"): _Operation(
        MESSAGES,
        "messages_replace",
        "Delete the messages after a message and store others in their place: all of it or none",
        _STORED,
        errors=[409, 422, 428, 429, 503],
        parameters=[_REQUIRED_IF_MATCH, _IDEMPOTENCY_KEY],
        examples={
            "Another question": {"after": _ID, "messages": [{"role": "user", "content": "And in winter?"}]},
        },
    ),
    (messages.MessageRedaction, "post"): _Operation(
        MESSAGES,
        "messages_redact",
        "Empty a message and every summary that covers it",
        {200: responses.Redacted},
        errors=[503],
    ),
    (turns.TurnList, "post"): _Operation(
        TURNS,
        "turns_create",
        "Answer a question by the site's `RESPONDER`, whole or in server-sent events",
        {
            201: OpenApiResponse(TurnSerializer, "The reply was stored."),
            200: OpenApiResponse(TurnSerializer, "The reply was stored by an earlier request with this key."),
            (200, EventStreamRenderer.media_type): OpenApiResponse(
                _TURN_EVENT,
                "Server-sent events. docs/reference/api.md has their data. That of `error` is a `ConvMemoryProblem` "
                "with `retryable`.",
            ),
        },
        errors=[409, 422, 428, 429, 502, 503],
        parameters=[_IF_MATCH, _IDEMPOTENCY_KEY, _ETAG],
        examples={"A question": {"message": {"content": "What is Rust?"}}},
    ),
    (turns.TurnDetail, "get"): _Operation(
        TURNS,
        "turns_retrieve",
        "Read a question and its reply, or whether it is being answered",
        {200: TurnSerializer},
        parameters=[_ETAG],
    ),
    (turns.TurnStop, "post"): _Operation(
        TURNS, "turns_stop", "Stop the reply to a question", {202: TurnSerializer}, errors=[409]
    ),
    (messages.SearchSession, "get"): _Operation(
        SEARCH,
        "sessions_search",
        "Find messages of a session by their words",
        {200: HitSerializer(many=True)},
    ),
    (messages.SearchAll, "get"): _Operation(
        SEARCH,
        "search",
        "Find messages of all sessions by their words",
        {200: HitSerializer(many=True)},
    ),
    (messages.ContextDetail, "get"): _Operation(
        CONTEXT, "context_retrieve", "Read the context: what a model is sent next", {200: responses.ContextSerializer}
    ),
    (messages.SummaryList, "get"): _Operation(
        CONTEXT,
        "summaries_list",
        "List the versions of the summary, newest first",
        {200: SummarySerializer(many=True)},
    ),
    (messages.SummaryDetail, "get"): _Operation(
        CONTEXT, "summaries_retrieve", "Read a version of the summary", {200: SummarySerializer}
    ),
    (sessions.Truncate, "post"): _Operation(
        MESSAGES,
        "sessions_truncate",
        "Delete the messages after a message, to get another answer",
        {200: responses.Truncated},
        errors=[409, 428, 503],
        parameters=[_REQUIRED_IF_MATCH],
        examples={"All that follows a message": {"after": _ID}},
    ),
    (sessions.Clear, "post"): _Operation(
        SESSIONS, "sessions_clear", "Delete all messages and summaries but keep the session", {204: None}, errors=[503]
    ),
    (sessions.Fork, "post"): _Operation(
        SESSIONS,
        "sessions_fork",
        "Copy a session as it was at a message",
        _CREATED,
        errors=[409, 422, 429, 503],
        parameters=[_IDEMPOTENCY_KEY, _LOCATION, _ETAG],
        examples={"Through a message": {"at": _ID, "key": "what if"}},
    ),
    (sessions.Compact, "post"): _Operation(
        COMPACTION,
        "sessions_compact",
        "Ask a worker to fold what is due",
        {202: responses.Accepted},
        errors=[409, 429],
        parameters=[_LOCATION],
    ),
    (sessions.Rebuild, "post"): _Operation(
        COMPACTION,
        "sessions_rebuild",
        "Ask a worker to make the summary again from the messages",
        {202: responses.Accepted},
        errors=[409, 429, 503],
        parameters=[_LOCATION],
    ),
    (sessions.Export, "get"): _Operation(
        SESSIONS,
        "sessions_export",
        "Export a session as one line of JSON",
        {
            (200, JSONLinesRenderer.media_type): OpenApiResponse(
                str, "One line of JSON, which `convmemory_import` reads."
            )
        },
        errors=[400],
        parameters=[_NO_FORMAT],
    ),
}


class _Views(OpenApiViewExtension):  # type: ignore[no-untyped-call]
    """The views with the operations above."""

    target_class = "django_convmemory.api.views.base.ScopedView"
    match_subclasses = True

    def view_replacement(self) -> Any:
        documented = {
            method: _documented(view, method, operation)
            for (view, method), operation in OPERATIONS.items()
            if view is self.target
        }
        view: Any = self.target
        pages = responses.HitPages if issubclass(view, messages.SearchView) else responses.Pages
        return extend_schema_view(**documented)(type(view.__name__, (view,), {"pagination_class": pages}))


def _documented(view: type[ScopedView], method: str, operation: _Operation) -> Any:
    """Return the decorator of the view's method."""
    arguments = inspect.signature(getattr(view, method)).parameters
    parameters: list[Any] = [parameter for parameter in _PATH_PARAMETERS if parameter.name in arguments]
    by_status = dict(operation.responses)
    errors = {*operation.errors, *(_READ if method in ("get", "delete") else _WRITE)}
    if method == "get" and view.query_class is not Nothing:
        parameters.append(view.query_class)
        errors.add(400)
    if method == "get" and issubclass(view, TaggedView | sessions.SessionList):
        parameters += [_IF_NONE_MATCH, _ETAG]
        by_status[304] = OpenApiResponse(description="Nothing has changed since the `ETag` in `If-None-Match`.")
    for code in sorted(errors):
        by_status[code, problems.MEDIA_TYPE] = OpenApiResponse(responses.Problem, _ERRORS[code])
    return extend_schema(
        operation_id=f"convmemory_{operation.name}",
        tags=[operation.tag],
        summary=operation.summary,
        parameters=[*parameters, *operation.parameters],
        responses=by_status,
        examples=[OpenApiExample(name, body, request_only=True) for name, body in operation.examples.items()],
    )
