"""The idempotency keys of appends, as rows: see Note [A key is used once] in :mod:`.rules.used_keys`.

Appending stores a key in the transaction of its messages. The primary key of the table lets only one of several appends
with a key do so. The others wait for it at the lock of the session's row, and fail then. They look what it has stored.
"""

from __future__ import annotations

from django.conf import settings
from django.db.models import F
from django.utils.crypto import constant_time_compare, salted_hmac

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.rules import used_keys
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.values import Appended, Receipt, SessionName
from django_convmemory.store import transactions

_SALT = "django_convmemory.used_keys"


def content_of(batch: Batch, secret: str | bytes | None = None) -> str:
    """Return the HMAC of what ``batch`` says, by the site's ``SECRET_KEY`` or another ``secret``."""
    return salted_hmac(_SALT, batch.payload_hash, secret, algorithm="sha256").hexdigest()


def is_same(content: str, batch: Batch) -> bool:
    """Whether ``content`` is the HMAC of ``batch``, or was deleted."""
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return not content or any(constant_time_compare(content, content_of(batch, secret)) for secret in secrets)


def rows(using: str, name: SessionName, batch: Batch) -> models.UsedKeyQuerySet:
    """Return the row of the key of ``batch``, if it is used."""
    sessions = models.Session.objects.using(using).named(name).values("pk")
    return models.UsedKey.objects.using(using).filter(session__in=sessions, key_hash=batch.key_hash)


def replay(using: str, name: SessionName, batch: Batch) -> Appended | None:
    """Return what the key of ``batch`` has stored, or None if the key is not used.

    Raises :class:`~django_convmemory.exceptions.IdempotencyConflict` unless ``batch`` is a retry.
    """
    keys = rows(using, name, batch)
    names = ("session_id", "first_position", "size", "content", "gone_at", "session__epoch", "session__due_since")
    seen_epoch = None
    while True:
        key = transactions.latest(keys).values_list(*names).first()
        if key is None:
            return None
        session_id, first, size, content, gone_at, epoch, due_since = key
        if gone_at is not None and keys.forgotten().delete()[0]:
            return None
        used_keys.check_content(batch, first, size, is_same=is_same(content, batch))
        # If messages are missing at the epoch at which they should be there, the session is damaged.
        if gone_at is not None or epoch == seen_epoch:
            raise used_keys.removed(first)
        last = first + size - 1
        messages = models.Message.objects.using(using).filter(session_id=session_id, position__range=(first, last))
        # At another epoch, the messages may have been removed since the key was read.
        messages = transactions.latest(messages.filter(session__epoch=epoch)).order_by("session_id", "position")
        if stored := list(messages.values_list("public_id", "tokens")):
            ids, tokens = zip(*stored, strict=True)
            receipt = Receipt(first, last, sum(tokens), due_since is not None, replayed=True, ids=ids)
            return Appended(session_id, receipt, turned_due=False)
        seen_epoch = epoch


def mark_gone(using: str, session_id: int, after: int) -> None:
    """Note that the messages after the position ``after`` are removed. A key of which one is removed is gone."""
    keys = models.UsedKey.objects.using(using).filter(session_id=session_id, gone_at__isnull=True)
    keys.filter(first_position__gt=after + 1 - F("size")).update(gone_at=Clock())


def forget_content(using: str, session_id: int, position: int) -> None:
    """Delete the HMAC of which the message at ``position`` is a part, because the message is redacted."""
    # Of a key whose other messages were removed, too.
    keys = models.UsedKey.objects.using(using).filter(session_id=session_id)
    keys.filter(first_position__lte=position, first_position__gt=position - F("size")).update(content="")
