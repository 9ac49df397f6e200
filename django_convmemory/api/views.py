"""The endpoints: each validates, calls the memory, and answers.

What all of them share is in :class:`ScopedView`: the session is found in what the request reaches, before anything else
is looked at, so that one of somebody else's does not exist here.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.db import IntegrityError, router
from django.db.models import F, QuerySet
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.cache import patch_cache_control, patch_vary_headers
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.metadata import SimpleMetadata
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import explaining, models
from django_convmemory.api import conf, etags, pagination, parsers, problems, serializers as forms
from django_convmemory.api.negotiation import JSONLinesRenderer, Negotiation, PageRenderer, UTF8JSONRenderer
from django_convmemory.api.parsers import BoundedJSONParser
from django_convmemory.api.problems import Problem
from django_convmemory.api.scopes import UserScope
from django_convmemory.api.throttles import AppendThrottle, CreateThrottle, ModelThrottle
from django_convmemory.clock import Clock
from django_convmemory.context import Context
from django_convmemory.conversation import ConversationMemory
from django_convmemory.exceptions import UnknownMessage
from django_convmemory.handles import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.stores import transactions
from django_convmemory.transfer import exporting

WRITE_ANY_ROLE = "convmemory.write_any_role"


class InScope(BasePermission):
    """Whether the scope admits the request."""

    def has_permission(self, request: Request, view: Any) -> bool:
        scope: UserScope = view.scope
        return scope.admits()


class ScopedView(GenericAPIView[Any]):
    """A view of what the request reaches, whatever the site has set for views of its own.

    Who is asking is found out as the site does it, unless ``CONVMEMORY_API`` says otherwise.
    """

    renderer_classes = [UTF8JSONRenderer, PageRenderer]
    parser_classes = [BoundedJSONParser]
    content_negotiation_class = Negotiation
    metadata_class = SimpleMetadata
    versioning_class = None
    filter_backends = []
    pagination_class: type[pagination.Pages] | None = None
    # What the browsable API has somebody send who has nothing else in mind.
    example: dict[str, Any] | None = None

    @functools.cached_property
    def scope(self) -> UserScope:
        """Whose sessions the request reaches."""
        (scope,) = conf.classes((conf.limits().scope,))
        made: UserScope = scope(self.request)
        return made

    def get_exception_handler(self) -> Any:
        return problems.handle

    def get_permissions(self) -> list[Any]:
        return [InScope(), *(made() for made in conf.classes(conf.limits().permission_classes))]

    def get_throttles(self) -> list[Any]:
        return [made() for made in conf.classes(conf.limits().throttle_classes)]

    def get_renderers(self) -> list[Any]:
        # The pages' templates are DRF's, where the site has it among its apps.
        pages = apps.is_installed("rest_framework")
        return [made() for made in self.renderer_classes if pages or made is not PageRenderer]

    def get_authenticators(self) -> list[Any]:
        configured = conf.limits().authentication_classes
        if configured is None:
            return list(super().get_authenticators())
        return [made() for made in conf.classes(configured)]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        changes = request.method not in SAFE_METHODS and request.method in self.allowed_methods
        if changes:
            parsers.require_readable(request)
        if "session_id" in kwargs:
            self.session = self._found(kwargs["session_id"])
            self.check_object_permissions(request, self.session)
            match = request.headers.get("If-Match")
            if changes and match is not None:
                etags.require(match, self.session.revision)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        # Whatever caches stand between: it is for who asked, and not for long.
        patch_cache_control(response, private=True, no_cache=True)
        patch_vary_headers(response, ["Accept", "Authorization", "Cookie"])
        return response

    def sessions(self) -> models.SessionQuerySet:
        """Return the sessions that the request reaches: every query of every view begins here."""
        # From the database that is written, so that a client sees what it has just stored.
        using = router.db_for_write(models.Session)
        reached = self.scope.sessions().using(using)
        if reached.query.distinct or reached.query.combinator:
            # The time that is added to the rows would tell apart what is the same.
            reached = models.Session.objects.using(using).filter(pk__in=reached.values("pk"))
        return reached.filter(alias__in=conf.aliases()).with_clock()

    def get_queryset(self) -> QuerySet[Any]:
        """The same, for permission classes that ask for the model."""
        return self.sessions()

    def _found(self, session_id: str) -> models.Session:
        try:
            found = self.sessions().filter(public_id=uuid.UUID(session_id)).first()
        except ValueError:
            found = None
        if found is None:
            raise NotFound("There is no such session.")
        return found

    @property
    def memory(self) -> ConversationMemory:
        """The memory of the session."""
        return memories[self.session.alias]

    @property
    def handle(self) -> SessionHandle:
        """The session, with the operations of its memory: this row, and none that is made in its place."""
        name = dataclasses.replace(self.session.session_name, row_id=self.session.pk)
        return SessionHandle(self.memory, name)

    def query(self, serializer: type[forms.StrictSerializer], *more: str) -> dict[str, Any]:
        """Return the parameters of the query string. Raises a 400 for one that is wrong, unknown, or given twice.

        ``more`` are the names of those that somebody else reads.
        """
        given = self.request.query_params
        if not given:
            return _unasked(serializer)
        for name in given:
            if len(given.getlist(name)) > 1:
                raise ValidationError({name: ["It is given more than once."]})
        read = serializer(data={name: given[name] for name in given if name not in more})
        read.is_valid(raise_exception=True)
        values: dict[str, Any] = read.validated_data
        return values

    def body(self) -> dict[str, Any]:
        """Return the body. Raises a 400 for one that is wrong."""
        read = self.get_serializer(data=self.request.data)
        read.is_valid(raise_exception=True)
        values: dict[str, Any] = read.validated_data
        return values

    def page(self, rows: QuerySet[Any], serializer: Callable[..., Any]) -> Response:
        """Answer with a page of ``rows``, in the order of ``page_ordering``."""
        found = self.paginate_queryset(rows)
        return self.get_paginated_response(serializer(found, many=True).data)

    def shown(self, session: models.Session) -> Any:
        """Return a session as it is shown."""
        return forms.SessionSerializer(session, context={"url": self.url}).data

    def made(self, session: models.Session, memory: ConversationMemory) -> Response:
        """Answer with a session that was made."""
        headers = {"Location": self.url("session", session), "ETag": etags.of(session, memory)}
        return Response(self.shown(session), status=201, headers=headers)

    def url(self, name: str, session: models.Session) -> str:
        """Return the address of an endpoint of ``session``."""
        namespace = getattr(self.request.resolver_match, "namespace", "")
        name = f"{namespace}:{name}" if namespace else name
        # Not DRF's own reverse, which would carry parameters of this request over.
        return self.request.build_absolute_uri(reverse(name, kwargs={"session_id": str(session.public_id)}))


class TaggedView(ScopedView):
    """A view of a session's state, which a client can follow by its ``ETag`` at the price of one statement."""

    def tag(self) -> str:
        return etags.of(self.session, self.memory)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if request.method in ("GET", "HEAD") and response.status_code in (200, 304):
            response["ETag"] = self.tag()
        return response

    def unchanged(self) -> bool:
        """Whether the client has what it asks for."""
        return etags.matches(self.request.headers.get("If-None-Match"), self.tag())


@functools.cache
def _unasked(serializer: type[forms.StrictSerializer]) -> dict[str, Any]:
    """Return what a query without parameters says: to read it again and again would cost more than to answer it."""
    read = serializer(data={})
    read.is_valid(raise_exception=True)
    values: dict[str, Any] = read.validated_data
    return values


# Sessions.


class SessionList(ScopedView):
    """The conversations of who is asking."""

    serializer_class = forms.NewSession
    example: dict[str, Any] | None = {"title": "Lisbon in May"}
    pagination_class = pagination.Pages
    page_ordering: tuple[str, ...] = ("-id",)

    _ORDERINGS = {
        "-created": ("-id",),
        "created": ("id",),
        "-updated": ("-updated_at", "-id"),
        "updated": ("updated_at", "id"),
    }
    _FILTERS = {
        "alias": "alias",
        "created_after": "created_at__gte",
        "created_before": "created_at__lt",
        "updated_after": "updated_at__gte",
        "updated_before": "updated_at__lt",
        "search": "title__icontains",
    }

    def get_throttles(self) -> list[Any]:
        return [*super().get_throttles(), *([CreateThrottle()] if self.request.method == "POST" else [])]

    def get(self, request: Request) -> Response:
        query = self.query(forms.SessionQuery, *pagination.Pages.names)
        self.page_ordering = self._ORDERINGS[query["ordering"]]
        rows = self.sessions().filter(
            **{column: query[name] for name, column in self._FILTERS.items() if name in query}
        )
        if "state" in query:
            rows = rows.in_state(query["state"])
        return self.page(rows, functools.partial(forms.SessionSerializer, context={"url": self.url}))

    def post(self, request: Request) -> Response:
        given = self.body()
        memory = memories[given["alias"]]
        name = memory.session(given.get("key") or str(uuid.uuid4()), **self.scope.whose()).session_name
        using = router.db_for_write(models.Session)
        sessions = models.Session.objects.using(using)
        try:
            transactions.run(
                using,
                lambda: sessions.create(
                    alias=name.alias,
                    key=name.key,
                    owner_id=name.owner_id,
                    visitor=name.visitor,
                    handle=name.handle,
                    title=given["title"],
                    metadata=given["metadata"],
                    created_at=Clock(),
                    updated_at=Clock(),
                ),
                savepoint=True,
            )
        except IntegrityError:
            if not transactions.latest(sessions).named(name).exists():
                raise
            raise Problem(409, "session_exists", f"There is a session {name.key!r:.300} already.") from None
        self.session = sessions.with_clock().get(handle=name.handle)
        return self.made(self.session, memory)


class SessionDetail(TaggedView):
    """One conversation."""

    serializer_class = forms.SessionChanges

    def get(self, request: Request, session_id: str) -> Response:
        if self.unchanged():
            return Response(status=304)
        return Response(self.shown(self.session))

    def patch(self, request: Request, session_id: str) -> Response:
        changes = self.body()
        row = models.Session.objects.using(self.session._state.db).filter(pk=self.session.pk)
        match = request.headers.get("If-Match")
        guarded = row if match in (None, "*") else row.filter(revision=self.session.revision)
        if not guarded.update(**changes, revision=F("revision") + 1, updated_at=Clock()):
            raise Problem(412, "stale_revision", "The session was changed since. Read it again.")
        self.session = row.with_clock().get()
        return Response(self.shown(self.session), headers={"ETag": self.tag()})

    def delete(self, request: Request, session_id: str) -> Response:
        transactions.run(self.session._state.db or "default", self.session.delete)
        return Response(status=204)


class SessionStatus(TaggedView):
    """Where compaction stands, for a page that waits for it."""

    serializer_class = forms.Nothing

    def get(self, request: Request, session_id: str) -> Response:
        if self.unchanged():
            return Response(status=304)
        return Response(forms.StatusSerializer(self.session).data)


# Messages.


class MessageList(ScopedView):
    """The transcript as people see it, whatever was folded."""

    serializer_class = forms.NewMessages
    example: dict[str, Any] | None = {"messages": [{"role": "user", "content": "What is Rust?"}]}
    pagination_class = pagination.Pages
    page_ordering: tuple[str, ...] = ("position",)

    def get_throttles(self) -> list[Any]:
        return [*super().get_throttles(), *([AppendThrottle()] if self.request.method == "POST" else [])]

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query(forms.MessageQuery, *pagination.Pages.names)
        rows = models.Message.objects.using(self.session._state.db).filter(session=self.session)
        if "after" in query:
            rows = rows.filter(position__gt=query["after"])
        if "before" in query:
            rows = rows.filter(position__lt=query["before"])
        sign = query["ordering"].removesuffix("position")
        # By both columns of the key: by the position alone the whole table may be walked.
        self.page_ordering = (f"{sign}position", f"{sign}session_id")
        return self.page(rows, forms.MessageSerializer)

    def post(self, request: Request, session_id: str) -> Response:
        given = self.body()
        messages: list[ChatMessage] = given["messages"]
        self._check_roles(messages, usage="usage" in given)
        receipt = self.handle.append(*messages, idempotency_key=self._idempotency_key(), usage=given.get("usage"))
        return Response(receipt._asdict(), status=200 if receipt.replayed else 201)

    def _check_roles(self, messages: list[ChatMessage], *, usage: bool) -> None:
        writable = conf.limits().writable_roles
        refused = sorted({message.role for message in messages} - set(writable))
        if (refused or usage) and not (self.scope.user and self.scope.user.has_perm(WRITE_ANY_ROLE)):
            what = f"messages of the role {refused[0]}" if refused else "what a reply used"
            raise Problem(
                403,
                "role_not_allowed",
                f"Storing {what} takes the permission {WRITE_ANY_ROLE}, which is for services that are trusted: to a "
                "model it would say what its user makes it say.",
            )

    def _idempotency_key(self) -> str | None:
        key = self.request.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key.strip()) <= 255:
            raise Problem(400, "invalid_idempotency_key", "Idempotency-Key must have 1 to 255 characters.")
        return key


class MessageDetail(ScopedView):
    """One message."""

    serializer_class = forms.Nothing

    def get(self, request: Request, session_id: str, position: str) -> Response:
        rows = models.Message.objects.using(self.session._state.db).filter(session=self.session)
        row = rows.filter(position=whole(position)).first()
        if row is None:
            raise Problem(404, "unknown_message", "The session has no message at this position.")
        return Response(forms.MessageSerializer(row).data)


class MessageRedaction(ScopedView):
    """Emptying a message, for good."""

    serializer_class = forms.Redaction
    example: dict[str, Any] | None = {"forks": True}

    def post(self, request: Request, session_id: str, position: str) -> Response:
        return Response({"sessions": self.handle.redact(whole(position), self.body()["forks"])})


def whole(position: str) -> int:
    """Return the position that an address names. Raises a 404 for what is none."""
    if _is_whole(position):
        return int(position)
    raise Problem(404, "unknown_message", "The session has no message at this position.")


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0


# The context.


class ContextDetail(TaggedView):
    """What a model is sent next."""

    serializer_class = forms.Nothing

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query(forms.ContextQuery)
        limit = pagination.page_size(query.get("limit"))
        if self.unchanged():
            return Response(status=304)
        most, asked = self.memory.max_context_tokens, query.get("max_tokens")
        # Never more than the memory shows by itself.
        context = self.handle.load(max_tokens=asked if asked is None or most is None else min(asked, most))
        answer: dict[str, Any] = {
            **_shown(context, query["format"]),
            "summary": context.summary,
            "covered_position": context.covered,
            "tokens": context.tokens,
            "omitted": context.omitted,
            "over_budget": context.over_budget,
            "pending": context.pending,
            "revision": context.revision,
        }
        if query["explain"] == "1":
            found = explaining.explain(self.memory, self.session, context, before=query.get("before"), limit=limit)
            answer["explanation"] = [one._asdict() for one in found]
        return Response(answer)


def _shown(context: Context, form: str) -> dict[str, Any]:
    if form == "text":
        return {"text": context.to_text()}
    if form == "openai":
        return {"messages": context.to_openai()}
    return {
        "messages": [
            {
                "part": part.name,
                "position": part.position,
                "tokens": part.tokens,
                "message": part.message.to_openai(),
            }
            for part in context.parts
        ]
    }


# Summaries.


class SummaryList(ScopedView):
    """The versions of the summary, the newest first."""

    serializer_class = forms.Nothing
    pagination_class = pagination.Pages
    page_ordering = ("-version",)

    def get(self, request: Request, session_id: str) -> Response:
        self.query(forms.Nothing, *pagination.Pages.names)
        rows = models.Summary.objects.using(self.session._state.db).filter(session=self.session)
        return self.page(rows, forms.SummarySerializer)


class SummaryDetail(ScopedView):
    """One version of the summary."""

    serializer_class = forms.Nothing

    def get(self, request: Request, session_id: str, version: str) -> Response:
        rows = models.Summary.objects.using(self.session._state.db).filter(session=self.session)
        row = rows.filter(version=int(version)).first() if _is_whole(version) else None
        if row is None:
            raise Problem(404, "unknown_version", "The session has no such version of its summary.")
        return Response(forms.SummarySerializer(row).data)


# Actions.


class Truncate(ScopedView):
    """Deleting what came after a position, to have it said anew. If-Match keeps a retry from deleting more."""

    serializer_class = forms.Truncation
    example: dict[str, Any] | None = {"after": 2}

    def post(self, request: Request, session_id: str) -> Response:
        etags.required(request.headers.get("If-Match"))
        revision = None if request.headers["If-Match"].strip() == "*" else self.session.revision
        return Response({"removed": self.handle.truncate(self.body()["after"], revision)})


class Clear(ScopedView):
    """Deleting all messages and summaries; the session stays."""

    serializer_class = forms.Nothing

    def post(self, request: Request, session_id: str) -> Response:
        self.body()
        self.handle.clear()
        return Response(status=204)


class Fork(ScopedView):
    """Copying the session as it was at a position; the copy belongs to who asks."""

    serializer_class = forms.Fork
    example: dict[str, Any] | None = {"at": 1}

    def get_throttles(self) -> list[Any]:
        return [*super().get_throttles(), *([CreateThrottle()] if self.request.method == "POST" else [])]

    def post(self, request: Request, session_id: str) -> Response:
        given = self.body()
        try:
            row = self.handle.fork(given["at"], key=given.get("key") or str(uuid.uuid4()), **self.scope.whose())
        except UnknownMessage as error:
            # The session is there; it is its state that does not fit.
            raise Problem(409, "unknown_message", str(error)) from None
        copy = models.Session.objects.using(row._state.db).with_clock().get(pk=row.pk)
        return self.made(copy, self.memory)


class WorkView(ScopedView):
    """Something that takes a model, and so is done by a worker: the answer is where to look."""

    serializer_class = forms.Nothing

    def get_throttles(self) -> list[Any]:
        return [*super().get_throttles(), *([ModelThrottle()] if self.request.method == "POST" else [])]

    def post(self, request: Request, session_id: str) -> Response:
        self.body()
        if not self.memory.summarizes:
            raise Problem(409, "nothing_to_do", "This memory makes no summaries.")
        self.ask()
        status = self.url("session-status", self.session)
        return Response({"status": status}, status=202, headers={"Location": status})

    def ask(self) -> None:
        raise NotImplementedError


class Compact(WorkView):
    """Having folded what is due, also where an attempt has just failed."""

    def ask(self) -> None:
        # Where nobody can be told, what is due is found by the sweep.
        self.handle.request_compaction()


class Rebuild(WorkView):
    """Having the summary made anew from the messages."""

    def ask(self) -> None:
        if not self.session.current_version:
            raise Problem(409, "nothing_to_do", "The session has no summary yet.")
        if not self.handle.request_rebuild():
            raise Problem(503, "broker_unavailable", "Nobody can be told to do it at the moment. Try again later.")


class Export(ScopedView):
    """The session as a record, a line of JSON, which the command convmemory_import takes."""

    serializer_class = forms.Nothing
    renderer_classes = [JSONLinesRenderer, UTF8JSONRenderer]

    def get(self, request: Request, session_id: str) -> HttpResponseBase:
        self.query(forms.Nothing)
        using = self.session._state.db or "default"
        (head,) = exporting.heads(models.Session.objects.using(using).filter(pk=self.session.pk))
        response = StreamingHttpResponse(
            exporting.pieces(head, using),
            content_type=JSONLinesRenderer.media_type,
            headers={"X-Accel-Buffering": "no"},
        )
        response["Content-Disposition"] = f'attachment; filename="{self.session.public_id}.jsonl"'
        return response
