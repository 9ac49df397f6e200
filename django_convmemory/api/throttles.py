"""Limits on how often a client may make requests that cost something.

The rates are set as DRF's are: ``REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"convmemory_append": "60/min", …}}``. A
rate of None means no limit. Requests are counted per user, and for visitors per IP address.
"""

from __future__ import annotations

import hashlib
from typing import Any

from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import SimpleRateThrottle


class _ScopedThrottle(SimpleRateThrottle):
    default: str | None = None

    def get_rate(self) -> str | None:
        rates: Any = api_settings.DEFAULT_THROTTLE_RATES or {}
        rate: str | None = rates.get(self.scope, self.default)
        return rate

    def get_cache_key(self, request: Request, view: Any) -> str:
        identity = view.scope.identity or f"address-{self.get_ident(request)}"
        # Hashed, because the identity may be longer than a cache allows a key to be.
        return self.cache_format % {"scope": self.scope, "ident": hashlib.sha256(identity.encode()).hexdigest()}

    def get_ident(self, request: Request) -> str:
        # Without NUM_PROXIES, DRF would trust X-Forwarded-For, which any client can set.
        if api_settings.NUM_PROXIES is None:
            return str(request.META.get("REMOTE_ADDR", ""))
        return str(super().get_ident(request))


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
