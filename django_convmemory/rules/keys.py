"""Idempotency keys: of appends, and of requests that create a session."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any, NamedTuple

from django_convmemory import exceptions
from django_convmemory.messages import dumps
from django_convmemory.rules.counters import Batch

# Note [A key is used once]
#
# An append must not be stored twice, and must not be lost in silence. So a session remembers each key that has stored
# messages, with an HMAC of their content:
#
# - The same content, whose messages are all there: a retry. Nothing is stored, and the receipt is that of the first
#   time.
# - Other content: an error. A view that makes its keys from positions would lose a reply otherwise, because positions
#   are used again after a cut.
# - One of the messages was removed: an error, also for the same content. It may be a late retry, which must not bring
#   back what was removed. Or it may be a new reply with the same words, which must not be lost. Nobody can tell, and
#   an error is right for both.
# - One of the messages was redacted: the HMAC is deleted, because somebody could use it to check a guess. So as many
#   messages as before count as a retry.
#
# A key is forgotten 30 days after one of its messages was removed.

# In seconds.
FORGOTTEN_AFTER = 30 * 24 * 3600


def check_reuse(batch: Batch, first_position: int, size: int, *, is_same: bool) -> None:
    """Raise IdempotencyConflict if the key of ``batch`` has stored other content.

    The key has stored ``size`` messages from ``first_position`` on. ``is_same``: it may be the content of ``batch``.
    """
    if size != (len(batch.entries) if batch.asked is None else 1) or not is_same:
        raise exceptions.IdempotencyConflict(
            f"This idempotency key stored other content at position {first_position}. Use a new key for new content, "
            "and the same content for a retry."
        )


def key_removed(first_position: int) -> exceptions.IdempotencyConflict:
    """Return the error for a key whose content was stored at this position, and was removed."""
    return exceptions.IdempotencyConflict(
        f"This idempotency key stored the same content at position {first_position}, and messages of it were "
        "removed since. Nothing was stored. To store the content again, use a new key."
    )


class Creation(NamedTuple):
    """A request that creates a session, with its idempotency key. The session that was created holds the two hashes.

    ``key_hash`` is the hash of the key and of its owner, so that each owner has keys of their own. ``request_hash``
    tells a retry from another request.
    """

    key_hash: str
    request_hash: str

    @classmethod
    def of(cls, scope: str, idempotency_key: str | None, *request: Any) -> Creation | None:
        """Return the creation for the owner that ``scope`` names. ``request`` is JSON. None: there is no key."""
        if idempotency_key is None:
            return None
        request_hash = hashlib.sha256(dumps(list(request)).encode()).hexdigest()
        return cls(creation_key(scope, idempotency_key), request_hash)


def creation_key(scope: str, idempotency_key: str) -> str:
    """Return the hash of an owner's key, in hex."""
    return hashlib.sha256(f"{scope}\0{idempotency_key}".encode()).hexdigest()


def session_key(idempotency_key: str) -> str:
    """Return a key for the session of a request that names none: the same key for each retry."""
    return str(uuid.UUID(bytes=hashlib.sha256(idempotency_key.encode()).digest()[:16], version=4))


def creation_conflict() -> exceptions.IdempotencyConflict:
    """Return the error for an idempotency key that created another session."""
    return exceptions.IdempotencyConflict(
        "This idempotency key has created a session by another request. Use a new key for a new request, and the same "
        "request for a retry."
    )
