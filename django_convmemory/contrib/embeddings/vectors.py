"""The vectors in the database: which are missing, storing them, and removing those of messages that go.

A worker reads messages, waits for the model, and stores their vectors. No vector may outlive its message, also if the
message goes meanwhile. It is as with the index of recall (:mod:`django_convmemory.store.index_rows`):

- Whoever removes or changes messages locks the session's row and raises its epoch. :func:`follow` removes the vectors
  in the same transaction.
- :func:`store` begins with an UPDATE of the session's row that compares the epoch with the one that was read before the
  messages.

So a redaction and the storing of vectors come one after the other. If the redaction commits first, the UPDATE waits for
its lock, finds another epoch, and nothing is stored. If the vectors come first, the redaction removes them.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from django_convmemory.contrib.embeddings.models import Vector
from django_convmemory.models import Session, SessionQuerySet
from django_convmemory.rules.segments import Indexable
from django_convmemory.search import indexing
from django_convmemory.search.reranking import Found
from django_convmemory.store import index_rows, transactions

# A text is embedded by its beginning, in characters. Most models read no more, and some refuse more.
LONGEST = 2_000


class Missing(NamedTuple):
    """The next messages of a session without a vector of the model, as they were at an epoch: texts by position.

    A text is empty if nothing of the message is embedded.
    """

    epoch: int
    texts: Mapping[int, str]


def problem(using: str) -> str | None:
    """Why no vector can be stored or removed, or None."""
    if Vector._meta.db_table in connections[using].introspection.table_names():
        return None
    return 'The table of the embeddings is missing, so redactions and deletions fail. Run "manage.py migrate".'


def of_session(using: str, session_id: Any) -> QuerySet[Vector]:
    """Return the vectors of a session."""
    return Vector.objects.using(using).filter(session_id=session_id)


def _last(using: str, session_id: Any, model: int) -> QuerySet[Vector, int]:
    """Return the position of the last vector of the model. It is found without reading the others."""
    rows = of_session(using, session_id).filter(model=model).order_by("-session_id", "-position")
    return rows.values_list("position", flat=True)[:1]


def behind(using: str, alias: str, model: int) -> SessionQuerySet:
    """Return the sessions of an alias that have messages after the last vector of the model."""
    sessions = Session.objects.using(using).filter(alias=alias)
    embedded = Coalesce(Subquery(_last(using, OuterRef("pk"), model)), 0)
    return sessions.alias(embedded=embedded).filter(last_position__gt=F("embedded"))


def missing(using: str, session_id: int, model: int, *, limit: int) -> Missing | None:
    """Return the next messages after the last vector, at most ``limit``. None: there are none, or no such session."""
    sessions = Session.objects.using(using).filter(pk=session_id)
    epoch, end = sessions.values_list("epoch", "last_position").first() or (0, 0)
    embedded = _last(using, session_id, model).first() or 0
    rows = index_rows.messages_of(using, session_id, embedded + 1, min(end, embedded + limit))
    texts = {stored.position: text_of(stored) for stored in rows}
    return Missing(epoch, texts) if texts else None


def text_of(stored: Indexable) -> str:
    """Return what is embedded of a message: the beginning of its text, or nothing."""
    if not indexing.terms_of(stored.message, redacted=stored.redacted):
        return ""
    return indexing.indexed_text(stored.message)[:LONGEST]


def store(using: str, session_id: int, model: int, epoch: int, vectors: Mapping[int, bytes]) -> bool:
    """Store vectors by position if the session is at the epoch at which their messages were read. Return whether."""

    def work() -> bool:
        if not Session.objects.using(using).filter(pk=session_id, epoch=epoch).lock():
            return False
        # Another worker may have stored them, or another model. A model that begins removes all of another one: if that
        # came back, it would find its last vector, and take the session for embedded.
        old = Q(position__in=vectors)
        of_session(using, session_id).filter(old | ~Q(model=model) if 1 in vectors else old).delete()
        new = [Vector(session_id=session_id, position=at, model=model, data=data) for at, data in vectors.items()]
        Vector.objects.using(using).bulk_create(new)
        return True

    return transactions.run(using, work, savepoint=True, happened=lambda: False)


def at(using: str, model: int, places: Iterable[Found]) -> dict[tuple[int, int], bytes]:
    """Return the vectors of the messages at ``places``, by session and position."""
    positions: dict[int, list[int]] = defaultdict(list)
    for session_id, position, _ in places:
        positions[session_id].append(position)
    conditions = [Q(session_id=pk, position__in=numbers) for pk, numbers in positions.items()]
    rows = Vector.objects.using(using).filter(functools.reduce(operator.or_, conditions), model=model)
    return {(pk, position): bytes(data) for pk, position, data in rows.values_list("session_id", "position", "data")}


def follow(using: str, session_id: int, first: int, last: int | None, copied_from: int | None, **kwargs: Any) -> None:
    """Remove the vectors of messages that go, and copy those of messages that are copied, in the same transaction."""
    if copied_from is None:
        rows = of_session(using, session_id).filter(position__gte=first)
        (rows if last is None else rows.filter(position__lte=last)).delete()
        return
    table = Vector._meta.db_table
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (session_id, position, model, data) SELECT %s, position, model, data "  # noqa: S608
            f"FROM {table} WHERE session_id = %s AND position BETWEEN %s AND %s",
            [session_id, copied_from, first, last],
        )
