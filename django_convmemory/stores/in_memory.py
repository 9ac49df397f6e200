"""A store in the memory of one process, for scripts and tests. It loses everything when the process ends.

It does not need Django. The tests compare the ORM store with it.
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
from django_convmemory.core import exchanges, indexable, values
from django_convmemory.core.breaker import KNOWN_FOR, Breaker, Reason
from django_convmemory.core.counters import Batch, Counters, Covered, Ending, Standing, rewound
from django_convmemory.core.exchanges import Placed, Turn
from django_convmemory.core.indexable import Extent, Indexable
from django_convmemory.core.recall import segments
from django_convmemory.core.recall.segments import Segment
from django_convmemory.core.strategies import Threshold, View
from django_convmemory.core.values import (
    AttemptOutcome,
    AttemptRecord,
    Claim,
    DueRule,
    NewVersion,
    SessionName,
    SummaryVersion,
)
from django_convmemory.messages import ChatMessage


@dataclasses.dataclass(slots=True)
class _Row:
    position: int
    message: ChatMessage
    tokens: int
    answers: int | None
    tokens_through: int
    created_at: dt.datetime
    # Copies of the message in forks have the same id.
    id: int
    redacted: bool = False

    @property
    def placed(self) -> Placed:
        message = exchanges.redacted(self.message) if self.redacted else self.message
        return Placed(self.position, message, self.tokens, self.answers, self.created_at)

    @property
    def indexable(self) -> Indexable:
        return Indexable(self.position, self.created_at, self.message, self.redacted)

    @property
    def stored(self) -> values.StoredMessage:
        return values.StoredMessage(self.position, self.created_at, self.message, self.tokens, self.redacted)


@dataclasses.dataclass(slots=True)
class _Version:
    value: SummaryVersion
    covered: Covered
    parent_version: int | None
    prompt_hash: str
    building: bool = False
    stand_in: bool = False
    valid: bool = True


@dataclasses.dataclass(slots=True)
class _Session:
    id: int
    session_name: SessionName
    title: str = ""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counters: Counters = dataclasses.field(default_factory=Counters)
    rows: list[_Row] = dataclasses.field(default_factory=list)
    keys: dict[str, tuple[values.Payload, int]] = dataclasses.field(default_factory=dict)
    versions: dict[int, _Version] = dataclasses.field(default_factory=dict)
    segments: list[Segment] = dataclasses.field(default_factory=list)
    last_version: int = 0
    current_version: int = 0
    due_since: float | None = None
    hinted_at: float | None = None
    attempts: int = 0
    next_attempt_at: float | None = None
    lease_token: str = ""
    lease_expires_at: float = 0.0
    last_error: str = ""
    rebuild_after: float | None = None
    epoch: int = 0
    revision: int = 0
    updated_at: float = 0.0
    forked_from: int | None = None
    fork_position: int = 0

    @property
    def summary(self) -> SummaryVersion | None:
        return self.versions[self.current_version].value if self.current_version else None

    @property
    def indexed_position(self) -> int:
        return self.segments[-1].last if self.segments else 0

    @property
    def extent(self) -> Extent:
        """How far its messages and its index reach, for a search."""
        last = self.counters.last_position
        return Extent(self.id, self.session_name, self.epoch, self.indexed_position, last)

    def searchable(self, after: int, *, before: int | None = None) -> values.Searchable:
        """Return the session as a search reads it, with its messages after the position ``after`` if not indexed."""
        rows = [row.indexable for row in self.rows if row.position >= after]
        return indexable.searchable(self.extent, self.segments, rows, after=after, before=before)

    def cut_index(self, after: int) -> None:
        """Remove the messages after the position ``after`` from the index."""
        self.segments = [segment for segment in self.segments if segment.first <= after]
        if self.indexed_position > after:
            self.segments[-1] = segments.trimmed(self.segments[-1], after)

    def is_over(self, threshold: Threshold) -> bool:
        return self.counters.due(threshold, indexed_position=self.indexed_position)

    def mark_due(self, threshold: Threshold, now: float) -> None:
        if not self.is_over(threshold):
            self.due_since = None
        elif self.due_since is None:
            self.due_since = now

    def stop_compaction(self) -> None:
        """Clear the lease, the due mark and the failures. A worker that is still folding cannot publish."""
        self.due_since = self.hinted_at = self.next_attempt_at = None
        self.attempts, self.lease_token, self.lease_expires_at, self.last_error = 0, "", 0.0, ""
        self.epoch += 1
        self.revision += 1

    def invalidate(self, position: int) -> None:
        """Invalidate the summaries that cover ``position``. The newest one that is left becomes current."""
        for version in self.versions.values():
            version.valid = version.valid and version.value.last_position < position
        self.current_version = max(
            (number for number, version in self.versions.items() if version.valid and not version.building), default=0
        )
        current = self.versions.get(self.current_version)
        self.counters = self.counters.covering(current.covered if current else Covered())

    def unfinished(self) -> list[_Version]:
        """Return the versions of a rebuild or of a long exchange that is not finished, in order."""
        return [version for version in self.versions.values() if version.building and version.valid]

    def first_stand_in(self) -> _Version | None:
        """Return the first version that the fallback made in the model's place."""
        finished = (version for version in self.versions.values() if version.valid and not version.building)
        return next((version for version in finished if version.stand_in), None)

    def ending(self, position: int) -> Ending:
        """Return how the messages through ``position`` end."""
        rows = [row for row in self.rows[:position] if not row.message.pinned]
        spoke = next((row for row in reversed(rows) if row.message.role == "assistant"), None)
        return Ending(
            last_position=position,
            last=_standing(rows[-1]) if rows else None,
            spoke=_standing(spoke) if spoke else None,
            call_ids=spoke.message.call_ids if spoke else (),
            results=[
                (row.position, row.message.tool_call_id or "")
                for row in rows
                if spoke is not None and row.answers == spoke.position
            ],
        )


def _explained(session: _Session, error: exceptions.ToolResultRefused) -> exceptions.ToolResultRefused:
    """Return the error of a refused tool result, with the message that closed its exchange.

    If no stored message made the call, it is ``error`` itself.
    """
    answers = [row for row in session.rows if row.message.role == "assistant"]
    calling = next((row.position for row in reversed(answers) if error.call_id in row.message.call_ids), None)
    if calling is None:
        return error
    closing = next((row.position for row in answers if row.position > calling), None)
    return values.late_result(error.call_id, calling, closing)


def _standing(row: _Row) -> Standing:
    return Standing(row.position, row.tokens, row.tokens_through)


@dataclasses.dataclass(slots=True)
class _AliasState:
    failures: int = 0
    last_session: int | None = None
    since: float | None = None
    until: float | None = None
    reason: str = ""
    error: str = ""
    threshold: Threshold | None = None


class InMemoryStore:
    """Keeps sessions in dicts, under one lock. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._sessions: dict[int, _Session] = {}
        self._by_name_hash: dict[str, _Session] = {}
        self._aliases: dict[str, _AliasState] = {}
        self.attempts: list[values.Attempted] = []

    def owner_id(self, owner: Any) -> Any:
        owner_id = getattr(owner, "pk", None)
        if owner_id is None:
            raise values.no_owner(owner)
        return owner_id

    def append(self, name: SessionName, batch: Batch, rule: DueRule, *, counter: str) -> values.Appended:
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
            session.updated_at = self._clock()
            turned_due = session.due_since is None and session.is_over(rule.threshold)
            if turned_due:
                session.due_since = self._clock()
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

    def _insert(self, session: _Session) -> None:
        session.id = next(self._ids)
        session.updated_at = self._clock()
        self._sessions[session.id] = self._by_name_hash[session.session_name.name_hash] = session

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
            session.updated_at = self._clock()

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
        del self._sessions[session.id], self._by_name_hash[session.session_name.name_hash]

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

    def clear(self, name: SessionName) -> None:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            if session is None:
                return
            session.stop_compaction()
            session.updated_at = self._clock()
            session.counters, session.current_version, session.rebuild_after = Counters(), 0, None
            session.rows, session.keys, session.versions, session.segments = [], {}, {}, []

    def history(
        self, name: SessionName, *, before: int | None, after: int | None, limit: int
    ) -> list[values.StoredMessage]:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            rows = session.rows if session else []
            rows = rows[after or 0 : None if before is None else max(0, before - 1)]
            rows = rows[:limit] if after is not None else rows[max(0, len(rows) - limit) :]
            return [row.stored for row in rows]

    # Recall.

    def index(self, session_id: int, *, limit: int = 1_000) -> values.Indexed:
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return values.Indexed(0, more=False)
            indexed = session.indexed_position
            previous = session.rows[indexed - 1].created_at if indexed else None
            rows = session.rows[indexed : indexed + limit]
            documents = indexable.portion((row.indexable for row in rows), previous)
            if documents:
                last = session.segments.pop() if session.segments else None
                new = segments.extended(last, indexed + 1, documents)
                if last is not None and new[0].first != last.first:
                    session.segments.append(last)
                session.segments += new
            return values.Indexed(len(documents), more=indexed + len(documents) < len(session.rows))

    def searchable(
        self, name: SessionName, *, before: int | None = None, epoch: int | None = None
    ) -> values.Searchable | None:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            if session is None or epoch not in (None, session.epoch):
                return None
            return session.searchable(session.extent.unindexed_after(before), before=before)

    def searchable_of(
        self, alias: str, *, owner_id: Any, visitor: str, max_messages: int = 100_000
    ) -> list[values.Searchable]:
        with self._lock:
            theirs = [session for session in self._of(alias, owner_id, visitor) if session.rows]
            theirs.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
            extents = [session.extent for session in theirs]
            chosen = indexable.newest(extents, max_messages=max_messages, max_sessions=len(extents))
            after = indexable.unindexed_after(chosen)
            results = [
                session.searchable(after.get(session.id, session.counters.last_position))
                for session in theirs[: len(chosen)]
            ]
            if len(chosen) < len(theirs):
                results[-1] = results[-1]._replace(complete=False)
            return results

    def searchable_among(self, alias: str, sessions: Any, *, max_messages: int = 100_000) -> list[values.Searchable]:
        raise exceptions.InvalidSession(
            "The in-memory store has no rows. Search one session, or those of an owner or a visitor."
        )

    def messages_at(self, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], values.StoredMessage]:
        with self._lock:
            return {
                (session_id, position): session.rows[position - 1].stored
                for session_id, epoch, position in places
                if (session := self._sessions.get(session_id)) is not None
                and session.epoch == epoch
                and 0 < position <= len(session.rows)
            }

    # Operations that change stored conversations.

    def truncate(
        self, name: SessionName, after: int, rule: DueRule, *, revision: int | None
    ) -> tuple[int, values.Edited | None]:
        with self._lock:
            session = self._at_revision(name, revision)
            removed = len(session.rows) - after if session else 0
            if session is None or removed <= 0:
                return 0, None
            session.counters = rewound(session.counters, session.ending(after))
            del session.rows[after:]
            session.cut_index(after)
            session.keys = {key: (payload, first) for key, (payload, first) in session.keys.items() if first <= after}
            for version in session.versions.values():
                if version.value.last_position > after:
                    version.value = values.emptied(version.value)
            return removed, self._edited(session, session.counters.first_unfoldable, rule)

    def _edited(self, session: _Session, position: int, rule: DueRule) -> values.Edited:
        """Complete a change of the messages from ``position`` on: end the compaction, and mark the session if due."""
        session.stop_compaction()
        session.updated_at = self._clock()
        session.invalidate(position)
        session.mark_due(rule.threshold, self._clock())
        session.hinted_at = session.due_since if rule.hint else None
        stands_in = any(version.valid and version.stand_in for version in session.versions.values())
        is_old = values.is_old(session.summary, rule.reanchor_every)
        session.rebuild_after = self._clock() if stands_in or is_old else None
        return values.Edited(session.id, session.due_since is not None)

    def _forks(self, session: _Session, position: int) -> list[_Session]:
        """Return the forks of a session that were made at ``position`` or later, without their forks."""
        return [
            fork
            for fork in self._sessions.values()
            if fork.forked_from == session.id and fork.fork_position >= position
        ]

    def fork(self, source: SessionName, target: SessionName, at: int, rule: DueRule) -> values.Forked:
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
                number: dataclasses.replace(version)
                for number, version in session.versions.items()
                if version.valid and not version.building and version.value.last_position <= at
            }
            copy.last_version = session.last_version
            copy.segments = list(session.segments)
            copy.cut_index(at)
            self._insert(copy)
            edited = self._edited(copy, copy.counters.first_unfoldable, rule)
            copy.epoch = copy.revision = 0
            return values.Forked(copy, edited)

    def redact(self, name: SessionName, position: int, rule: DueRule, *, forks: bool) -> values.Redaction:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            if session is None or not 0 < position <= len(session.rows):
                raise values.no_message(position, len(session.rows) if session else 0)
            sessions, row = [session], session.rows[position - 1]
            if forks:
                for copied in sessions:
                    sessions += self._forks(copied, position)
            holders = [
                holder for holder in sessions if len(holder.rows) >= position and holder.rows[position - 1].id == row.id
            ]
            now = self._clock()
            in_flight = any(holder.lease_token and holder.lease_expires_at > now for holder in holders)
            return values.Redaction([self._redact(holder, position, rule) for holder in holders], in_flight)

    def _redact(self, session: _Session, position: int, rule: DueRule) -> values.Edited:
        row = session.rows[position - 1]
        row.message, row.redacted = row.message.emptied(), True
        for key, (payload, first) in session.keys.items():
            if first <= position < first + payload.size:
                session.keys[key] = (payload._replace(hash=""), first)
        for version in session.versions.values():
            if version.value.last_position >= position:
                version.value = values.emptied(version.value)
        session.segments = [
            segments.struck(segment, position) if segment.first <= position <= segment.last else segment
            for segment in session.segments
        ]
        return self._edited(session, position, rule)

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        with self._lock:
            erased = self._of(alias, owner_id, visitor)
            for session in erased:
                self._remove(session)
            return len(erased)

    def _of(self, alias: str, owner_id: Any, visitor: str) -> list[_Session]:
        """Return the sessions of an owner or a visitor."""
        names = ((session.session_name, session) for session in self._sessions.values())
        return [
            session
            for name, session in names
            if (name.alias, name.owner_id, name.visitor) == (alias, owner_id, visitor)
        ]

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        with self._lock:
            names = []
            for session in self._sessions.values():
                if (session.session_name.alias, session.session_name.visitor) != (alias, visitor):
                    continue
                name = values.free_name(
                    SessionName(alias, session.session_name.key, owner_id),
                    lambda name: name.name_hash in self._by_name_hash,
                )
                del self._by_name_hash[session.session_name.name_hash]
                self._by_name_hash[name.name_hash] = session
                session.session_name = name
                session.revision += 1
                session.updated_at = self._clock()
                names.append(name)
            return names

    def session(self, name: SessionName) -> _Session | None:
        """Return a session itself and not a copy, for tests."""
        return self._by_name_hash.get(name.name_hash)

    def on_commit(self, function: Callable[[], None]) -> None:
        function()

    # Compaction.

    def find(self, name: SessionName) -> int | None:
        with self._lock:
            session = self._by_name_hash.get(name.name_hash)
            return session.id if session else None

    def claim(self, session_id: int, rule: DueRule, *, lease: float, prompt_hash: str, force: bool) -> Claim | str:
        with self._lock:
            session = self._sessions.get(session_id)
            now = self._clock()
            if session is None or (session.due_since is None and not session.is_over(rule.threshold)):
                return "not_due"
            if session.lease_token and session.lease_expires_at > now:
                return "busy"
            if session.next_attempt_at is not None and session.next_attempt_at > now and not force:
                return "waiting"
            session.lease_token = uuid.uuid4().hex
            session.lease_expires_at = now + lease
            session.due_since = now if session.due_since is None else session.due_since
            session.attempts += 1
            session.next_attempt_at = session.lease_expires_at + values.wait_after_lease(session.attempts)
            session.revision += 1
            claim = values.claimed(session, session.summary, now - session.due_since)
            first = claim.counters.covered_position + 1
            parts = [
                version
                for version in session.unfinished()
                if version.value.part_end is not None and version.value.first_position == first
            ]
            line = values.building_line(parts, prompt_hash, claim.summary.version if claim.summary else None)
            for part in parts:
                part.valid = part.value.version in line
            return values.continued(claim, line)

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
            session = self._sessions.get(session_id)
            now = self._clock()
            if session is None or not session.current_version or (stand_ins and session.rebuild_after is None):
                return "not_due"
            if session.lease_token and session.lease_expires_at > now:
                return "busy"
            first = session.first_stand_in()
            if first is None and stand_ins and not values.is_old(session.summary, reanchor_every):
                # What the fallback had made was replaced meanwhile.
                session.rebuild_after = None
                return "not_due"
            if stand_ins:
                session.rebuild_after = now + wait
            base = None
            if first is not None:
                before, first = values.replaced_by_rebuild(first, session.versions.get)
                base = before if stand_ins else None
            building = session.unfinished()
            covered = session.counters.covered_position
            rows = [version for version in building if values.may_continue(version, covered)]
            line = values.building_line(rows, prompt_hash, base.value.version if base else None)
            for version in building:
                version.valid = version.value.version in line
            session.lease_token = uuid.uuid4().hex
            session.lease_expires_at = now + lease
            session.epoch += 1
            session.revision += 1
            claim = values.claimed(session, session.summary, 0.0)
            return values.rebuilding(claim, line, base, first.value.version if first else 0)

    def turns(self, claim: Claim) -> list[Turn]:
        return [Turn(row.position, row.tokens, row.answers, row.message.role) for row in self._tail(claim)]

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

    def is_due(self, session_id: int) -> bool:
        with self._lock:
            session = self._sessions.get(session_id)
            return session is not None and session.due_since is not None

    def release_connection(self) -> None:
        """Do nothing: there is no connection."""

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, rule: DueRule, *, lease: float
    ) -> Claim | None:
        with self._lock:
            session = self._held(claim)
            if session is None or session.counters.covered_position != values.covered_by(claim):
                if attempt is not None:
                    self.record(claim, dataclasses.replace(attempt, outcome=AttemptOutcome.DROPPED))
                return None
            number = session.last_version + 1
            final = values.is_final(claim, version)
            if final:
                self._finish(session, claim, version)
            parent = claim.summary.version if claim.summary else None
            session.versions[number] = _Version(
                version.stored(number), version.covered, parent, version.prompt_hash, not final, version.stand_in
            )
            session.last_version = number
            if final:
                session.current_version = number
                session.counters = session.counters.covering(version.covered)
                session.mark_due(rule.threshold, self._clock())
            if final and claim.rebuilding:
                session.rebuild_after = None
            elif values.needs_rebuild(claim, version, rule) and session.rebuild_after is None:
                session.rebuild_after = self._clock()
            if not claim.rebuilding:
                session.attempts, session.next_attempt_at, session.last_error = 0, None, ""
            session.lease_expires_at = self._clock() + lease
            session.revision += 1
            session.updated_at = self._clock()
            if attempt is not None:
                self.record(claim, dataclasses.replace(attempt, version=number))
            return values.after_publishing(claim, version, number)

    def _finish(self, session: _Session, claim: Claim, version: NewVersion) -> None:
        """Prepare the versions of the session for one that becomes current."""
        unfinished = session.unfinished()
        if claim.rebuilding and claim.replaces:
            for number, stored in session.versions.items():
                stored.valid = stored.valid and (stored.building or number < claim.replaces)
        elif not claim.rebuilding:
            first = version.first_position
            unfinished = [part for part in unfinished if claim.parts and part.value.first_position == first]
        for part in unfinished:
            part.building = False

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
        rule: DueRule,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
        rebuild_in: float | None = None,
    ) -> bool:
        with self._lock:
            session = self._sessions.get(claim.session_id)
            if session is None or session.lease_token != claim.token:
                return False
            now = self._clock()
            session.lease_token, session.lease_expires_at = "", 0.0
            session.mark_due(rule.threshold, now)
            due = session.due_since is not None
            if not claim.rebuilding:
                if not error:
                    session.attempts = 0
                elif uncount:
                    session.attempts = max(0, session.attempts - 1)
                session.last_error = error
                session.next_attempt_at = now + retry_in if due and retry_in is not None else None
            if rule.hint and due:
                session.hinted_at = now
            if rebuild_in is not None:
                session.rebuild_after = now + rebuild_in
            session.revision += 1
            return due

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        with self._lock:
            started = dt.datetime.fromtimestamp(self._clock() - attempt.duration_seconds, dt.UTC)
            self.attempts.append(values.Attempted(claim.session_id, claim.name.alias, started, attempt))

    def _free(self, alias: str, now: float, *, unindexed: int | None = None) -> Iterator[_Session]:
        """Yield the sessions that are due and that a worker could fold now, or index: see :meth:`.Store.sweep`."""
        for session in self._sessions.values():
            leased = session.lease_token and session.lease_expires_at > now
            if unindexed is None:
                ready = session.next_attempt_at is None or session.next_attempt_at <= now
            else:
                ready = session.counters.newest_position > session.indexed_position + unindexed
            if session.due_since is not None and session.session_name.alias == alias and not leased and ready:
                yield session

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
            now = self._clock()
            order = sorted(
                (session.attempts if fewest_attempts else 0, session.due_since or 0.0, session.id)
                for session in self._free(alias, now, unindexed=unindexed)
                if session.hinted_at is None
                or session.hinted_at <= now - hint_age
                or (session.lease_token and session.lease_expires_at > session.hinted_at)
            )
            ids = [session_id for *_, session_id in order[:limit]]
            for session_id in ids:
                self._sessions[session_id].hinted_at = now
            return ids

    def sweep_rebuilds(self, alias: str, *, limit: int, wait: float) -> list[int]:
        with self._lock:
            now = self._clock()
            order = sorted(
                (session.rebuild_after, session.id)
                for session in self._sessions.values()
                if session.session_name.alias == alias
                and session.rebuild_after is not None
                and session.rebuild_after <= now
                and session.due_since is None
                and not (session.lease_token and session.lease_expires_at > now)
            )
            ids = [session_id for _, session_id in order[:limit]]
            for session_id in ids:
                self._sessions[session_id].rebuild_after = now + wait
            return ids

    def waiting_rebuilds(self, alias: str, *, within: float, limit: int) -> int:
        with self._lock:
            now = self._clock()
            times = [
                session.rebuild_after
                for session in self._sessions.values()
                if session.session_name.alias == alias and session.due_since is None
            ]
            return min(limit, sum(time is not None and now < time <= now + within for time in times))

    def mark_unmarked(self, alias: str, rule: DueRule, *, limit: int) -> int:
        with self._lock:
            state = self._state(alias)
            if state.threshold == rule.threshold:
                return 0
            state.threshold = rule.threshold
            marked = 0
            for session in self._sessions.values():
                if (
                    session.session_name.alias == alias
                    and session.due_since is None
                    and session.is_over(rule.threshold)
                ):
                    session.due_since, session.hinted_at = self._clock(), None
                    marked += 1
            return marked

    # The breakers.

    def _state(self, alias: str) -> _AliasState:
        return self._aliases.setdefault(alias, _AliasState())

    def breaker(self, alias: str) -> Breaker:
        with self._lock:
            state = self._state(alias)
            since, until = (
                None if moment is None else dt.datetime.fromtimestamp(moment, dt.UTC)
                for moment in (state.since, state.until)
            )
            now = dt.datetime.fromtimestamp(self._clock(), dt.UTC)
            return Breaker(now, state.failures, state.last_session, since, until, state.reason, state.error)

    def count_failure(self, alias: str, session_id: int, error: str) -> int:
        with self._lock:
            state = self._state(alias)
            is_open = state.until is not None and state.reason != Reason.RATE_LIMIT
            if state.last_session != session_id or is_open:
                state.failures += 1
                state.last_session, state.error = session_id, error
                state.since = self._clock() if state.since is None else state.since
            return state.failures

    def open_breaker(self, alias: str, reason: Reason, error: str, *, seconds: float) -> None:
        with self._lock:
            state = self._state(alias)
            # Of two calls at a time, only one may have been told how long to wait.
            longer = state.until is not None and state.until >= self._clock() + seconds
            other = state.until is not None and state.reason != Reason.RATE_LIMIT
            if reason == Reason.RATE_LIMIT and (other or longer):
                return
            # The outage begins now, also if it follows a wrong configuration.
            was_closed = state.until is None or state.reason == Reason.RATE_LIMIT
            begins = was_closed or (state.reason == Reason.MISCONFIGURED and state.reason != reason)
            if reason != Reason.RATE_LIMIT and begins:
                state.since = self._clock()
            state.until, state.reason, state.error = self._clock() + seconds, reason, error

    def probe(self, alias: str, *, seconds: float) -> bool:
        with self._lock:
            state, now = self._state(alias), self._clock()
            ended = state.until is not None and state.until <= now and state.reason != Reason.RATE_LIMIT
            if ended:
                if state.until is not None and state.until < now - KNOWN_FOR:
                    state.since = now
                state.until = now + seconds
            return ended

    def end_probe(self, alias: str, *, seconds: float = 0.0, silent: bool = True) -> bool:
        with self._lock:
            state, now = self._state(alias), self._clock()
            paused = state.until is not None and state.until > now and state.reason != Reason.RATE_LIMIT
            if paused:
                state.until, state.since = now + seconds, state.since if silent else now
            return paused

    def close_breaker(self, alias: str) -> bool:
        with self._lock:
            state = self._state(alias)
            opened = state.until is not None and state.reason != Reason.RATE_LIMIT
            if opened:
                self._aliases[alias] = _AliasState(threshold=state.threshold)
            else:
                state.failures, state.last_session, state.since = 0, None, None
            return opened

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        with self._lock:
            now = self._clock()
            times = [session.hinted_at for session in self._free(alias, now)]
            return min(limit, sum(time is not None and now - within < time <= now - after for time in times))

    def unhint(self, session_ids: Sequence[int]) -> None:
        with self._lock:
            for session_id in session_ids:
                if session_id in self._sessions:
                    self._sessions[session_id].hinted_at = None
