"""The header ``Idempotency-Key``: a retry of a request whose response was lost changes nothing.

A key is used if it has stored messages in the session, or if a session was created with it.
"""

from __future__ import annotations

import hashlib

from rest_framework.request import Request

from django_convmemory import models
from django_convmemory.api.problems import Problem
from django_convmemory.rules import creations


def key_of(request: Request) -> str | None:
    """Return the key of a request, or None. Raises a 400 if it cannot be one."""
    key: str | None = request.headers.get("Idempotency-Key")
    if key is not None and not 0 < len(key.strip()) <= 255:
        raise Problem(400, "invalid_idempotency_key", "Idempotency-Key must have 1 to 255 characters.")
    return key


def has_stored(session: models.Session, key: str) -> bool:
    """Return whether an append to ``session``, or a replacement in it, has used the key."""
    key_hash = hashlib.sha256(key.encode()).hexdigest()
    keys = session.convmemory_used_keys.using(session._state.db).filter(key_hash=key_hash)
    return keys.exists() and not keys.forgotten().exists()


def has_created(using: str | None, scope: str, key: str) -> bool:
    """Return whether a request of the owner that ``scope`` names has created a session with the key."""
    return models.Session.objects.using(using).filter(creation_key=creations.key_hash(scope, key)).exists()
