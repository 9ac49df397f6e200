"""Operations that change stored conversations: truncate, fork, redact, erase and adopt."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django_convmemory.messages import frozen_json
from django_convmemory.rules import values
from django_convmemory.rules.counters import Covered, Ending, ending, rewound
from django_convmemory.rules.creations import Creation
from django_convmemory.rules.values import DueRule, Edited, Redaction, SessionName, StoredMessage
from django_convmemory.store.in_memory import index_rows
from django_convmemory.store.in_memory.rows import Session
from django_convmemory.store.in_memory.state import State


def truncate(
    state: State, name: SessionName, after: int, rule: DueRule, *, revision: int | None
) -> tuple[int, Edited | None]:
    """Delete the messages after ``after``. See :meth:`.Store.truncate`."""
    session = _at_revision(state, name, revision)
    removed = len(session.rows) - after if session else 0
    if session is None or removed <= 0:
        return 0, None
    session.counters = rewound(session.counters, _ending(session, after))
    del session.rows[after:]
    index_rows.cut(session, after)
    for version in session.versions.values():
        if version.value.last_position > after:
            version.value = values.emptied(version.value)
    edited = _finish(state, session, session.counters.first_unfoldable, rule)
    session.remember_cut(after)
    return removed, edited


def pop(state: State, name: SessionName, rule: DueRule) -> tuple[StoredMessage | None, Edited | None]:
    """Delete the last message and return it. See :meth:`.Store.pop`."""
    session = state.named(name)
    if session is None or not session.rows:
        return None, None
    popped = session.rows[-1].with_item
    _, edited = truncate(state, name, popped.position - 1, rule, revision=None)
    return popped, edited


def _at_revision(state: State, name: SessionName, revision: int | None) -> Session | None:
    """Return the session, or None. Raises ``StaleRevision`` if it is at another ``revision`` than this one."""
    session = state.named(name)
    if session is not None and revision is not None and session.revision != revision:
        raise values.stale(revision, session.revision)
    return session


def update(state: State, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
    """Change what the owner of a session may change: see :meth:`.Store.update`."""
    session = _at_revision(state, name, revision)
    if session is None:
        raise values.gone(name)
    if not changes:
        return
    for field, value in changes.items():
        setattr(session, field, value)
    session.revision += 1
    if changes.keys() & {"title", "metadata"}:
        session.updated_at = state.clock()


def update_message(
    state: State, name: SessionName, position: int, metadata: Mapping[str, Any], *, revision: int | None
) -> None:
    """Replace the metadata of a message: see :meth:`.Store.update_message`."""
    session = _at_revision(state, name, revision)
    if session is None or not 0 < position <= len(session.rows):
        raise values.no_message(position, len(session.rows) if session else 0)
    row = session.rows[position - 1]
    if row.redacted:
        raise values.redacted(position)
    row.message = dataclasses.replace(row.message, metadata=frozen_json(metadata))
    session.revision += 1


def delete(state: State, name: SessionName, *, revision: int | None) -> bool:
    """Delete the session: see :meth:`.Store.delete`."""
    session = _at_revision(state, name, revision)
    if session is not None:
        _remove(state, session)
    return session is not None


def _remove(state: State, session: Session) -> None:
    for copy in _forks(state, session, 0):
        copy.forked_from = session.forked_from
    state.remove(session)


def _forks(state: State, session: Session, position: int) -> list[Session]:
    """Return the forks of a session that were made at ``position`` or later, without their forks."""
    return [
        fork for fork in state.sessions.values() if fork.forked_from == session.id and fork.fork_position >= position
    ]


def redact(state: State, name: SessionName, position: int, rule: DueRule, *, forks: bool) -> Redaction:
    """Empty the message at ``position``. See :meth:`.Store.redact`."""
    session = state.named(name)
    if session is None or not 0 < position <= len(session.rows):
        raise values.no_message(position, len(session.rows) if session else 0)
    sessions, row = [session], session.rows[position - 1]
    if forks:
        for copied in sessions:
            sessions += _forks(state, copied, position)
    holders = [holder for holder in sessions if len(holder.rows) >= position and holder.rows[position - 1].id == row.id]
    now = state.clock()
    in_flight = any(holder.is_leased(now) for holder in holders)
    return Redaction([_redact(state, holder, position, rule) for holder in holders], in_flight)


def _redact(state: State, session: Session, position: int, rule: DueRule) -> Edited:
    row = session.rows[position - 1]
    row.message, row.redacted = row.message.emptied(), True
    for key, (payload, first) in session.keys.items():
        if first <= position < first + payload.size:
            session.keys[key] = (payload._replace(hash=""), first)
    for version in session.versions.values():
        if version.value.last_position >= position:
            version.value = values.emptied(version.value)
    index_rows.strike(session, position)
    return _finish(state, session, position, rule)


def fork(
    state: State,
    source: SessionName,
    target: SessionName,
    at: int,
    rule: DueRule,
    *,
    title: str | None,
    creation: Creation | None,
) -> values.Forked:
    """Copy ``source`` through the position ``at``. See :meth:`.Store.fork`."""
    session = state.named(source)
    if session is None:
        raise values.no_session(source)
    earlier = state.created_by(creation)
    if earlier is not None:
        return values.Forked(earlier, Edited(earlier.id, turned_due=False))
    if at > len(session.rows):
        raise values.no_message(at, len(session.rows))
    if state.named(target) is not None:
        raise values.session_exists(target)
    copy = Session(
        0,
        target,
        session.title if title is None else title,
        session.metadata,
        creation=creation,
        forked_from=session.id,
        fork_position=at,
    )
    copy.counters = rewound(session.counters, _ending(session, at))
    copy.rows = [dataclasses.replace(row) for row in session.rows[:at]]
    copy.versions = {
        number: dataclasses.replace(version)
        for number, version in session.versions.items()
        if version.valid and not version.building and version.value.last_position <= at
    }
    copy.last_version = session.last_version
    copy.segments = list(session.segments)
    index_rows.cut(copy, at)
    state.insert(copy)
    edited = _finish(state, copy, copy.counters.first_unfoldable, rule)
    copy.epoch = copy.revision = 0
    return values.Forked(copy, edited)


def erase(state: State, alias: str, *, owner_id: Any, visitor: str) -> int:
    """Delete the sessions of an owner or a visitor. See :meth:`.Store.erase`."""
    erased = state.of_scope(alias, owner_id=owner_id, visitor=visitor)
    for session in erased:
        _remove(state, session)
    return len(erased)


def adopt(state: State, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
    """Give a visitor's sessions to an owner. See :meth:`.Store.adopt`."""
    names = []
    for session in state.of_alias(alias):
        if session.session_name.visitor != visitor:
            continue
        name = values.free_name(
            SessionName(alias, session.session_name.key, owner_id), lambda name: state.named(name) is not None
        )
        state.rename(session, name)
        session.revision += 1
        session.updated_at = state.clock()
        names.append(name)
    return names


def _finish(state: State, session: Session, position: int, rule: DueRule) -> Edited:
    """Complete a change of the messages from ``position`` on.

    The compaction ends. The summaries that cover the position are invalidated, and the newest one that is left becomes
    current. The session is marked due if ``rule`` says so.
    """
    session.stop_compaction()
    session.updated_at = state.clock()
    for version in session.versions.values():
        version.valid = version.valid and version.value.last_position < position
    session.current_version = max(
        (number for number, version in session.versions.items() if version.valid and not version.building), default=0
    )
    current = session.versions.get(session.current_version)
    session.counters = session.counters.covering(current.covered if current else Covered())
    session.mark_due(rule.threshold, state.clock())
    session.hinted_at = session.due_since if rule.hint else None
    stands_in = any(version.valid and version.stand_in for version in session.versions.values())
    is_old = values.is_old(session.summary, rule.reanchor_every)
    session.rebuild_after = state.clock() if stands_in or is_old else None
    return Edited(session.id, session.due_since is not None)


def _ending(session: Session, position: int) -> Ending:
    """Return how the messages through ``position`` end."""
    rows = [row.placing for row in session.rows[:position] if not row.message.pinned]
    begun = (row for row in reversed(rows) if row.message.role == "assistant" and row.answers is None)
    spoke = next(begun, None)
    continuing = [row for row in rows if spoke is not None and row.answers == spoke.standing.position]
    return ending(position, rows[-1] if rows else None, spoke, continuing)
