"""How much of a model somebody may use: so many messages a minute, by user, or by address for visitors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from rest_framework.settings import api_settings
from rest_framework.throttling import UserRateThrottle


class _Throttle(UserRateThrottle):
    def get_ident(self, request: Any) -> str:
        # Without NUM_PROXIES a header that anybody can send would count for the address.
        if api_settings.NUM_PROXIES is None:
            return str(request.META.get("REMOTE_ADDR", ""))
        return str(super().get_ident(request))


class ChatThrottle(_Throttle):
    """``DEFAULT_THROTTLE_RATES["chat"]``: what is said."""

    scope = "chat"


class ReplyThrottle(_Throttle):
    """``DEFAULT_THROTTLE_RATES["reply"]``: what a model is asked, again and again where it fails."""

    scope = "reply"


def seconds_to_wait(request: HttpRequest, throttle: Any) -> int:
    """Return for how long somebody has to wait; 0 where they may go on."""
    return 0 if throttle.allow_request(request, None) else int(throttle.wait() or 1) + 1


def limited(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Refuse what is too much with 429, and say when to try again."""

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        seconds = seconds_to_wait(request, ChatThrottle())
        if not seconds:
            return view(request, *args, **kwargs)
        error = f"That was a lot. Please wait {seconds} seconds; what you have written stays in the box."
        response = render(request, "chat/refused.html", {"error": error}, status=429)
        response["Retry-After"] = str(seconds)
        return response

    return wrapped
