"""The idempotency keys of messages that were deleted, so that a late retry of their append stores nothing.

A message holds the key that stored it. When it is deleted, the key goes to a text in the session's row. The content is
gone then, so the text has no hash of it, with which somebody could check a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# Retries come within minutes. A session keeps so many keys, those of its last messages that were deleted.
MAX_SPENT_KEYS = 64
# Hex digits of a key's hash. 128 bits are enough to tell 64 keys apart.
_DIGITS = 32


class SpentKey(NamedTuple):
    """A key, with the position at which it stored its first message, and the number of its messages."""

    mark: str
    first_position: int
    size: int


def spend(text: str, keys: Iterable[tuple[str, int, int]]) -> str:
    """Return the spent keys of a session after messages with ``keys`` were deleted.

    Each key is the hash, the first position and the number of messages. The newest comes first, as in ``text``.
    """
    added = [f"{key_hash[:_DIGITS]}:{first}:{size}" for key_hash, first, size in keys]
    return " ".join([*added, *text.split()][:MAX_SPENT_KEYS])


def find(text: str | None, key_hash: str) -> SpentKey | None:
    """Return the spent key with this hash, or None."""
    for entry in (text or "").split():
        mark, first, size = entry.split(":")
        if mark == key_hash[:_DIGITS]:
            return SpentKey(mark, int(first), int(size))
    return None
