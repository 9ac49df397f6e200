"""Operations on a whole session."""

from __future__ import annotations

import abc
from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models
from django_convmemory.api import etags, idempotency
from django_convmemory.api.negotiation import JSONLinesRenderer, UTF8JSONRenderer
from django_convmemory.api.problems import Problem
from django_convmemory.api.serializers import actions
from django_convmemory.api.throttles import CreateThrottle, ModelThrottle
from django_convmemory.api.views.base import KeyedView, ScopedView, new_key
from django_convmemory.exceptions import UnknownMessage
from django_convmemory.maintenance.transfer import exporting


class Truncate(ScopedView):
    """Delete the messages after a position, to get another answer. If-Match keeps a retry from deleting more."""

    serializer_class = actions.Truncation

    def post(self, request: Request, session_id: str) -> Response:
        etags.require_header(self.if_match)
        return Response({"removed": self.handle.truncate(self.body()["after"], self.revision)})


class Clear(ScopedView):
    """Delete all messages and summaries. The session stays."""

    def post(self, request: Request, session_id: str) -> Response:
        self.body()
        self.guarded(self.handle.clear)
        return Response(status=204)


class Fork(KeyedView):
    """Copy the session as it was at a position. The copy belongs to the user or visitor who makes the request."""

    serializer_class = actions.Fork
    post_throttle = CreateThrottle

    def post(self, request: Request, session_id: str) -> Response:
        body, whose = self.body(), self.scope.whose()
        key = new_key(body, self.idempotency_key)
        copied: dict[str, Any] = {name: body[name] for name in ("at", "title") if name in body}
        target = self.memory.session(key, **whose).session_name
        try:
            copy = self.once(
                lambda: self.handle.fork(**copied, key=key, idempotency_key=self.idempotency_key, **whose),
                lambda used: idempotency.has_created(self.session._state.db, target.scope, used),
            )
        except UnknownMessage as error:
            # The session exists, but has no such position: a conflict with its state, not a 404.
            raise Problem(409, "unknown_message", str(error)) from None
        row = self.reread(copy)
        row.replayed = copy.replayed
        return self.created(row, self.memory)


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
        using = self.session._state.db or "default"
        head = next(exporting.heads(models.Session.objects.using(using).filter(pk=self.session.pk)), None)
        if head is None:
            raise NotFound("There is no such session.")
        response = StreamingHttpResponse(
            exporting.pieces(head, using),
            content_type=JSONLinesRenderer.media_type,
            headers={"X-Accel-Buffering": "no"},
        )
        response["Content-Disposition"] = f'attachment; filename="{self.session.public_id}.jsonl"'
        return response
