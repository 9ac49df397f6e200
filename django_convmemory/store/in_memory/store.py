"""The store itself. It holds one lock around each operation, and the other modules do the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_convmemory import exceptions
from django_convmemory.rules import values
from django_convmemory.rules.breaker import Breaker, Reason
from django_convmemory.rules.counters import Batch, Counters
from django_convmemory.rules.creations import Creation
from django_convmemory.rules.exchanges import Placed, Turn
from django_convmemory.rules.indexable import IndexRead, Unindexed
from django_convmemory.rules.segments import Segment
from django_convmemory.rules.strategies import View
from django_convmemory.rules.values import AttemptRecord, Claim, DueRule, NewVersion, SessionName
from django_convmemory.store.in_memory import (
    appending,
    breakers,
    editing,
    index_rows,
    leases,
    publishing,
    replacing,
    searching,
    sweeping,
)
from django_convmemory.store.in_memory.rows import Session
from django_convmemory.store.in_memory.state import State


class InMemoryStore:
    """Keeps sessions in dicts, under one lock. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._lock = threading.RLock()
        self._state = State(clock)

    @property
    def attempts(self) -> list[values.Attempted]:
        """The calls of models, for tests."""
        return self._state.attempts

    def session(self, name: SessionName) -> Session | None:
        """Return a session itself and not a copy, for tests."""
        return self._state.named(name)

    def owner_id(self, owner: Any) -> Any:
        owner_id = getattr(owner, "pk", None)
        if owner_id is None:
            raise values.no_owner(owner)
        return owner_id

    def append(self, name: SessionName, batch: Batch, rule: DueRule, *, counter: str) -> values.Appended:
        with self._lock:
            return appending.append(self._state, name, batch, rule)

    def replace(
        self, name: SessionName, after: int, batch: Batch, rule: DueRule, *, counter: str, revision: int | None
    ) -> values.Appended:
        with self._lock:
            return replacing.replace(self._state, name, after, batch, rule, revision=revision)

    def create(
        self, name: SessionName, *, title: str, metadata: Mapping[str, Any], creation: Creation | None = None
    ) -> Session:
        with self._lock:
            earlier = self._state.created_by(creation)
            if earlier is not None:
                return earlier
            if self._state.named(name) is not None:
                raise values.session_exists(name)
            session = Session(0, name, title, metadata, creation=creation)
            self._state.insert(session)
            return session

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        with self._lock:
            editing.update(self._state, name, changes, revision=revision)

    def update_message(
        self, name: SessionName, position: int, metadata: Mapping[str, Any], *, revision: int | None
    ) -> None:
        with self._lock:
            editing.update_message(self._state, name, position, metadata, revision=revision)

    def delete(self, name: SessionName, *, revision: int | None) -> bool:
        with self._lock:
            return editing.delete(self._state, name, revision=revision)

    # Load.

    def load(self, name: SessionName, view: View, max_pinned_tokens: int) -> values.Snapshot | None:
        with self._lock:
            session = self._state.named(name)
            if session is None:
                return None
            counters = session.counters
            positions = set(values.shown_pinned(counters.pinned, max_pinned_tokens))
            bound = values.view_bound(counters, view)
            return values.Snapshot(
                session_id=session.id,
                counters=counters,
                due=session.due_since is not None,
                revision=session.revision,
                epoch=session.epoch,
                summary=session.summary if view.summary else None,
                pinned=[row.placed for row in session.rows if row.position in positions],
                tail=[
                    row.placed
                    for row in session.rows
                    if not row.message.pinned and bound.admits(row.position, row.tokens_through)
                ],
            )

    def history(
        self, name: SessionName, *, before: int | None, after: int | None, limit: int, items: bool = False
    ) -> list[values.StoredMessage]:
        with self._lock:
            session = self._state.named(name)
            rows = session.rows if session else []
            rows = rows[after or 0 : None if before is None else max(0, before - 1)]
            rows = rows[:limit] if after is not None else rows[max(0, len(rows) - limit) :]
            return [row.with_item if items else row.stored for row in rows]

    # Recall: see indexing and searching.

    def unindexed(self, session_id: int, *, limit: int) -> Unindexed | None:
        with self._lock:
            return index_rows.unindexed(self._state, session_id, limit=limit)

    def add_segments(self, session_id: int, unindexed: Unindexed, new: Sequence[Segment]) -> bool:
        with self._lock:
            return index_rows.add(self._state, session_id, unindexed, new)

    def read_index(self, name: SessionName, *, before: int | None, epoch: int | None) -> IndexRead | None:
        with self._lock:
            return searching.read_index(self._state, name, before=before, epoch=epoch)

    def read_indexes_of(self, alias: str, *, owner_id: Any, visitor: str, max_messages: int) -> list[IndexRead]:
        with self._lock:
            return searching.read_indexes_of(
                self._state, alias, owner_id=owner_id, visitor=visitor, max_messages=max_messages
            )

    def read_indexes_among(self, alias: str, sessions: Any, *, max_messages: int = 100_000) -> list[IndexRead]:
        raise exceptions.InvalidSession(
            "The in-memory store has no rows. Search one session, or those of an owner or a visitor."
        )

    def messages_at(self, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], values.StoredMessage]:
        with self._lock:
            return searching.messages_at(self._state, places)

    # Operations that change stored conversations.

    def clear(self, name: SessionName) -> None:
        with self._lock:
            session = self._state.named(name)
            if session is None:
                return
            session.stop_compaction()
            session.remember_cut(0)
            session.updated_at = self._state.clock()
            session.counters, session.current_version, session.rebuild_after = Counters(), 0, None
            session.rows, session.versions, session.segments = [], {}, []

    def truncate(
        self, name: SessionName, after: int, rule: DueRule, *, revision: int | None
    ) -> tuple[int, values.Edited | None]:
        with self._lock:
            return editing.truncate(self._state, name, after, rule, revision=revision)

    def pop(self, name: SessionName, rule: DueRule) -> tuple[values.StoredMessage | None, values.Edited | None]:
        with self._lock:
            return editing.pop(self._state, name, rule)

    def fork(
        self,
        source: SessionName,
        target: SessionName,
        at: int,
        rule: DueRule,
        *,
        title: str | None = None,
        creation: Creation | None = None,
    ) -> values.Forked:
        with self._lock:
            return editing.fork(self._state, source, target, at, rule, title=title, creation=creation)

    def redact(self, name: SessionName, position: int, rule: DueRule, *, forks: bool) -> values.Redaction:
        with self._lock:
            return editing.redact(self._state, name, position, rule, forks=forks)

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        with self._lock:
            return editing.erase(self._state, alias, owner_id=owner_id, visitor=visitor)

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        with self._lock:
            return editing.adopt(self._state, alias, visitor, owner_id)

    def on_commit(self, function: Callable[[], None]) -> None:
        function()

    # Compaction: see leases.

    def find(self, name: SessionName) -> int | None:
        with self._lock:
            session = self._state.named(name)
            return session.id if session else None

    def claim(self, session_id: int, rule: DueRule, *, lease: float, prompt_hash: str, force: bool) -> Claim | str:
        with self._lock:
            return leases.claim(self._state, session_id, rule, lease=lease, prompt_hash=prompt_hash, force=force)

    def claim_rebuild(
        self,
        session_id: int,
        *,
        lease: float,
        prompt_hash: str,
        stand_ins: bool,
        wait: float,
        reanchor_every: int | None = None,
    ) -> Claim | str:
        with self._lock:
            return leases.claim_rebuild(
                self._state,
                session_id,
                lease=lease,
                prompt_hash=prompt_hash,
                stand_ins=stand_ins,
                wait=wait,
                reanchor_every=reanchor_every,
            )

    def turns(self, claim: Claim) -> list[Turn]:
        return [Turn(row.position, row.tokens, row.answers, row.message.role) for row in self._tail(claim)]

    def messages(self, claim: Claim, first: int, last: int) -> list[Placed]:
        return [row for row in self._tail(claim) if first <= row.position <= last]

    def _tail(self, claim: Claim) -> list[Placed]:
        with self._lock:
            session = self._state.sessions.get(claim.session_id)
            if session is None or session.epoch != claim.epoch:
                return []
            covered = claim.counters.covered_position
            last = claim.counters.last_position
            return [row.placed for row in session.rows[covered:last] if not row.message.pinned]

    def extend(self, claim: Claim, *, lease: float) -> bool:
        with self._lock:
            return leases.extend(self._state, claim, lease=lease)

    def is_due(self, session_id: int) -> bool:
        with self._lock:
            session = self._state.sessions.get(session_id)
            return session is not None and session.due_since is not None

    def release_connection(self) -> None:
        """Do nothing: there is no connection."""

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, rule: DueRule, *, lease: float
    ) -> Claim | None:
        with self._lock:
            return publishing.publish(self._state, claim, version, attempt, rule, lease=lease)

    def release(
        self,
        claim: Claim,
        rule: DueRule,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
        rebuild_in: float | None = None,
    ) -> bool:
        with self._lock:
            return leases.release(
                self._state, claim, rule, retry_in=retry_in, error=error, uncount=uncount, rebuild_in=rebuild_in
            )

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        with self._lock:
            publishing.record(self._state, claim, attempt)

    def sweep(
        self,
        alias: str,
        *,
        limit: int,
        hint_age: float,
        fewest_attempts: bool = False,
        unindexed: int | None = None,
    ) -> list[int]:
        with self._lock:
            return sweeping.due(
                self._state, alias, limit=limit, hint_age=hint_age, fewest_attempts=fewest_attempts, unindexed=unindexed
            )

    def sweep_rebuilds(self, alias: str, *, limit: int, wait: float) -> list[int]:
        with self._lock:
            return sweeping.rebuilds(self._state, alias, limit=limit, wait=wait)

    def waiting_rebuilds(self, alias: str, *, within: float, limit: int) -> int:
        with self._lock:
            return sweeping.waiting_rebuilds(self._state, alias, within=within, limit=limit)

    def mark_unmarked(self, alias: str, rule: DueRule, *, limit: int) -> int:
        with self._lock:
            return sweeping.mark_unmarked(self._state, alias, rule)

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        with self._lock:
            return sweeping.waiting(self._state, alias, after=after, within=within, limit=limit)

    def unhint(self, session_ids: Sequence[int]) -> None:
        with self._lock:
            sweeping.unhint(self._state, session_ids)

    # The breakers.

    def breaker(self, alias: str) -> Breaker:
        with self._lock:
            return breakers.read(self._state, alias)

    def count_failure(self, alias: str, session_id: int, error: str, *, seconds: float = 0.0) -> int:
        with self._lock:
            return breakers.count_failure(self._state, alias, session_id, error, seconds=seconds)

    def open_breaker(self, alias: str, reason: Reason, error: str, *, seconds: float) -> None:
        with self._lock:
            breakers.open_(self._state, alias, reason, error, seconds=seconds)

    def probe(self, alias: str, *, seconds: float) -> bool:
        with self._lock:
            return breakers.probe(self._state, alias, seconds=seconds)

    def end_probe(self, alias: str, *, seconds: float = 0.0, silent: bool = True) -> bool:
        with self._lock:
            return breakers.end_probe(self._state, alias, seconds=seconds, silent=silent)

    def close_breaker(self, alias: str) -> bool:
        with self._lock:
            return breakers.close(self._state, alias)
