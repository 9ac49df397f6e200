"""Views that list, create, read, change and delete sessions, and show their compaction."""

from __future__ import annotations

from typing import Any

from django.db import router
from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models
from django_convmemory.api import etags, previews
from django_convmemory.api.serializers.sessions import (
    ListedSessionSerializer,
    NewSession,
    SessionChanges,
    SessionQuery,
    StatusSerializer,
)
from django_convmemory.api.throttles import CreateThrottle
from django_convmemory.api.views.base import KeyedView, TaggedView, new_key
from django_convmemory.memory import memories


class SessionList(KeyedView):
    """The sessions of the user or visitor who makes the request."""

    serializer_class = NewSession
    query_class = SessionQuery
    post_throttle = CreateThrottle

    _ORDERINGS = {
        "-created": ("-id",),
        "created": ("id",),
        "-updated": ("-updated_at", "-id"),
        "updated": ("updated_at", "id"),
        "-starred": ("-starred_at", "-id"),
        "starred": ("starred_at", "id"),
    }
    # The other parameters are lookups.
    _NO_LOOKUPS = frozenset({"cursor", "limit", "ordering", "state", "archived", "starred"})

    def get(self, request: Request) -> Response:
        query = self.query()
        rows = self.with_parent(self.get_queryset())
        rows = rows.filter(**{name: query[name] for name in query.keys() - self._NO_LOOKUPS})
        if "state" in query:
            rows = rows.in_state(query["state"])
        if query["archived"] != "any":
            rows = rows.filter(archived_at__isnull=query["archived"] == "false")
        # Those that are not starred have no time by which they could be in order.
        starred = "true" if query["ordering"].endswith("starred") else query.get("starred", "any")
        if starred != "any":
            rows = rows.filter(starred_at__isnull=starred == "false")
        response = self.page(rows, self._listed, self._ORDERINGS[query["ordering"]], query.get("limit"))
        tag = etags.of_content(response.data)
        if etags.matches(request.headers.get("If-None-Match"), tag):
            return Response(status=304, headers={"ETag": tag})
        response["ETag"] = tag
        return response

    def _listed(self, sessions: list[models.Session], *, many: bool) -> Any:
        using = router.db_for_write(models.Session)
        context = {"url": self.url, "last_messages": previews.last_messages(sessions, using)}
        return ListedSessionSerializer(sessions, many=many, context=context)

    def post(self, request: Request) -> Response:
        body, key = self.body(), self.idempotency_key
        memory = memories[body["alias"]]
        handle = memory.session(new_key(body, key), **self.scope.whose())
        session = handle.create(title=body["title"], metadata=body["metadata"], idempotency_key=key)
        return self.created(session, memory)


class SessionDetail(TaggedView):
    """One session."""

    serializer_class = SessionChanges

    def get_queryset(self) -> models.SessionQuerySet:
        return self.with_parent(super().get_queryset())

    def get(self, request: Request, session_id: str) -> Response:
        if self.unchanged():
            return Response(status=304)
        return Response(self.represent(self.session))

    def patch(self, request: Request, session_id: str) -> Response:
        self.handle.update(**self.body(), revision=self.revision)
        self.session = self.reread(self.session)
        return Response(self.represent(self.session), headers={"ETag": self.tag()})

    def delete(self, request: Request, session_id: str) -> Response:
        self.handle.delete(self.revision)
        return Response(status=204)


class SessionStatus(TaggedView):
    """The state of compaction, for a page that waits for it."""

    def get(self, request: Request, session_id: str) -> Response:
        if self.unchanged():
            return Response(status=304)
        return Response(StatusSerializer(self.session).data)
