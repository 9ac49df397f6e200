"""Appending a batch to a session."""

from __future__ import annotations

from django_convmemory import exceptions
from django_convmemory.rules import spent_keys, values
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.values import DueRule, SessionName
from django_convmemory.store.in_memory.rows import Message, Session
from django_convmemory.store.in_memory.state import State, moment


def append(state: State, name: SessionName, batch: Batch, rule: DueRule) -> values.Appended:
    """Append the batch, or nothing: see :meth:`.Store.append`."""
    session = state.named(name) or Session(0, name)
    replayed = replay(session, batch)
    if replayed is not None:
        return replayed
    try:
        previous = session.rows[-1].previous if session.rows else None
        counters, rows = session.counters.append(batch.entries, previous)
    except exceptions.ToolResultRefused as error:
        raise _explained(session, error) from None
    if not session.id:
        state.insert(session)
    session.counters = counters
    now = moment(state.clock())
    for entry, row in zip(batch.entries, rows, strict=True):
        created_at = entry.created_at or now
        stored = (row.position, entry.message, entry.tokens, row.answers, row.tokens_through, created_at)
        session.rows.append(Message(*stored, state.new_id()))
    if batch.key_hash is not None:
        payload = values.Payload(batch.payload_hash, len(batch.entries))
        session.keys[batch.key_hash] = (payload, rows[0].position)
    session.revision += 1
    session.updated_at = state.clock()
    turned_due = session.due_since is None and session.is_over(rule.threshold)
    if turned_due:
        session.due_since = state.clock()
        session.hinted_at = session.due_since if rule.hint else None
    return values.Appended(
        session.id,
        rows[0].position,
        rows[-1].position,
        batch.tokens,
        session.due_since is not None,
        turned_due,
        replayed=False,
    )


def replay(session: Session, batch: Batch) -> values.Appended | None:
    """Return what the batch's key has stored, or None. Raises IdempotencyConflict if that was something else."""
    if batch.key_hash is None:
        return None
    payload, first = session.keys.get(batch.key_hash, (None, 0))
    spent_key = spent_keys.find(session.spent_keys, batch.key_hash) if payload is None else None
    if spent_key is not None:
        payload, first = values.Payload("", spent_key.size), spent_key.first_position
    if payload is None:
        return None
    if not payload.is_retried_by(batch):
        raise exceptions.IdempotencyConflict(values.key_conflict(first))
    last = first + payload.size - 1
    tokens = 0 if spent_key else sum(row.tokens for row in session.rows[first - 1 : last])
    due = session.due_since is not None
    return values.Appended(session.id, first, last, tokens, due, turned_due=False, replayed=True)


def _explained(session: Session, error: exceptions.ToolResultRefused) -> exceptions.ToolResultRefused:
    """Return the error of a refused tool result, with the message that closed its exchange.

    If no stored message made the call, it is ``error`` itself.
    """
    answers = [row for row in session.rows if row.message.role == "assistant"]
    calling = next((row.position for row in reversed(answers) if error.call_id in row.message.call_ids), None)
    if calling is None:
        return error
    closing = next((row.position for row in answers if row.position > calling), None)
    return values.late_result(error.call_id, calling, closing)
