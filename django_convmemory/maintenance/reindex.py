"""Makes the index of a session again from its messages."""

from __future__ import annotations

import math

from django_convmemory import models
from django_convmemory.core import indexing as catching_up
from django_convmemory.memory import memories
from django_convmemory.stores import indexing
from django_convmemory.stores.orm import ORMStore


def reindex(session_id: int, *, using: str) -> bool:
    """Remove the index of a session, and rebuild it if the session's memory has one. Return whether it was rebuilt.

    A compaction that runs at the same time cannot publish, because the session's epoch is raised.
    """
    indexing.reset(using, session_id)
    alias = models.Session.objects.using(using).filter(pk=session_id).values_list("alias", flat=True).first()
    if alias is None or alias not in memories or not memories[alias].options.index:
        return False
    catching_up.catch_up(ORMStore(using), session_id, longest=math.inf)
    return True
