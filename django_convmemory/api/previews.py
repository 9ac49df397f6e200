"""The last messages of listed sessions, as a list shows them: one line each, in one statement for all."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Sequence
from typing import Any

from django.db.models import Q
from django.db.models.functions import Left

from django_convmemory import clock, models
from django_convmemory.store import columns

# In characters: the longest text of a preview, and the longest wire form that is read for one. An image is longer.
MAX_TEXT = 200
_LONGEST_WIRE = 20_000


def last_messages(sessions: Sequence[models.Session], using: str) -> dict[int, dict[str, Any]]:
    """Return the previews of the last messages of ``sessions``, by the primary keys of the sessions."""
    places = [Q(session_id=session.pk, position=session.last_position) for session in sessions if session.last_position]
    if not places:
        return {}
    rows = models.Message.objects.using(using).filter(functools.reduce(operator.or_, places))
    names = ("session_id", "position", "role", "created_at", "redacted_at")
    return {
        session_id: {
            "position": position,
            "role": role,
            "text": "" if redacted_at else _text(role, content, wire),
            "created_at": clock.aware(created_at, using),
            "redacted": redacted_at is not None,
        }
        for session_id, position, role, created_at, redacted_at, content, wire in rows.values_list(
            *names, Left("content", MAX_TEXT), Left("wire", _LONGEST_WIRE + 1)
        )
    }


def _text(role: str, content: str | None, wire: str | None) -> str:
    if content is None and wire is not None and len(wire) <= _LONGEST_WIRE:
        content = columns.message_of(role, "", None, json.loads(wire), None).text
    return (content or "")[:MAX_TEXT]
