"""Following a session by server-sent events."""

from __future__ import annotations

import copy
from typing import Any

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from rest_framework.exceptions import APIException
from rest_framework.request import Request

from django_convmemory.api import conf, events, streams, throttles
from django_convmemory.api.negotiation import EventStreamRenderer, UTF8JSONRenderer
from django_convmemory.api.problems import Problem
from django_convmemory.api.views.base import ScopedView

# Seconds until a client of a server without ASGI asks again.
_ASK_AGAIN = 5.0


# With ATOMIC_REQUESTS, the transaction of the request would last as long as nothing else uses its connection.
@method_decorator(transaction.non_atomic_requests, name="dispatch")
class SessionEvents(ScopedView):
    """Follow the session: new messages, new summaries, and the state of compaction."""

    renderer_classes = [EventStreamRenderer, UTF8JSONRenderer]

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        # Before the framework writes the user into it whom it has authenticated.
        self.arrived = _copy(request)
        return super().dispatch(request, *args, **kwargs)

    def get(self, request: Request, session_id: str) -> HttpResponseBase:
        self.query()
        seen = events.Seen.from_id(request.headers.get("Last-Event-ID"))
        response: HttpResponseBase
        if isinstance(self.arrived, ASGIRequest) and request.method != "HEAD":
            response = StreamingHttpResponse(self._stream(seen), content_type=EventStreamRenderer.media_type)
        else:
            # A stream would occupy a thread of a WSGI server. The client asks again, with the last id.
            text = events.retry(_ASK_AGAIN) + events.news(self.session, seen)[0]
            response = HttpResponse(text, content_type=EventStreamRenderer.media_type)
        response["Cache-Control"] = "no-store, no-transform"
        # Neither nginx nor GZipMiddleware may hold back an event to join it with others.
        response["X-Accel-Buffering"] = "no"
        response["Content-Encoding"] = "identity"
        return response

    def _stream(self, seen: events.Seen | None) -> streams.Stream:
        client = throttles.client_of(self.request, self.scope)
        stream = streams.Stream(client, self.session, seen, self._admits)
        most = conf.limits().max_event_streams
        if not streams.admit(stream, most):
            detail = f"You follow {most} conversations already. Close one, or poll its status."
            raise Problem(429, "too_many_streams", detail)
        return stream

    def _admits(self) -> bool:
        """Return whether the request would still reach the session if it came now."""
        view = copy.copy(self)
        vars(view).pop("scope", None)
        view.request = view.initialize_request(_anew(self.arrived))
        try:
            view.perform_authentication(view.request)
            view.check_permissions(view.request)
            view.check_object_permissions(view.request, view.find_session(self.kwargs["session_id"]))
        except (APIException, Http404, PermissionDenied):
            # The stream ends, and the client gets this answer when it connects again.
            return False
        return True


def _copy(request: HttpRequest) -> HttpRequest:
    copied = copy.copy(request)
    copied.resolver_match = request.resolver_match  # Django leaves it out of copies.
    return copied


def _anew(request: HttpRequest) -> HttpRequest:
    """Return the request with the site's session and the user who is logged in as they are now.

    If another middleware than Django's has found out the user, the user stays.
    """
    request = _copy(request)
    session = getattr(request, "session", None)
    if session is not None:
        request.session = type(session)(session.session_key)
        if hasattr(request, "auser"):
            vars(request).pop("_cached_user", None)
            AuthenticationMiddleware(lambda request: HttpResponse()).process_request(request)
    return request
