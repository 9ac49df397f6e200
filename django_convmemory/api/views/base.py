"""What all endpoints share.

The session is found in what the request reaches, before anything else is looked at, so that one of somebody else's does
not exist here.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from django.apps import apps
from django.db import router, transaction
from django.db.models import F, QuerySet
from django.urls import reverse
from django.utils.cache import patch_cache_control, patch_vary_headers
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.metadata import SimpleMetadata
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models
from django_convmemory.api import conf, etags, pagination, parsers, problems, serializers as forms
from django_convmemory.api.negotiation import Negotiation, PageRenderer, UTF8JSONRenderer
from django_convmemory.api.parsers import BoundedJSONParser
from django_convmemory.api.problems import Problem
from django_convmemory.api.scopes import UserScope
from django_convmemory.conversation import ConversationMemory, SessionHandle
from django_convmemory.memory import memories


class InScope(BasePermission):
    """Whether the scope admits the request."""

    def has_permission(self, request: Request, view: Any) -> bool:
        scope: UserScope = view.scope
        return scope.admits()


class ScopedView(GenericAPIView[Any]):
    """A view of the sessions that the request reaches. The site's DRF settings for its own views do not apply.

    The site's authentication classes do apply, unless ``CONVMEMORY_API`` names others.
    """

    renderer_classes = [UTF8JSONRenderer, PageRenderer]
    parser_classes = [BoundedJSONParser]
    content_negotiation_class = Negotiation
    metadata_class = SimpleMetadata
    versioning_class = None
    filter_backends = []
    pagination_class: type[pagination.Pages] | None = None
    # The default body in the browsable API.
    example: dict[str, Any] | None = None

    @functools.cached_property
    def scope(self) -> UserScope:
        """Whose sessions the request reaches."""
        (scope,) = conf.classes((conf.limits().scope,))
        made: UserScope = scope(self.request)
        return made

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        # What the address has before ours, as a tenant, is the site's: its scope finds it in the resolver's match.
        handler = getattr(self, request.method.lower(), None) if request.method.isalpha() else None
        ours = {"session_id", *(inspect.signature(handler).parameters if handler else ())}
        self.mount = {name: value for name, value in kwargs.items() if name not in ours}
        return super().dispatch(request, **{name: value for name, value in kwargs.items() if name in ours})

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

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Keep the session as ``If-Match`` has it while something is done to it. Raises a 412 where it has changed."""
        if self.request.headers.get("If-Match", "*").strip() == "*":
            yield
            return
        using = self.session._state.db
        with transaction.atomic(using=using):
            row = models.Session.objects.using(using).filter(pk=self.session.pk, revision=self.session.revision)
            # Locks the row, also where the database knows no other way.
            if not row.update(revision=F("revision")):
                raise Problem(
                    412,
                    "stale_revision",
                    "The session has changed since this ETag. Read the session again before you repeat the request.",
                )
            yield

    def again(self, row: models.SessionQuerySet) -> models.Session:
        """Read a session that was just written; somebody may have deleted it since."""
        found = row.with_clock().first()
        if found is None:
            raise NotFound("The session was deleted in the meantime.")
        return found

    @property
    def memory(self) -> ConversationMemory:
        """The memory of the session."""
        return memories[self.session.alias]

    @property
    def handle(self) -> SessionHandle:
        """The session, with the operations of its memory: this row, and none that is made in its place."""
        return self.memory.session(self.session)

    def query(self, serializer: type[forms.StrictSerializer], *more: str) -> dict[str, Any]:
        """Return the parameters of the query string. Raises a 400 for one that is wrong, unknown, or given twice.

        ``more`` are the names of those that somebody else reads.
        """
        given = self.request.query_params
        if not given:
            return _unasked(serializer)
        for name in given:
            if len(given.getlist(name)) > 1:
                raise ValidationError({name: ["The parameter appears more than once."]})
        read = serializer(data={name: given[name] for name in given if name not in more}, context={"also": more})
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
        of = self.mount | {"session_id": str(session.public_id)}
        return self.request.build_absolute_uri(reverse(name, kwargs=of))


class TaggedView(ScopedView):
    """A view of a session's state. A client can poll it with its ``ETag``, at the cost of one statement."""

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


def whole(position: str) -> int:
    """Return the position that an address names. Raises a 404 for what is none."""
    if is_whole(position):
        return int(position)
    raise Problem(404, "unknown_message", "The session has no message at this position.")


def is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0
