"""Brings the index that search uses up to date.

A session is indexed before its messages are folded, so an outage of the model leaves nothing unindexed. A memory that
folds nothing takes the lease only to index.
"""

from __future__ import annotations

import logging
import time

from django_convmemory.core.runs import Outcome, Result
from django_convmemory.core.store import Store
from django_convmemory.core.values import Claim, DueRule

logger = logging.getLogger(__name__)

# In seconds. A longer index is finished by the next run.
LONGEST = 30.0
LEASE = 3 * LONGEST


def catch_up(store: Store, session_id: int, *, longest: float = LONGEST) -> int:
    """Index the messages of the session that are not indexed, for ``longest`` seconds. Return how many it indexed.

    It needs no lease: if another process indexes the session at the same time, one of the two changes nothing.
    Commands pass ``math.inf``, because no later run would index the rest.
    """
    until = time.monotonic() + longest
    total, more = store.index(session_id)
    while more and time.monotonic() < until:
        count, more = store.index(session_id)
        total += count
    return total


def run(store: Store, session_id: int, rule: DueRule, *, asked: bool) -> Result:
    """Index a session of a memory that folds nothing."""
    claim = store.claim(session_id, rule, lease=LEASE, prompt_hash="", force=asked)
    if claim == "not_due":
        # A search asks for sessions that are not due.
        return Result(Outcome.NOT_DUE, indexed=catch_up(store, session_id) > 0)
    if not isinstance(claim, Claim):
        return Result({"busy": Outcome.BUSY}.get(claim, Outcome.NOT_DUE))
    try:
        count = catch_up(store, session_id)
    finally:
        again = store.release(claim, rule)
    logger.info("Indexed %d messages of session %s.", count, session_id)
    return Result(Outcome.NOT_DUE, again, indexed=count > 0)
