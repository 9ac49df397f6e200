"""A middleware that avoids most thread changes of a request."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_only_middleware


@sync_only_middleware
def in_one_thread(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Make the middlewares before this one run in one thread, as under WSGI.

    Under ASGI, Django would otherwise send each of their steps to a thread and wait for it. That is about a dozen
    thread changes for a request, which take longer than the steps. This middleware must be the last in ``MIDDLEWARE``.
    """
    return get_response
