"""Views that list, create, read, change and delete sessions, and show their compaction."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from django.db import IntegrityError, router
from django.db.models import F
from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models
from django_convmemory.api import pagination, serializers as forms
from django_convmemory.api.problems import Problem
from django_convmemory.api.throttles import CreateThrottle
from django_convmemory.api.views.base import ScopedView, TaggedView
from django_convmemory.clock import Clock
from django_convmemory.memory import memories
from django_convmemory.stores import transactions


class SessionList(ScopedView):
    """The sessions of the user or visitor who makes the request."""

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
                    name_hash=name.name_hash,
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
            raise Problem(409, "session_exists", f"A session with the key {name.key!r:.300} already exists.") from None
        return self.made(self.again(sessions.named(name)), memory)


class SessionDetail(TaggedView):
    """One session."""

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
        changed = guarded.update(**changes, revision=F("revision") + 1, updated_at=Clock())
        self.session = self.again(row)
        if not changed:
            raise Problem(
                412,
                "stale_revision",
                "The session has changed since this ETag. Read the session again before you repeat the request.",
            )
        return Response(self.shown(self.session), headers={"ETag": self.tag()})

    def delete(self, request: Request, session_id: str) -> Response:
        with self.guarded():
            transactions.run(self.session._state.db or "default", self.session.delete)
        return Response(status=204)


class SessionStatus(TaggedView):
    """The state of compaction, for a page that waits for it."""

    serializer_class = forms.Nothing

    def get(self, request: Request, session_id: str) -> Response:
        if self.unchanged():
            return Response(status=304)
        return Response(forms.StatusSerializer(self.session).data)
