"""A store in the memory of one process: for scripts and tests, and the measure of the ORM store.

It needs no Django. Everything is lost with the process.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import threading
import time
import uuid
from collections.abc import Callable

from django_convmemory import exceptions
from django_convmemory.exchanges import Placed, Turn
from django_convmemory.ledger import Batch, Ledger
from django_convmemory.stores import base
from django_convmemory.stores.base import AttemptRecord, Claim, NewVersion, SessionName, SummaryVersion
from django_convmemory.strategies import Threshold, View


@dataclasses.dataclass(slots=True)
class _Session:
    id: int
    name: SessionName
    ledger: Ledger = dataclasses.field(default_factory=Ledger)
    rows: list[Placed] = dataclasses.field(default_factory=list)
    through: list[int] = dataclasses.field(default_factory=list)
    keys: dict[str, tuple[str, int, int]] = dataclasses.field(default_factory=dict)
    versions: dict[int, SummaryVersion] = dataclasses.field(default_factory=dict)
    last_version: int = 0
    current_version: int = 0
    due_since: float | None = None
    hinted_at: float | None = None
    attempts: int = 0
    next_attempt_at: float | None = None
    lease_token: str = ""
    lease_expires_at: float = 0.0
    last_error: str = ""
    epoch: int = 0
    revision: int = 0

    def mark_due(self, threshold: Threshold, now: float) -> None:
        if not self.ledger.due(threshold):
            self.due_since = None
        elif self.due_since is None:
            self.due_since = now


class InMemoryStore:
    """Keeps sessions in dicts, under one lock. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._sessions: dict[int, _Session] = {}
        self._by_handle: dict[str, _Session] = {}
        self.attempts: list[base.Attempted] = []

    def append(
        self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
    ) -> base.Appended:
        with self._lock:
            session = self._by_handle.get(name.handle) or _Session(0, name)
            if batch.key_hash is not None and batch.key_hash in session.keys:
                return self._replay(session, batch)
            ledger, rows = session.ledger.append(batch.entries)
            if not session.id:
                session.id = next(self._ids)
                self._sessions[session.id] = self._by_handle[name.handle] = session
            session.ledger = ledger
            for entry, row in zip(batch.entries, rows, strict=True):
                session.rows.append(Placed(row.position, entry.message, entry.tokens, row.answers))
                session.through.append(row.tokens_through)
            if batch.key_hash is not None:
                session.keys[batch.key_hash] = (batch.payload_hash, rows[0].position, rows[-1].position)
            session.revision += 1
            turned_due = session.due_since is None and ledger.due(threshold)
            if turned_due:
                session.due_since = self._clock()
                session.hinted_at = session.due_since if hint else None
            return base.Appended(
                session.id,
                rows[0].position,
                rows[-1].position,
                batch.tokens,
                session.due_since is not None,
                turned_due,
                replayed=False,
            )

    def _replay(self, session: _Session, batch: Batch) -> base.Appended:
        payload_hash, first, last = session.keys[batch.key_hash or ""]
        if payload_hash != batch.payload_hash:
            raise exceptions.IdempotencyConflict(base.key_conflict(first))
        tokens = sum(row.tokens for row in session.rows[first - 1 : last])
        due = session.due_since is not None
        return base.Appended(session.id, first, last, tokens, due, turned_due=False, replayed=True)

    def load(self, name: SessionName, view: View, max_pinned_tokens: int) -> base.Snapshot | None:
        with self._lock:
            session = self._by_handle.get(name.handle)
            if session is None:
                return None
            ledger = session.ledger
            shown = set(base.shown_pinned(ledger.pinned, max_pinned_tokens))
            bound = base.view_bound(ledger, view)
            rows = zip(session.rows, session.through, strict=True)
            return base.Snapshot(
                session_id=session.id,
                ledger=ledger,
                due=session.due_since is not None,
                revision=session.revision,
                summary=session.versions.get(session.current_version) if view.summary else None,
                pinned=[row for row in session.rows if row.position in shown],
                tail=[row for row, through in rows if not row.message.pinned and bound.admits(row.position, through)],
            )

    def clear(self, name: SessionName) -> None:
        with self._lock:
            session = self._by_handle.get(name.handle)
            if session is None:
                return
            fresh = _Session(session.id, session.name)
            fresh.last_version = session.last_version
            fresh.epoch = session.epoch + 1
            fresh.revision = session.revision + 1
            self._sessions[session.id] = self._by_handle[name.handle] = fresh

    def session(self, name: SessionName) -> _Session | None:
        """Return what is kept of a session: for tests. It is not a copy."""
        return self._by_handle.get(name.handle)

    def on_commit(self, function: Callable[[], None]) -> None:
        function()

    # Compaction.

    def find(self, name: SessionName) -> int | None:
        with self._lock:
            session = self._by_handle.get(name.handle)
            return session.id if session else None

    def claim(self, session_id: int, *, lease: float, force: bool) -> Claim | str:
        with self._lock:
            session = self._sessions.get(session_id)
            now = self._clock()
            if session is None or session.due_since is None:
                return "not_due"
            if session.lease_token and session.lease_expires_at > now:
                return "busy"
            if session.next_attempt_at is not None and session.next_attempt_at > now and not force:
                return "waiting"
            session.lease_token = uuid.uuid4().hex
            session.lease_expires_at = now + lease
            session.attempts += 1
            session.revision += 1
            return self._claimed(session, due_seconds=max(0.0, now - session.due_since))

    def _claimed(self, session: _Session, due_seconds: float) -> Claim:
        return Claim(
            session_id=session.id,
            name=session.name,
            token=session.lease_token,
            epoch=session.epoch,
            last_version=session.last_version,
            attempts=session.attempts,
            due_seconds=due_seconds,
            ledger=session.ledger,
            summary=session.versions.get(session.current_version),
        )

    def turns(self, claim: Claim) -> list[Turn]:
        return [Turn(row.position, row.tokens, row.answers) for row in self._tail(claim)]

    def messages(self, claim: Claim, first: int, last: int) -> list[Placed]:
        return [row for row in self._tail(claim) if first <= row.position <= last]

    def _tail(self, claim: Claim) -> list[Placed]:
        with self._lock:
            session = self._sessions.get(claim.session_id)
            if session is None or session.epoch != claim.epoch:
                return []
            covered = claim.ledger.covered_position
            last = claim.ledger.last_position
            return [row for row in session.rows if covered < row.position <= last and not row.message.pinned]

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord, threshold: Threshold, *, lease: float
    ) -> Claim | None:
        with self._lock:
            session = self._held(claim)
            if session is None or session.ledger.covered_position != claim.ledger.covered_position:
                self.record(claim, dataclasses.replace(attempt, outcome="dropped", version=None))
                return None
            number = session.last_version + 1
            session.versions[number] = SummaryVersion(
                number, version.first_position, version.last_position, version.text, version.tokens
            )
            session.last_version = session.current_version = number
            session.ledger = dataclasses.replace(
                session.ledger,
                covered_position=version.last_position,
                covered_count=version.count,
                covered_tokens=version.tokens_through,
            )
            session.attempts = 0
            session.next_attempt_at = None
            session.last_error = ""
            session.lease_expires_at = self._clock() + lease
            session.revision += 1
            session.mark_due(threshold, self._clock())
            self.record(claim, dataclasses.replace(attempt, version=number))
            return self._claimed(session, claim.due_seconds)

    def _held(self, claim: Claim) -> _Session | None:
        session = self._sessions.get(claim.session_id)
        if session is None or session.epoch != claim.epoch:
            return None
        if session.lease_token != claim.token or session.lease_expires_at <= self._clock():
            return None
        return session

    def release(
        self,
        claim: Claim,
        threshold: Threshold,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
        hint: bool = False,
    ) -> bool:
        with self._lock:
            session = self._sessions.get(claim.session_id)
            if session is None or session.lease_token != claim.token:
                return False
            now = self._clock()
            session.lease_token, session.lease_expires_at = "", 0.0
            session.mark_due(threshold, now)
            due = session.due_since is not None
            if not error:
                session.attempts = 0
            elif uncount:
                session.attempts = max(0, session.attempts - 1)
            session.last_error = error
            session.next_attempt_at = now + retry_in if due and retry_in is not None else None
            if hint and due:
                session.hinted_at = now
            session.revision += 1
            return due

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        with self._lock:
            started = dt.datetime.fromtimestamp(self._clock() - attempt.duration, dt.UTC)
            self.attempts.append(base.Attempted(claim.session_id, claim.name.alias, started, attempt))

    def paused(self, alias: str, *, seconds: float) -> bool:
        with self._lock:
            newest = next((one for one in reversed(self.attempts) if one.alias == alias), None)
            if newest is None or newest.record.outcome != "misconfigured":
                return False
            return self._clock() - newest.started.timestamp() < seconds

    def sweep(self, alias: str, *, limit: int, hint_age: float) -> list[int]:
        with self._lock:
            now = self._clock()
            found = sorted(
                (session.due_since, session.id)
                for session in self._sessions.values()
                if session.due_since is not None
                and session.name.alias == alias
                and not (session.lease_token and session.lease_expires_at > now)
                and (session.next_attempt_at is None or session.next_attempt_at <= now)
                and (session.hinted_at is None or session.hinted_at <= now - hint_age)
            )
            ids = [session_id for _, session_id in found[:limit]]
            for session_id in ids:
                self._sessions[session_id].hinted_at = now
            return ids
