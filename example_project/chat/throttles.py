"""How much of a model somebody may use: so many messages a minute, by user, or by address for visitors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from rest_framework.throttling import UserRateThrottle


class ChatThrottle(UserRateThrottle):
    """``DEFAULT_THROTTLE_RATES["chat"]``."""

    scope = "chat"


def limited(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Refuse what is too much with 429, and say when to try again."""

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        throttle: Any = ChatThrottle()
        if throttle.allow_request(request, None):
            return view(request, *args, **kwargs)
        seconds = int(throttle.wait() or 1) + 1
        error = f"That was a lot. Please wait {seconds} seconds; what you have written stays in the box."
        return _refused(request, error, seconds)

    return wrapped


def _refused(request: HttpRequest, error: str, seconds: int) -> HttpResponse:
    response = render(request, "chat/refused.html", {"error": error}, status=429)
    response["Retry-After"] = str(seconds)
    return response
