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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django_convmemory import exceptions
from django_convmemory.core import exchanges, values
from django_convmemory.core.counters import Batch, Counters, Ending, Standing, rewound
from django_convmemory.core.exchanges import Placed, Turn
from django_convmemory.core.strategies import Threshold, View
from django_convmemory.core.values import AttemptOutcome, AttemptRecord, Claim, NewVersion, SessionName, SummaryVersion
from django_convmemory.messages import ChatMessage


@dataclasses.dataclass(slots=True)
class _Row:
    position: int
    message: ChatMessage
    tokens: int
    answers: int | None
    tokens_through: int
    created_at: dt.datetime
    # The same in the copies of it.
    id: int
    redacted: bool = False

    @property
    def placed(self) -> Placed:
        message = exchanges.redacted(self.message) if self.redacted else self.message
        return Placed(self.position, message, self.tokens, self.answers)


@dataclasses.dataclass(slots=True)
class _Version:
    summary: SummaryVersion
    parent: int | None
    count: int
    tokens_through: int
    prompt_hash: str
    building: bool = False
    valid: bool = True


@dataclasses.dataclass(slots=True)
class _Session:
    id: int
    name: SessionName
    title: str = ""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counters: Counters = dataclasses.field(default_factory=Counters)
    rows: list[_Row] = dataclasses.field(default_factory=list)
    keys: dict[str, tuple[values.Payload, int]] = dataclasses.field(default_factory=dict)
    versions: dict[int, _Version] = dataclasses.field(default_factory=dict)
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
    forked_from: int | None = None
    fork_position: int = 0

    @property
    def session_name(self) -> SessionName:
        return self.name

    @property
    def summary(self) -> SummaryVersion | None:
        return self.versions[self.current_version].summary if self.current_version else None

    def mark_due(self, threshold: Threshold, now: float) -> None:
        if not self.counters.due(threshold):
            self.due_since = None
        elif self.due_since is None:
            self.due_since = now

    def stop_compaction(self) -> None:
        """Take away whatever a compaction has, or waits for."""
        self.due_since = self.hinted_at = self.next_attempt_at = None
        self.attempts, self.lease_token, self.lease_expires_at, self.last_error = 0, "", 0.0, ""
        self.epoch += 1
        self.revision += 1

    def invalidate(self, position: int) -> None:
        """Give up the versions that stand for ``position``, and fall back to the newest that is left."""
        for version in self.versions.values():
            version.valid = version.valid and version.summary.last_position < position
        self.current_version = max(
            (number for number, one in self.versions.items() if one.valid and not one.building), default=0
        )
        current = self.versions.get(self.current_version)
        self.counters = self.counters._replace(
            covered_position=current.summary.last_position if current else 0,
            covered_count=current.count if current else 0,
            covered_tokens=current.tokens_through if current else 0,
        )

    def ending(self, position: int) -> Ending:
        """What there is to know of the messages through ``position``."""
        rows = [row for row in self.rows[:position] if not row.message.pinned]
        spoke = next((row for row in reversed(rows) if row.message.role == "assistant"), None)
        results = [row for row in rows if spoke is not None and row.answers == spoke.position]
        return Ending(
            last_position=position,
            last=_standing(rows[-1]) if rows else None,
            spoke=_standing(spoke) if spoke else None,
            call_ids=spoke.message.call_ids if spoke else (),
            answered=tuple(row.message.tool_call_id or "" for row in results),
            answered_position=results[-1].position if results else 0,
        )


def _explained(session: _Session, error: exceptions.ToolResultRefused) -> exceptions.ToolResultRefused:
    """Add to ``error`` which message closed the exchange that the result belongs to, where there was one."""
    spoke = [row for row in session.rows if row.message.role == "assistant"]
    asked = next((row.position for row in reversed(spoke) if error.call_id in row.message.call_ids), None)
    if asked is None:
        return error
    closed = next((row.position for row in spoke if row.position > asked), None)
    return values.late_result(error.call_id, asked, closed)


def _standing(row: _Row) -> Standing:
    return Standing(row.position, row.tokens, row.tokens_through)


class InMemoryStore:
    """Keeps sessions in dicts, under one lock. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._sessions: dict[int, _Session] = {}
        self._by_name_hash: dict[str, _Session] = {}
        self.attempts: list[values.Attempted] = []

    def owner_id(self, owner: Any) -> Any:
        owner_id = getattr(owner, "pk", None)
        if owner_id is None:
            raise values.no_owner(owner)
        return owner_id

    def append(
        self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
    ) -> values.Appended:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash) or _Session(0, name)
            if batch.key_hash is not None and batch.key_hash in session.keys:
                return self._replay(session, batch)
            try:
                counters, rows = session.counters.append(batch.entries)
            except exceptions.ToolResultRefused as error:
                raise _explained(session, error) from None
            if not session.id:
                self._insert(session)
            session.counters = counters
            now = dt.datetime.fromtimestamp(self._clock(), dt.UTC)
            for entry, row in zip(batch.entries, rows, strict=True):
                created_at = entry.created_at or now
                stored = (row.position, entry.message, entry.tokens, row.answers, row.tokens_through, created_at)
                session.rows.append(_Row(*stored, next(self._ids)))
            if batch.key_hash is not None:
                payload = values.Payload(batch.payload_hash, len(batch.entries))
                session.keys[batch.key_hash] = (payload, rows[0].position)
            session.revision += 1
            turned_due = session.due_since is None and counters.due(threshold)
            if turned_due:
                session.due_since = self._clock()
                session.hinted_at = session.due_since if hint else None
            return values.Appended(
                session.id,
                rows[0].position,
                rows[-1].position,
                batch.tokens,
                session.due_since is not None,
                turned_due,
                replayed=False,
            )

    def _insert(self, session: _Session) -> None:
        session.id = next(self._ids)
        self._sessions[session.id] = self._by_name_hash[session.name.name_hash] = session

    def create(self, name: SessionName, *, title: str, metadata: Mapping[str, Any]) -> _Session:
        with self._lock:
            if name.name_hash in self._by_name_hash:
                raise values.session_exists(name)
            session = _Session(0, name, title, metadata)
            self._insert(session)
            return session

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        with self._lock:
            session = self._at_revision(name, revision)
            if session is None:
                raise values.gone(name)
            for field, value in changes.items():
                setattr(session, field, value)
            session.revision += 1

    def delete(self, name: SessionName, *, revision: int | None) -> bool:
        with self._lock:
            session = self._at_revision(name, revision)
            if session is not None:
                self._remove(session)
            return session is not None

    def _at_revision(self, name: SessionName, revision: int | None) -> _Session | None:
        """Return the session, or None. Raises ``StaleRevision`` if it is at another ``revision`` than this one."""
        session = self._by_name_hash.get(name.name_hash)
        if session is not None and revision is not None and session.revision != revision:
            raise values.stale(revision, session.revision)
        return session

    def _remove(self, session: _Session) -> None:
        for copy in self._forks(session, 0):
            copy.forked_from = session.forked_from
        del self._sessions[session.id], self._by_name_hash[session.name.name_hash]

    def _replay(self, session: _Session, batch: Batch) -> values.Appended:
        payload, first = session.keys[batch.key_hash or ""]
        if not payload.is_retried_by(batch):
            raise exceptions.IdempotencyConflict(values.key_conflict(first))
        last = first + payload.size - 1
        tokens = sum(row.tokens for row in session.rows[first - 1 : last])
        due = session.due_since is not None
        return values.Appended(session.id, first, last, tokens, due, turned_due=False, replayed=True)

    def load(self, name: SessionName, view: View, max_pinned_tokens: int) -> values.Snapshot | None:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            if session is None:
                return None
            counters = session.counters
            shown = set(values.shown_pinned(counters.pinned, max_pinned_tokens))
            bound = values.view_bound(counters, view)
            return values.Snapshot(
                session_id=session.id,
                counters=counters,
                due=session.due_since is not None,
                revision=session.revision,
                summary=session.summary if view.summary else None,
                pinned=[row.placed for row in session.rows if row.position in shown],
                tail=[
                    row.placed
                    for row in session.rows
                    if not row.message.pinned and bound.admits(row.position, row.tokens_through)
                ],
            )

    def clear(self, name: SessionName) -> None:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            if session is None:
                return
            session.stop_compaction()
            session.counters, session.current_version = Counters(), 0
            session.rows, session.keys, session.versions = [], {}, {}

    def history(
        self, name: SessionName, *, before: int | None, after: int | None, limit: int
    ) -> list[values.StoredMessage]:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            rows = session.rows if session else []
            found = rows[after or 0 : None if before is None else max(0, before - 1)]
            found = found[:limit] if after is not None else found[max(0, len(found) - limit) :]
            return [
                values.StoredMessage(row.position, row.created_at, row.message, row.tokens, row.redacted)
                for row in found
            ]

    # Changes of what was said.

    def truncate(
        self, name: SessionName, after: int, threshold: Threshold, *, revision: int | None, hint: bool
    ) -> tuple[int, values.Edited | None]:
        with self._lock:
            session = self._at_revision(name, revision)
            if session is None:
                return 0, None
            removed = len(session.rows) - after
            if removed <= 0:
                return 0, None
            session.counters = rewound(session.counters, session.ending(after))
            del session.rows[after:]
            session.keys = {key: kept for key, kept in session.keys.items() if kept[1] <= after}
            for version in session.versions.values():
                if version.summary.last_position > after:
                    version.summary = dataclasses.replace(version.summary, text="")
            return removed, self._edited(session, session.counters.first_unfoldable, threshold, hint=hint)

    def _edited(self, session: _Session, position: int, threshold: Threshold, *, hint: bool) -> values.Edited:
        """Have the session begin again to fold what the change at ``position`` left."""
        session.stop_compaction()
        session.invalidate(position)
        session.mark_due(threshold, self._clock())
        session.hinted_at = session.due_since if hint else None
        return values.Edited(session.id, session.due_since is not None)

    def _forks(self, session: _Session, position: int) -> list[_Session]:
        """Return the direct copies that were made of it at ``position`` or later."""
        return [
            one for one in self._sessions.values() if one.forked_from == session.id and one.fork_position >= position
        ]

    def fork(
        self, source: SessionName, target: SessionName, at: int, threshold: Threshold, *, hint: bool
    ) -> values.Forked:
        with self._lock:
            session = self._by_name_hash.get(source.name_hash)
            if session is None:
                raise values.no_session(source)
            if at > len(session.rows):
                raise values.no_message(at, len(session.rows))
            if target.name_hash in self._by_name_hash:
                raise values.session_exists(target)
            copy = _Session(0, target, session.title, session.metadata, forked_from=session.id, fork_position=at)
            copy.counters = rewound(session.counters, session.ending(at))
            copy.rows = [dataclasses.replace(row) for row in session.rows[:at]]
            copy.versions = {
                number: dataclasses.replace(one)
                for number, one in session.versions.items()
                if one.valid and not one.building and one.summary.last_position <= at
            }
            copy.last_version = session.last_version
            self._insert(copy)
            edited = self._edited(copy, copy.counters.first_unfoldable, threshold, hint=hint)
            copy.epoch = copy.revision = 0
            return values.Forked(copy, edited)

    def redact(
        self, name: SessionName, position: int, threshold: Threshold, *, forks: bool, hint: bool
    ) -> list[values.Edited]:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            if session is None or not 0 < position <= len(session.rows):
                raise values.no_message(position, len(session.rows) if session else 0)
            found, row = [session], session.rows[position - 1]
            if forks:
                for one in found:
                    found += self._forks(one, position)
            holding = [one for one in found if len(one.rows) >= position and one.rows[position - 1].id == row.id]
            return [self._redact(one, position, threshold, hint=hint) for one in holding]

    def _redact(self, session: _Session, position: int, threshold: Threshold, *, hint: bool) -> values.Edited:
        row = session.rows[position - 1]
        row.message, row.redacted = row.message.emptied(), True
        for key, (payload, first) in session.keys.items():
            if first <= position < first + payload.size:
                session.keys[key] = (payload._replace(hash=""), first)
        for version in session.versions.values():
            if version.summary.last_position >= position:
                version.summary = dataclasses.replace(version.summary, text="")
        return self._edited(session, position, threshold, hint=hint)

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        with self._lock:
            found = [
                one
                for one in self._sessions.values()
                if (one.name.alias, one.name.owner_id, one.name.visitor) == (alias, owner_id, visitor)
            ]
            for session in found:
                self._remove(session)
            return len(found)

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        with self._lock:
            names = []
            for session in self._sessions.values():
                if (session.name.alias, session.name.visitor) != (alias, visitor):
                    continue
                name = SessionName(alias, session.name.key, owner_id)
                numbers = itertools.count(2)
                while name.name_hash in self._by_name_hash:
                    name = SessionName(alias, values.numbered(session.name.key, next(numbers)), owner_id)
                del self._by_name_hash[session.name.name_hash]
                self._by_name_hash[name.name_hash] = session
                session.name = name
                session.revision += 1
                names.append(name)
            return names

    def session(self, name: SessionName) -> _Session | None:
        """Return what is kept of a session: for tests. It is not a copy."""
        return self._by_name_hash.get(name.name_hash)

    def on_commit(self, function: Callable[[], None]) -> None:
        function()

    # Compaction.

    def find(self, name: SessionName) -> int | None:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
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
            counters=session.counters,
            summary=session.summary,
        )

    def claim_rebuild(self, session_id: int, *, lease: float, prompt_hash: str) -> Claim | str:
        with self._lock:
            session = self._sessions.get(session_id)
            now = self._clock()
            if session is None or not session.current_version:
                return "not_due"
            if session.lease_token and session.lease_expires_at > now:
                return "busy"
            building = {number: one for number, one in session.versions.items() if one.building and one.valid}
            line = values.building_line(
                [(number, one.parent, one.prompt_hash) for number, one in sorted(building.items())], prompt_hash
            )
            for number, one in building.items():
                one.valid = number in line
            built = building[line[-1]] if line else None
            session.lease_token = uuid.uuid4().hex
            session.lease_expires_at = now + lease
            session.epoch += 1
            session.revision += 1
            return dataclasses.replace(
                self._claimed(session, due_seconds=0.0),
                counters=values.rebuilding(
                    session.counters,
                    built.summary.last_position if built else 0,
                    built.count if built else 0,
                    built.tokens_through if built else 0,
                ),
                summary=built.summary if built else None,
                rebuilding=True,
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
            covered = claim.counters.covered_position
            last = claim.counters.last_position
            return [row.placed for row in session.rows[covered:last] if not row.message.pinned]

    def extend(self, claim: Claim, *, lease: float) -> bool:
        with self._lock:
            session = self._held(claim)
            if session is not None:
                session.lease_expires_at = self._clock() + lease
            return session is not None

    def release_connection(self) -> None:
        """Do nothing: nothing is held."""

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, threshold: Threshold, *, lease: float
    ) -> Claim | None:
        with self._lock:
            session = self._held(claim)
            if session is None or session.counters.covered_position != values.covered_by(claim):
                if attempt is not None:
                    self.record(claim, dataclasses.replace(attempt, outcome=AttemptOutcome.DROPPED))
                return None
            number = session.last_version + 1
            summary = SummaryVersion(
                number, version.first_position, version.last_position, version.text, version.tokens
            )
            building = claim.rebuilding and version.last_position < claim.counters.last_position
            session.versions[number] = _Version(
                summary,
                claim.summary.version if claim.summary else None,
                version.count,
                version.tokens_through,
                version.prompt_hash,
                building,
            )
            session.last_version = number
            if not building:
                session.current_version = number
                session.counters = session.counters._replace(
                    covered_position=version.last_position,
                    covered_count=version.count,
                    covered_tokens=version.tokens_through,
                )
                for one in session.versions.values():
                    one.building = one.building and not one.valid
                session.mark_due(threshold, self._clock())
            session.attempts = 0
            session.next_attempt_at = None
            session.last_error = ""
            session.lease_expires_at = self._clock() + lease
            session.revision += 1
            if attempt is not None:
                self.record(claim, dataclasses.replace(attempt, version=number))
            return values.after_publishing(claim, version, number)

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
            started = dt.datetime.fromtimestamp(self._clock() - attempt.duration_seconds, dt.UTC)
            self.attempts.append(values.Attempted(claim.session_id, claim.name.alias, started, attempt))

    def paused(self, alias: str, *, seconds: float) -> bool:
        with self._lock:
            newest = next((one for one in reversed(self.attempts) if one.alias == alias), None)
            if newest is None or newest.record.outcome != AttemptOutcome.MISCONFIGURED:
                return False
            return self._clock() - newest.started_at.timestamp() < seconds

    def _free(self, alias: str, now: float) -> Iterator[_Session]:
        """Yield the sessions that are due, and that somebody could fold now."""
        for session in self._sessions.values():
            leased = session.lease_token and session.lease_expires_at > now
            ready = session.next_attempt_at is None or session.next_attempt_at <= now
            if session.due_since is not None and session.name.alias == alias and not leased and ready:
                yield session

    def sweep(self, alias: str, *, limit: int, hint_age: float) -> list[int]:
        with self._lock:
            now = self._clock()
            found = sorted(
                (session.due_since or 0.0, session.id)
                for session in self._free(alias, now)
                if session.hinted_at is None or session.hinted_at <= now - hint_age
            )
            ids = [session_id for _, session_id in found[:limit]]
            for session_id in ids:
                self._sessions[session_id].hinted_at = now
            return ids

    def waiting(self, alias: str, *, after: float, within: float, most: int) -> int:
        with self._lock:
            now = self._clock()
            hinted = [session.hinted_at for session in self._free(alias, now)]
            return min(most, sum(one is not None and now - within < one <= now - after for one in hinted))

    def unhint(self, session_ids: Sequence[int]) -> None:
        with self._lock:
            for session_id in session_ids:
                if session_id in self._sessions:
                    self._sessions[session_id].hinted_at = None
