"""Makes the index of a session from its messages."""

from __future__ import annotations

import math

from django_convmemory.operations.conversation import ConversationMemory
from django_convmemory.search import indexing as catching_up
from django_convmemory.store import index_rows
from django_convmemory.store.orm import ORMStore


def reindex(memory: ConversationMemory, session_id: int, *, using: str, damaged: bool) -> None:
    """Index the messages of a session that are not indexed. If the index is ``damaged``, remove it first.

    A compaction that runs while the index is removed cannot publish, because the session's epoch is raised. If the
    memory has no index, nothing is indexed.
    """
    if damaged:
        index_rows.reset(using, session_id)
    if memory.options.index:
        catching_up.catch_up(ORMStore(using), session_id, longest=math.inf)
