"""Views that list, create, read, change and delete sessions, and show their compaction."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory.api import serializers
from django_convmemory.api.throttles import CreateThrottle
from django_convmemory.api.views.base import ScopedView, TaggedView
from django_convmemory.memory import memories


class SessionList(ScopedView):
    """The sessions of the user or visitor who makes the request."""

    serializer_class = serializers.NewSession
    example: dict[str, Any] | None = {"title": "Lisbon in May"}
    query_class = serializers.SessionQuery
    post_throttle = CreateThrottle

    _ORDERINGS = {
        "-created": ("-id",),
        "created": ("id",),
        "-updated": ("-updated_at", "-id"),
        "updated": ("updated_at", "id"),
    }

    def get(self, request: Request) -> Response:
        query = self.query()
        no_lookups = {"cursor", "limit", "ordering", "state"}
        rows = self.get_queryset().filter(**{name: query[name] for name in query.keys() - no_lookups})
        if "state" in query:
            rows = rows.in_state(query["state"])
        serializer = functools.partial(serializers.SessionSerializer, context={"url": self.url})
        return self.page(rows, serializer, self._ORDERINGS[query["ordering"]], query.get("limit"))

    def post(self, request: Request) -> Response:
        body = self.body()
        memory = memories[body["alias"]]
        handle = memory.session(body.get("key") or str(uuid.uuid4()), **self.scope.whose())
        return self.created(handle.create(title=body["title"], metadata=body["metadata"]), memory)


class SessionDetail(TaggedView):
    """One session."""

    serializer_class = serializers.SessionChanges

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
        return Response(serializers.StatusSerializer(self.session).data)
