"""Views of sessions: they list, create, read, change, copy, fold, export and delete them."""

from __future__ import annotations

import abc
import itertools
from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models
from django_convmemory.api import etags
from django_convmemory.api.formats import JSONLinesRenderer, UTF8JSONRenderer
from django_convmemory.api.problems import Problem
from django_convmemory.api.serializers import sessions
from django_convmemory.api.throttles import CreateThrottle, ModelThrottle
from django_convmemory.api.views.base import KeyedView, ScopedView, TaggedView, ids_in_body, new_key
from django_convmemory.maintenance.transfer import exporting
from django_convmemory.memory import memories
from django_convmemory.rules.keys import creation_key


class SessionList(KeyedView):
    """The sessions of the user or visitor who makes the request."""

    serializer_class = sessions.NewSession
    query_class = sessions.SessionQuery
    post_throttle = CreateThrottle

    _ORDERINGS = {"created": ("id",), "updated": ("updated_at", "id"), "starred": ("starred_at", "id")}
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
        _, descending, by = query["ordering"].rpartition("-")
        # Those that are not starred have no time by which they could be in order.
        starred = "true" if by == "starred" else query["starred"]
        if starred != "any":
            rows = rows.filter(starred_at__isnull=starred == "false")
        ordering = tuple(f"{descending}{column}" for column in self._ORDERINGS[by])
        response = self.page(rows, ordering, query.get("limit"), self._listed)
        tag = etags.of_content(response.data)
        if etags.matches(request.headers.get("If-None-Match"), tag):
            return Response(status=304, headers={"ETag": tag})
        response["ETag"] = tag
        return response

    def _listed(self, rows: list[models.Session]) -> Any:
        context = {"url": self.url, "last_messages": sessions.last_messages(rows, self.using)}
        return sessions.ListedSessionSerializer(rows, many=True, context=context).data

    def post(self, request: Request) -> Response:
        body, key = self.body(), self.idempotency_key
        memory = memories[body["alias"]]
        handle = memory.session(new_key(body, key), **self.scope.whose())
        session = handle.create(title=body["title"], metadata=body["metadata"], idempotency_key=key)
        return self.created(session, memory)


class SessionDetail(TaggedView):
    """One session."""

    changes_session = True
    serializer_class = sessions.SessionChanges

    def get_queryset(self) -> models.SessionQuerySet:
        return self.with_parent(super().get_queryset())

    def shown(self, query: dict[str, Any]) -> Response:
        return Response(self.represent(self.session))

    def patch(self, request: Request, session_id: str) -> Response:
        body = self.body()
        self.guarded(lambda: self.handle.update(**body))
        self.session = self.reread(self.session)
        return Response(self.represent(self.session), headers={"ETag": self.tag()})

    def delete(self, request: Request, session_id: str) -> Response:
        self.guarded(self.handle.delete)
        return Response(status=204)


class SessionStatus(TaggedView):
    """The state of compaction, for a page that waits for it."""

    def shown(self, query: dict[str, Any]) -> Response:
        return Response(sessions.StatusSerializer(self.session).data)


class Truncate(ScopedView):
    """Delete the messages after a message, to get another answer. If-Match keeps a retry from deleting more."""

    serializer_class = sessions.Truncation

    def post(self, request: Request, session_id: str) -> Response:
        etags.require_header(self.if_match)
        after = self.body()["after"]
        truncate = lambda: self.handle.truncate(0 if after is None else self.position_of(after))  # noqa: E731
        with ids_in_body():
            removed = self.guarded(truncate, locks=True)
        return Response({"removed": removed}, headers={"ETag": etags.of(self.reread(self.session), self.memory)})


class Clear(ScopedView):
    """Delete all messages and summaries. The session stays."""

    def post(self, request: Request, session_id: str) -> Response:
        self.body()
        self.guarded(self.handle.clear)
        return Response(status=204)


class Fork(KeyedView):
    """Copy the session as it was at a message. The copy belongs to the user or visitor who makes the request."""

    serializer_class = sessions.Fork
    post_throttle = CreateThrottle

    def post(self, request: Request, session_id: str) -> Response:
        body, whose = self.body(), self.scope.whose()
        key = new_key(body, self.idempotency_key)
        target = self.memory.session(key, **whose).session_name

        def fork() -> Any:
            title = {"title": body["title"]} if "title" in body else {}
            at = self.position_of(body["at"])
            return self.handle.fork(at, **title, key=key, idempotency_key=self.idempotency_key, **whose)

        with ids_in_body():
            copy = self.once(fork, lambda used: self._has_created(target.scope, used), locks=True)
        row = self.reread(copy)
        row.replayed = copy.replayed
        return self.created(row, self.memory)

    def _has_created(self, scope: str, key: str) -> bool:
        """Return whether a request of the owner that ``scope`` names has created a session with the key."""
        rows = models.Session.objects.using(self.using)
        return rows.filter(creation_key=creation_key(scope, key)).exists()


class WorkView(ScopedView):
    """An operation that calls a model, so a worker does it. The response says where to read its state."""

    post_throttle = ModelThrottle

    def post(self, request: Request, session_id: str) -> Response:
        self.body()
        if not self.memory.summarizes:
            raise Problem(409, "nothing_to_do", "The memory of this session does not make summaries.")
        self.ask()
        status = self.url("session-status", self.session)
        return Response({"status": status}, status=202, headers={"Location": status})

    @abc.abstractmethod
    def ask(self) -> None:
        """Ask a worker to do the operation."""


class Compact(WorkView):
    """Ask a worker to fold what is due, even if an attempt has just failed."""

    def ask(self) -> None:
        # If no task can be sent, the sweep finds what is due.
        self.handle.request_compaction()


class Rebuild(WorkView):
    """Ask a worker to make the summary again from the messages."""

    def ask(self) -> None:
        if not self.session.current_version:
            raise Problem(409, "nothing_to_do", "The session has no summary yet.")
        if not self.handle.request_rebuild():
            raise Problem(
                503,
                "broker_unavailable",
                "No worker could be asked to rebuild the summary. If the broker is unavailable, try again later. If "
                "the memory's scheduler sends no tasks, as the NullScheduler does, the site must call rebuild() "
                "itself, outside a web request.",
            )


class Export(ScopedView):
    """Export the session as one line of JSON, which the command convmemory_import reads."""

    renderer_classes = [JSONLinesRenderer, UTF8JSONRenderer]

    def get(self, request: Request, session_id: str) -> HttpResponseBase:
        self.query()
        pieces = exporting.records(models.Session.objects.using(self.using).filter(pk=self.session.pk))
        # The messages are read before the first piece. Until then the response can become an error.
        first = list(itertools.islice(pieces, 1))
        if not first:
            self.reread(self.session)
        disposition = f'attachment; filename="{self.session.public_id}.jsonl"'
        headers = {"Content-Disposition": disposition, "X-Accel-Buffering": "no"}
        content = itertools.chain(first, pieces)
        return StreamingHttpResponse(content, content_type=JSONLinesRenderer.media_type, headers=headers)
