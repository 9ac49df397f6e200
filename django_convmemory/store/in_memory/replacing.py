"""Deleting the end of a conversation and appending to the rest, or neither."""

from __future__ import annotations

import dataclasses

from django_convmemory.exceptions import ConvMemoryError
from django_convmemory.rules import values
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.values import Appended, DueRule, SessionName
from django_convmemory.store.in_memory import appending, editing
from django_convmemory.store.in_memory.state import State


def replace(
    state: State, name: SessionName, after: int, batch: Batch, rule: DueRule, *, revision: int | None
) -> Appended:
    """Replace the messages after ``after``. See :meth:`.Store.replace`."""
    session = state.named(name)
    replayed = appending.replay(session, batch) if session else None
    if replayed is not None:
        return replayed
    last = len(session.rows) if session else 0
    if session is not None and revision is not None and session.revision != revision:
        raise values.stale(revision, session.revision)
    if after > last:
        raise values.no_message(after, last)
    before = session and dataclasses.replace(
        session,
        rows=list(session.rows),
        versions={number: dataclasses.replace(version) for number, version in session.versions.items()},
        segments=list(session.segments),
    )
    _, edited = editing.truncate(state, name, after, rule, revision=revision)
    try:
        appended = appending.append(state, name, batch, rule)
    except ConvMemoryError:
        if before is not None:
            state.restore(before)
        raise
    return appended._replace(turned_due=appended.turned_due or bool(edited and edited.turned_due))
