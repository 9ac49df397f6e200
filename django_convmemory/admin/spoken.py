"""Reads what messages say, as search does: names, texts and the arguments of calls. Of long messages, the beginning."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Left, Length

from django_convmemory import models
from django_convmemory.core.recall.documents import indexed_text
from django_convmemory.fields import ExactJSONField
from django_convmemory.stores.columns import message_of

# Characters of a text, and of the rest of a message, that are read.
MAX_TEXT, MAX_WIRE = 20_000, 100_000
_COLUMNS = ("session_id", "position", "role", "kind", "tokens", "created_at")


class Spoken(NamedTuple):
    """A message that says something."""

    session_id: int
    position: int
    role: str
    tokens: int
    created_at: Any
    text: str


def at(using: str, places: Iterable[tuple[int, int]]) -> list[Spoken]:
    """Return the messages at these places, each the id of a session and a position, in the order of both."""
    positions: dict[int, list[int]] = collections.defaultdict(list)
    for session_id, position in places:
        positions[session_id].append(position)
    if not positions:
        return []
    conditions = [Q(session_id=session_id, position__in=numbers) for session_id, numbers in positions.items()]
    return read(models.Message.objects.using(using).filter(functools.reduce(operator.or_, conditions)))


def read(messages: Any) -> list[Spoken]:
    """Return those of ``messages``, a query, that say something, in the order of their sessions and positions."""
    rows = messages.alias(wire_length=Length("wire")).annotate(
        beginning=Left("content", MAX_TEXT),
        small=Case(When(wire_length__gt=MAX_WIRE, then=Value(None)), default=F("wire"), output_field=ExactJSONField()),
    )
    spoken = [_spoken(*row) for row in rows.values_list(*_COLUMNS, "beginning", "small")]
    return sorted(message for message in spoken if message.text)


def _spoken(
    session_id: int, position: int, role: str, kind: str, tokens: int, created_at: Any, content: str | None, wire: Any
) -> Spoken:
    text = indexed_text(message_of(role, kind, content, wire, None))
    return Spoken(session_id, position, role, tokens, created_at, text)
