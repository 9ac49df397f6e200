"""Idempotency keys of requests that create a session. The session that was created holds the key, as two hashes."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any, NamedTuple

from django_convmemory.exceptions import IdempotencyConflict
from django_convmemory.messages import dumps


class Creation(NamedTuple):
    """A request that creates a session, with its idempotency key.

    ``key_hash`` is the hash of the key and of its owner, so that each owner has keys of their own. ``request_hash``
    tells a retry from another request.
    """

    key_hash: str
    request_hash: str


def creation(scope: str, idempotency_key: str | None, *request: Any) -> Creation | None:
    """Return the creation for the owner that ``scope`` names. ``request`` is JSON. None: there is no key."""
    if idempotency_key is None:
        return None
    return Creation(key_hash(scope, idempotency_key), hashlib.sha256(dumps(list(request)).encode()).hexdigest())


def key_hash(scope: str, idempotency_key: str) -> str:
    """Return the hash of an owner's key, in hex."""
    return hashlib.sha256(f"{scope}\0{idempotency_key}".encode()).hexdigest()


def session_key(idempotency_key: str) -> str:
    """Return a key for the session of a request that names none: the same key for each retry."""
    return str(uuid.UUID(bytes=hashlib.sha256(idempotency_key.encode()).digest()[:16], version=4))


def conflict() -> IdempotencyConflict:
    """Return the error for a key that created another session."""
    return IdempotencyConflict(
        "This idempotency key has created a session by another request. Use a new key for a new request, and the same "
        "request for a retry."
    )
