"""What spares a request most of its changes of threads."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_only_middleware


@sync_only_middleware
def in_one_thread(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Have the middlewares before this one run one after the other in one thread, as under WSGI.

    Under ASGI each of their steps would be sent to a thread, and waited for: a dozen changes of threads for a request,
    which cost more than what they do. It belongs at the end of ``MIDDLEWARE``.
    """
    return get_response
