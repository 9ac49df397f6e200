"""Recounts the tokens of stored messages and summaries, after a site changed its token counter."""

from __future__ import annotations

import math
import time

from django.db import connections

from django_convmemory import models
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.counters import Counters
from django_convmemory.search import indexing as catching_up
from django_convmemory.store import columns, editing, index_rows, sql, transactions
from django_convmemory.store.orm import ORMStore

_CHUNK = 1000
# Seconds of counting after which the results are written.
_LONGEST_COUNT = 1.0
_UPDATE = f"UPDATE {sql.MESSAGE} SET tokens = %s, tokens_through = %s WHERE session_id = %s AND position = %s"  # noqa: S608


def recount(memory: ConversationMemory, session_id: int, *, using: str) -> bool:
    """Count the messages and summaries of a session with the memory's counter. Return whether the session exists.

    This is one transaction, which holds the lock of the session's row. An append waits for it. A compaction that began
    before it cannot publish. A redacted message keeps its tokens, because its content is gone.
    """
    return transactions.run(using, lambda: _recount(memory, session_id, using), idle=transactions.LONG_IDLE_SECONDS)


def _recount(memory: ConversationMemory, session_id: int, using: str) -> bool:
    sessions = models.Session.objects.using(using).filter(pk=session_id)
    # The conversation does not change: lists keep their order, and an old session can still be pruned.
    if not editing.begin(sessions, updated=False):
        return False
    summaries = list(models.Summary.objects.using(using).filter(session_id=session_id))
    ends = {summary.last_position for summary in summaries}
    counters, counters_at = _recount_messages(memory, session_id, using, ends)
    for summary in summaries:
        message = memory.options.summary_message(summary.text)
        # An empty summary is not shown.
        summary.tokens = memory.counter.count(message) if summary.text else 0
        if summary.last_position in counters_at:
            at = counters_at[summary.last_position]
            summary.covered_count, summary.covered_tokens = at.unpinned_count, at.unpinned_tokens
    names = ["tokens", "covered_count", "covered_tokens"]
    models.Summary.objects.using(using).bulk_update(summaries, names, batch_size=_CHUNK)
    threshold = memory.threshold
    indexed = transactions.latest(sessions).values_list("indexed_position", flat=True).get()
    editing.finish(using, session_id, counters, counters.last_position + 1, threshold, indexed_position=indexed)
    sessions.update(counter=memory.counter_name)
    return True


def _recount_messages(
    memory: ConversationMemory, session_id: int, using: str, ends: set[int]
) -> tuple[Counters, dict[int, Counters]]:
    """Count the messages. Return the counters after the last message, and the counters at each position in ``ends``."""
    rows = models.Message.objects.using(using).filter(session_id=session_id)
    counters, counters_at = Counters(), dict[int, Counters]()
    while True:
        unread = rows.filter(position__gt=counters.last_position)
        chunk = list(transactions.latest(unread).order_by("position")[:_CHUNK])
        if not chunk:
            return counters, counters_at
        changes, written_at = [], time.monotonic()
        for row in chunk:
            message = columns.message_of_row(row)
            tokens = max(1, row.tokens if row.redacted_at else memory.counter.count(message))
            counters, place = counters.append_one(message, tokens)
            changes.append((tokens, place.tokens_through, session_id, row.position))
            if row.position in ends:
                counters_at[row.position] = counters
            # A slow counter must not leave the transaction idle for so long that the database ends it.
            if row is chunk[-1] or time.monotonic() - written_at > _LONGEST_COUNT:
                with connections[using].cursor() as cursor:
                    cursor.executemany(_UPDATE, changes)
                changes, written_at = [], time.monotonic()


# Makes the index of a session from its messages.


def reindex(memory: ConversationMemory, session_id: int, *, using: str, damaged: bool) -> None:
    """Index the messages of a session that are not indexed. If the index is ``damaged``, remove it first.

    A compaction that runs while the index is removed cannot publish, because the session's epoch is raised. If the
    memory has no index, nothing is indexed.
    """
    if damaged:
        index_rows.reset(using, session_id)
    if memory.options.index:
        catching_up.catch_up(ORMStore(using), session_id, longest=math.inf)
