"""Limits of messages a minute, for each user, and for each address of visitors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from rest_framework.throttling import UserRateThrottle

from django_convmemory.api.throttles import FixedWindowThrottle, address_of


class _Throttle(FixedWindowThrottle, UserRateThrottle):
    def get_ident(self, request: Any) -> str:
        return address_of(request)


class ChatThrottle(_Throttle):
    """Limits the messages of users: ``DEFAULT_THROTTLE_RATES["chat"]``."""

    scope = "chat"


class ReplyThrottle(_Throttle):
    """Limits the model calls, including repeated ones: ``DEFAULT_THROTTLE_RATES["reply"]``."""

    scope = "reply"


def seconds_to_wait(request: HttpRequest, throttle: Any) -> int:
    """Return the seconds that the client has to wait; 0 if the request is allowed."""
    return 0 if throttle.allow_request(request, None) else int(throttle.wait() or 1) + 1


def limited(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Answer 429 with ``Retry-After`` if the client exceeds the limit."""

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        seconds = seconds_to_wait(request, ChatThrottle())
        if not seconds:
            return view(request, *args, **kwargs)
        error = f"Too many messages. Please wait {seconds} seconds. Your text stays in the box."
        response = render(request, "chat/refused.html", {"error": error}, status=429)
        response["Retry-After"] = str(seconds)
        return response

    return wrapped
