"""Limits on how often a client may make requests that cost something.

The rates are set as DRF's are: ``REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"convmemory_append": "60/min", …}}``. A
rate of None means no limit. Requests are counted per user, and for visitors per IP address.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle, SimpleRateThrottle

from django_convmemory.api.scopes import UserScope


def client_of(request: Request, scope: UserScope) -> str:
    """Return the name by which the request is counted: that of its user, or its IP address."""
    return scope.identity or f"address-{address_of(request)}"


def address_of(request: Request) -> str:
    """Return the IP address of the client. Behind proxies, ``NUM_PROXIES`` says which one to believe."""
    # Without NUM_PROXIES, DRF would trust X-Forwarded-For, which any client can set.
    if api_settings.NUM_PROXIES is None:
        return str(request.META.get("REMOTE_ADDR", ""))
    return str(BaseThrottle().get_ident(request))


class FixedWindowThrottle(SimpleRateThrottle):
    """A throttle that counts requests in windows: with ``5/min``, five from each full minute to the next.

    DRF's own throttles keep a list of times in the cache. They read it and write it back, so requests at the same time
    overwrite each other's entries, and too many pass. Here each request raises a number. Redis, Memcached, and Django's
    cache in the memory of one process do that atomically, so exactly as many requests pass as the rate says. Django's
    caches in files and in the database do not.

    Around the end of a window, a client may make the requests of two windows in a short time.
    """

    # Set by the base class: the rate, in requests and seconds.
    num_requests: int
    duration: int

    def allow_request(self, request: Request, view: Any) -> bool:
        if self.rate is None or (key := self.get_cache_key(request, view)) is None:
            return True
        self.now = self.timer()
        window = int(self.now // self.duration)
        return self._raise(f"{key}_{window}") <= self.num_requests

    def _raise(self, key: str) -> int:
        # Kept for two windows, so that it does not expire just before it is raised. Redis would keep it for ever then.
        if self.cache.add(key, 1, 2 * self.duration):
            return 1
        try:
            return int(self.cache.incr(key))
        except ValueError:
            # The cache was emptied in between, or is one that stores nothing.
            return 1

    def wait(self) -> int:
        """Return the seconds until the next window."""
        return math.ceil(self.duration - self.now % self.duration)


class _ScopedThrottle(FixedWindowThrottle):
    default: str | None = None

    def get_rate(self) -> str | None:
        rates: Any = api_settings.DEFAULT_THROTTLE_RATES or {}
        rate: str | None = rates.get(self.scope, self.default)
        return rate

    def get_cache_key(self, request: Request, view: Any) -> str:
        client = client_of(request, view.scope)
        # Hashed, because the name may be longer than a cache allows a key to be.
        return self.cache_format % {"scope": self.scope, "ident": hashlib.sha256(client.encode()).hexdigest()}


class CreateThrottle(_ScopedThrottle):
    """Limits new sessions and copies by the rate ``convmemory_create``. Without a rate there is no limit."""

    scope = "convmemory_create"


class AppendThrottle(_ScopedThrottle):
    """Limits appends by the rate ``convmemory_append``. Without a rate there is no limit."""

    scope = "convmemory_append"


class ModelThrottle(_ScopedThrottle):
    """Limits ``compact`` and ``rebuild``, which call a model, by ``convmemory_model``: 30 an hour by default."""

    scope = "convmemory_model"
    default = "30/hour"


class TurnThrottle(_ScopedThrottle):
    """Limits turns, which call a model too, by ``convmemory_turn``: 20 a minute by default."""

    scope = "convmemory_turn"
    default = "20/min"
