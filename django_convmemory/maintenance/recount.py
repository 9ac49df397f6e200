"""Counting the tokens of what is stored anew, after a site changed its token counter."""

from __future__ import annotations

from django.db import connections

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.conversation import ConversationMemory
from django_convmemory.core.context import summary_message
from django_convmemory.core.counters import Counters
from django_convmemory.core.values import DueRule
from django_convmemory.stores import columns, editing, sql, transactions

_CHUNK = 1000
_UPDATE = f"UPDATE {sql.MESSAGE} SET tokens = %s, tokens_through = %s WHERE session_id = %s AND position = %s"  # noqa: S608


def recount(memory: ConversationMemory, session_id: int, *, using: str) -> bool:
    """Count the messages and summaries of a session with the memory's counter, and return whether it is there.

    In one transaction, under the lock of the session's row: an append meanwhile waits, and a compaction that began
    before cannot publish. What is redacted keeps its tokens, for what it said is gone.
    """
    return transactions.run(using, lambda: _recount(memory, session_id, using))


def _recount(memory: ConversationMemory, session_id: int, using: str) -> bool:
    sessions = models.Session.objects.using(using).filter(pk=session_id)
    if not editing.begin(sessions):
        return False
    summaries = list(models.Summary.objects.using(using).filter(session_id=session_id))
    covered = _recount_messages(memory, session_id, using, {summary.last_position for summary in summaries})
    counters = covered.pop(0)
    for summary in summaries:
        summary.tokens = memory.counter.count(summary_message(memory.options.summary_prefix, summary.text))
        if summary.last_position in covered:
            summary.covered_tokens = covered[summary.last_position].unpinned_tokens
    models.Summary.objects.using(using).bulk_update(summaries, ["tokens", "covered_tokens"], batch_size=_CHUNK)
    editing.finish(using, session_id, counters, counters.last_position + 1, DueRule(memory.strategy.threshold))
    sessions.update(counter=memory.counter.name[:100], updated_at=Clock())
    return True


def _recount_messages(memory: ConversationMemory, session_id: int, using: str, ends: set[int]) -> dict[int, Counters]:
    """Count the messages, and return the books at each of ``ends``, and at 0 those at the last message."""
    rows = models.Message.objects.using(using).filter(session_id=session_id)
    counters = Counters()
    books: dict[int, Counters] = {}
    while True:
        chunk = list(
            transactions.latest(rows.filter(position__gt=counters.last_position)).order_by("position")[:_CHUNK]
        )
        if not chunk:
            return {**books, 0: counters}
        changes = []
        for row in chunk:
            message = columns.message_of_row(row)
            tokens = row.tokens if row.redacted_at else max(1, memory.counter.count(message))
            counters, place = counters.append_one(message, tokens)
            changes.append((tokens, place.tokens_through, session_id, row.position))
            if row.position in ends:
                books[row.position] = counters
        with connections[using].cursor() as cursor:
            cursor.executemany(_UPDATE, changes)
