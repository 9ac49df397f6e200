"""Cursors that tell a client nothing, and that no client can make.

A cursor holds where a page begins: for some lists a primary key, which would tell how many sessions the site has.
Django's signatures do not hide what they sign. So the tag of a text is also the nonce of the mask that hides the text,
as in the SIV mode of encryption (RFC 5297). Equal pages have equal cursors, so that a list keeps its ETag.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from django.utils.crypto import constant_time_compare, salted_hmac

_TAG = 16
# A longer cursor is none of ours.
_LONGEST = 500


def seal(text: str, salt: str) -> str:
    """Return a cursor that holds ``text``. Only :func:`unseal` with the same ``salt`` reads it."""
    content = text.encode()
    tag = _tag(content, salt)
    return base64.urlsafe_b64encode(tag + _masked(content, tag, salt)).decode().rstrip("=")


def unseal(cursor: str, salt: str) -> str:
    """Return the text of a cursor. Raises ValueError unless :func:`seal` has made it with this ``salt``."""
    if len(cursor) > _LONGEST:
        raise ValueError("too long")
    try:
        sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    tag = sealed[:_TAG]
    content = _masked(sealed[_TAG:], tag, salt)
    if not constant_time_compare(tag, _tag(content, salt)):
        raise ValueError("not ours")
    return content.decode()


def _tag(content: bytes, salt: str) -> bytes:
    return salted_hmac(f"convmemory.cursors.tag.{salt}", content, algorithm="sha256").digest()[:_TAG]


def _masked(content: bytes, tag: bytes, salt: str) -> bytes:
    """Hide ``content``, or show it again."""
    key = salted_hmac(f"convmemory.cursors.mask.{salt}", tag, algorithm="sha256").digest()
    mask = hashlib.shake_256(key).digest(len(content))
    return bytes(left ^ right for left, right in zip(content, mask, strict=True))
