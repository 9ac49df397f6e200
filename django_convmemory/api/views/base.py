"""What all endpoints share.

Before it looks at anything else, each view finds the session among those that the request may reach. If the session
belongs to somebody else, the response is the same as for a session that does not exist.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from django.apps import apps
from django.db import router
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import QueryDict
from django.urls import reverse
from django.utils.cache import patch_cache_control, patch_vary_headers
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.metadata import SimpleMetadata
from rest_framework.pagination import BasePagination
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from django_convmemory import models
from django_convmemory.api import conf, etags, formats, pagination, problems
from django_convmemory.api.scopes import UserScope
from django_convmemory.api.serializers.base import MAX_INTEGER, Nothing, StrictSerializer
from django_convmemory.api.serializers.sessions import SessionSerializer
from django_convmemory.exceptions import StaleRevision, UnknownMessage
from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory, SessionHandle
from django_convmemory.rules.keys import session_key
from django_convmemory.store import transactions

T = TypeVar("T")

WRITE_ANY_ROLE = "convmemory.write_any_role"


class InScope(BasePermission):
    """Whether the scope admits the request."""

    def has_permission(self, request: Request, view: Any) -> bool:
        scope: UserScope = view.scope
        return scope.admits()


class ScopedView(GenericAPIView[Any]):
    """A view of the sessions that the request reaches. The site's DRF settings for its own views do not apply.

    The site's authentication classes do apply, unless ``CONVMEMORY_API`` names others.
    """

    renderer_classes = [formats.UTF8JSONRenderer, formats.PageRenderer]
    parser_classes = [formats.BoundedJSONParser]
    content_negotiation_class = formats.Negotiation
    metadata_class = SimpleMetadata
    versioning_class = None
    filter_backends = []
    # Generators of schemas leave the view out. openapi.yaml describes it.
    schema = None
    pagination_class: type[BasePagination] = pagination.Pages
    # The body and the query string that the view accepts, unless it ignores them.
    serializer_class: type[StrictSerializer] = Nothing
    query_class: type[StrictSerializer] = Nothing
    # PATCH and DELETE are about the title and the metadata too, and not about the messages alone.
    changes_session = False
    # Limits the POST requests to the view, beside the throttles of the site.
    post_throttle: type[BaseThrottle] | None = None

    @functools.cached_property
    def scope(self) -> UserScope:
        """The sessions that the request may reach."""
        (scope_class,) = conf.named("SCOPE")
        scope: UserScope = scope_class(self.request)
        return scope

    @functools.cached_property
    def may_write_any_role(self) -> bool:
        """Whether the request has the permission of a trusted service, which may send what ``append`` takes."""
        user = self.scope.user
        return bool(user and user.has_perm(WRITE_ANY_ROLE))

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        # URL keyword arguments before ours (a tenant, say) belong to the site. A scope finds them in resolver_match.
        handler = getattr(self, request.method.lower(), None) if request.method.isalpha() else None
        ours = {"session_id", *(inspect.signature(handler).parameters if handler else ())}
        self.site_kwargs = {name: value for name, value in kwargs.items() if name not in ours}
        return super().dispatch(request, **{name: value for name, value in kwargs.items() if name in ours})

    def get_exception_handler(self) -> Any:
        return problems.exception_handler

    def get_permissions(self) -> list[Any]:
        return [InScope(), *(permission() for permission in conf.named("PERMISSION_CLASSES"))]

    def get_throttles(self) -> list[Any]:
        throttles = list(conf.named("THROTTLE_CLASSES"))
        if self.post_throttle is not None and self.request.method == "POST":
            throttles.append(self.post_throttle)
        return [throttle() for throttle in throttles]

    def get_renderers(self) -> list[Any]:
        # The browsable API needs DRF's templates, which are found if the site has DRF among its apps.
        pages = apps.is_installed("rest_framework")
        return [renderer() for renderer in self.renderer_classes if pages or renderer is not formats.PageRenderer]

    def get_authenticators(self) -> list[Any]:
        if conf.limits().authentication_classes is None:
            return list(super().get_authenticators())
        return [authentication() for authentication in conf.named("AUTHENTICATION_CLASSES")]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        changes = request.method not in SAFE_METHODS and request.method in self.allowed_methods
        if changes:
            formats.require_readable(request)
        if "session_id" in kwargs:
            self.session = self.find_session(kwargs["session_id"])
            self.check_object_permissions(request, self.session)
            if changes and self.if_match is not None:
                self.require_match(self.if_match)

    def require_match(self, if_match: str) -> None:
        """Raise a 412 unless ``If-Match`` names the session as it is now."""
        etags.require_match(if_match, self.session, details=self.changes_session)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        # A cache may not serve the response to anybody else or to the same client without asking this server.
        patch_cache_control(response, private=True, no_cache=True)
        patch_vary_headers(response, ["Accept", "Authorization", "Cookie"])
        return response

    @property
    def using(self) -> str:
        """The database that is written to. Reading it too, a client sees what it has just stored."""
        return router.db_for_write(models.Session)

    def get_queryset(self) -> models.SessionQuerySet:
        """Return the sessions that the request reaches, as :attr:`Session.state` needs them."""
        return self.reached().with_clock()

    def with_parent(self, sessions: models.SessionQuerySet) -> models.SessionQuerySet:
        """Add ``parent``: the public id of the session that each is a copy of, if the request reaches that session."""
        parents = self.reached().filter(pk=OuterRef("forked_from"))
        return sessions.annotate(parent=Subquery(parents.values("public_id")[:1]))

    def reached(self) -> models.SessionQuerySet:
        """Return the sessions that the request reaches. Every query of every view begins here."""
        reached = self.scope.sessions().using(self.using)
        if reached.query.distinct or reached.query.combinator:
            # Equal rows would differ in the time that with_clock() adds.
            reached = models.Session.objects.using(self.using).filter(pk__in=reached.values("pk"))
        return reached.filter(alias__in=conf.aliases())

    def find_session(self, session_id: str) -> models.Session:
        """Return the session with this public id. Raises a 404."""
        session = self.get_queryset().filter(public_id=as_uuid(session_id)).first()
        if session is None:
            raise NotFound("There is no such session.")
        return session

    @property
    def if_match(self) -> str | None:
        """The header ``If-Match``."""
        header: str | None = self.request.headers.get("If-Match")
        return header

    @property
    def revision(self) -> int | None:
        """The revision that ``If-Match`` names, or None without the header and for ``*``."""
        return None if (self.if_match or "*").strip() == "*" else self.session.revision

    def guarded(self, work: Callable[[], T], *, locks: bool = False) -> T:
        """Run ``work`` with the session locked as ``If-Match`` names it, and return what it returns.

        ``locks``: lock it without ``If-Match`` too, so that a position stays that of its message. Raises a 412 if the
        session has changed since.
        """
        if self.revision is None and not locks:
            return work()
        row = models.Session.objects.using(self.using).filter(pk=self.session.pk)
        if self.revision is not None:
            row = row.filter(revision=self.revision)
            if self.changes_session:
                row = row.filter(details=self.session.details)

        def work_locked() -> T:
            # The UPDATE locks the row on every database, also on those without SELECT … FOR UPDATE.
            if not row.lock():
                self.reread(self.session)
                raise etags.stale()
            return work()

        return transactions.run(self.using, work_locked, savepoint=True)

    def reread(self, session: models.Session) -> models.Session:
        """Read a session that was just written. Raises a 404 if it was deleted since."""
        rows = models.Session.objects.using(self.using).filter(pk=session.pk)
        row = self.with_parent(rows.with_clock()).first()
        if row is None:
            raise NotFound("The session was deleted in the meantime.")
        return row

    def position_of(self, message_id: uuid.UUID) -> int:
        """Return the position of the message with this id. Raises UnknownMessage."""
        rows = self.session.convmemory_messages.using(self.using).filter(public_id=message_id)
        position = transactions.latest(rows).values_list("position", flat=True).first()
        if position is None:
            raise UnknownMessage("The session has no message with this id.")
        return position

    @property
    def memory(self) -> ConversationMemory:
        """The memory of the session."""
        return memories[self.session.alias]

    @property
    def handle(self) -> SessionHandle:
        """A handle of this row. Once the row is gone, no other session takes its place."""
        return self.memory.session(self.session)

    def parameters(self) -> QueryDict:
        """Return the parameters of the query string that :attr:`query_class` checks."""
        return self.request.query_params

    def query(self) -> dict[str, Any]:
        """Return the parameters of the query string. Raises a 400 if a parameter is wrong, unknown or repeated."""
        parameters = self.parameters()
        if not parameters:
            return _defaults(self.query_class)
        for name in parameters:
            if len(parameters.getlist(name)) > 1:
                raise ValidationError({name: ["The parameter appears more than once."]})
        return _validated(self.query_class(data=parameters.dict()))

    def body(self) -> dict[str, Any]:
        """Return the body. Raises a 400 if it is not valid."""
        return _validated(self.get_serializer(data=self.request.data))

    def page(
        self, rows: QuerySet[Any], ordering: tuple[str, ...], limit: int | None, represent: Callable[[Any], Any]
    ) -> Response:
        """Return the response with a page of ``rows`` in this order, of ``limit`` entries at most.

        ``represent`` returns what the response shows of the rows on the page.
        """
        paginator: Any = self.paginator
        paginator.ordering, paginator.page_size = ordering, limit or conf.limits().default_page_size
        return self.get_paginated_response(represent(self.paginate_queryset(rows)))

    def represent(self, session: models.Session) -> Any:
        """Return a session as the API shows it."""
        return SessionSerializer(session, context={"url": self.url}).data

    def created(self, session: models.Session, memory: ConversationMemory) -> Response:
        """Return the response for a session that was created, now or by an earlier request with the same key."""
        headers = {"Location": self.url("session", session), "ETag": etags.of(session, memory)}
        return Response(self.represent(session), status=200 if session.replayed else 201, headers=headers)

    def url(self, name: str, session: models.Session) -> str:
        """Return the address of an endpoint of ``session``."""
        namespace = getattr(self.request.resolver_match, "namespace", "")
        name = f"{namespace}:{name}" if namespace else name
        # DRF's own reverse would keep query parameters of this request.
        kwargs = self.site_kwargs | {"session_id": str(session.public_id)}
        return self.request.build_absolute_uri(reverse(name, kwargs=kwargs))


class KeyedView(ScopedView):
    """A view whose POST obeys ``Idempotency-Key``: a retry of a request whose response was lost changes nothing.

    A key is used if it has stored messages in the session, or if a session was created with it. A key that was used is
    answered before ``If-Match`` is compared, because the first try has changed the revision.
    """

    _stale: StaleRevision | None = None

    @functools.cached_property
    def idempotency_key(self) -> str | None:
        """The header ``Idempotency-Key``, or what takes its place. Raises a 400 if it cannot be a key."""
        key: str | None = self.request.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key.strip()) <= 255:
            raise problems.Problem(400, "invalid_idempotency_key", "Idempotency-Key must have 1 to 255 characters.")
        return self.key_in_body() if key is None else key

    def key_in_body(self) -> str | None:
        """Return what takes the place of the header, if the body has it."""
        return None

    def require_match(self, if_match: str) -> None:
        try:
            super().require_match(if_match)
        except StaleRevision as error:
            if self.idempotency_key is None:
                raise
            self._stale = error

    @property
    def revision(self) -> int | None:
        # After a mismatch, a revision that no session is ever at.
        return super().revision if self._stale is None else MAX_INTEGER

    def once(self, work: Callable[[], T], is_used: Callable[[str], bool], *, locks: bool = False) -> T:
        """Run ``work``, which changes nothing if the key was used. Raises a 412 if it was not and the session changed.

        ``locks`` is that of :meth:`guarded`.
        """
        try:
            if self._stale is not None:
                raise self._stale
            return self.guarded(work, locks=locks)
        except StaleRevision:
            if self.idempotency_key is None or not is_used(self.idempotency_key):
                raise
            return work()


class TaggedView(ScopedView):
    """A view of a session's state. A client can poll it with its ``ETag``, at the cost of one statement."""

    def tag(self) -> str:
        return etags.of(self.session, self.memory)

    def get(self, request: Request, session_id: str) -> Response:
        # A view without parameters ignores the query string.
        query = {} if self.query_class is Nothing else self.query()
        if etags.matches(request.headers.get("If-None-Match"), self.tag()):
            return Response(status=304)
        return self.shown(query)

    @abc.abstractmethod
    def shown(self, query: dict[str, Any]) -> Response:
        """Return the response with the current state."""

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if request.method in ("GET", "HEAD") and response.status_code in (200, 304):
            response["ETag"] = self.tag()
        return response


@contextlib.contextmanager
def ids_in_body() -> Iterator[None]:
    """Turn the error of a body with the id of no message into a 409: the session exists, so it is no 404."""
    try:
        yield
    except UnknownMessage as error:
        raise problems.Problem(409, "unknown_message", str(error)) from None


def as_uuid(text: str) -> Any:
    """Return the id that a part of an address names, or None, which nothing has as its id."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _validated(serializer: Any) -> dict[str, Any]:
    serializer.is_valid(raise_exception=True)
    values: dict[str, Any] = serializer.validated_data
    return values


@functools.cache
def _defaults(serializer: type[StrictSerializer]) -> dict[str, Any]:
    """Return the values for a query without parameters. To validate it costs more than the rest of a short request."""
    return _validated(serializer(data={}))


def new_key(body: Mapping[str, Any], idempotency_key: str | None) -> str:
    """Return the key of a new session: that of the body, or a random one, which each retry makes again."""
    if "key" in body:
        return str(body["key"])
    return str(uuid.uuid4()) if idempotency_key is None else session_key(idempotency_key)
