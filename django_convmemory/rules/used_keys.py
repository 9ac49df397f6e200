"""What an append does whose idempotency key was used before."""

from __future__ import annotations

from django_convmemory.exceptions import IdempotencyConflict
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


def check_content(batch: Batch, first_position: int, size: int, *, is_same: bool) -> None:
    """Raise IdempotencyConflict if the key of ``batch`` has stored other content.

    The key has stored ``size`` messages from ``first_position`` on. ``is_same``: it may be the content of ``batch``.
    """
    if size != (len(batch.entries) if batch.asked is None else 1) or not is_same:
        raise IdempotencyConflict(
            f"This idempotency key stored other content at position {first_position}. Use a new key for new content, "
            "and the same content for a retry."
        )


def removed(first_position: int) -> IdempotencyConflict:
    """Return the error for a key whose content was stored at this position, and was removed."""
    return IdempotencyConflict(
        f"This idempotency key stored the same content at position {first_position}, and messages of it were "
        "removed since. Nothing was stored. To store the content again, use a new key."
    )
