"""A store in the memory of one process, for scripts and tests. It loses everything when the process ends.

It does not need Django. :class:`.ORMStore` documents the operations. Its tables are lists and dicts here, and an
operation may look at every row, so this module can be read as what the SQL must do. A test runs random operations on
both stores and compares them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import itertools
import math
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_convmemory import exceptions
from django_convmemory.messages import frozen_json
from django_convmemory.rules import exchanges, segments, turns, values
from django_convmemory.rules.counters import Batch, Counters, Covered, Entry, Previous, Row
from django_convmemory.rules.keys import FORGOTTEN_AFTER, Creation, check_reuse, creation_conflict, key_removed
from django_convmemory.rules.pause import Pause, wait_after_lease
from django_convmemory.rules.segments import Extent, Indexable, IndexRead, Segment, Unindexed
from django_convmemory.rules.strategies import Threshold, View
from django_convmemory.rules.turns import Does, State, Step
from django_convmemory.rules.values import AttemptRecord, Claim, Edited, NewVersion, Scope, SessionName, StoredMessage

# Times are in seconds, by the store's clock.
NEVER = math.inf


@dataclasses.dataclass(slots=True)
class UsedKey:
    positions: range
    # The hash of the messages.
    content: str
    gone_at: float = NEVER


@dataclasses.dataclass(slots=True)
class Version:
    value: values.SummaryVersion
    covered: Covered
    parent_version: int | None
    prompt_hash: str
    building: bool
    stand_in: bool
    valid: bool = True


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """A session with all its rows. If its id is 0, there is no such session."""

    session_name: SessionName
    title: str = ""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    creation: Creation | None = None
    id: int = 0
    public_id: str = ""
    # The session was created by an earlier request with the same idempotency key.
    replayed: bool = False
    archived: bool = False
    starred: bool = False
    forked_from: Session | None = None
    fork_position: int = 0
    rows: list[StoredMessage] = dataclasses.field(default_factory=list)
    places: list[Row] = dataclasses.field(default_factory=list)
    counters: Counters = dataclasses.field(default_factory=Counters)
    keys: dict[str, UsedKey] = dataclasses.field(default_factory=dict)
    segments: list[Segment] = dataclasses.field(default_factory=list)
    versions: list[Version] = dataclasses.field(default_factory=list)
    last_version: int = 0
    epoch: int = 0
    revision: int = 0
    updated_at: float = 0.0
    due_since: float = NEVER
    queued_at: float = 0.0
    attempts: int = 0
    next_attempt_at: float = 0.0
    lease_token: str = ""
    lease_expires_at: float = 0.0
    last_error: str = ""
    rebuild_after: float = NEVER
    fold_window: int | None = None
    turn_token: str = ""
    turn_expires_at: float = 0.0
    turn_question: int = 0
    turn_stopped: bool = False

    def summaries(self, *, building: bool = False) -> list[Version]:
        """Return the valid versions that are finished, or those of a rebuild or a long exchange that is not."""
        return [version for version in self.versions if version.valid and version.building == building]

    @property
    def summary(self) -> values.SummaryVersion | None:
        """The newest finished version, which is shown."""
        return next((version.value for version in reversed(self.summaries())), None)

    @property
    def indexed_position(self) -> int:
        return self.segments[-1].last if self.segments else 0

    @property
    def extent(self) -> Extent:
        return Extent(self.id, self.session_name, self.epoch, self.indexed_position, len(self.rows))

    @property
    def refs(self) -> list[exchanges.MessageRef]:
        """The messages as a model sees them."""
        refs = []
        for row, (position, tokens_through, answers) in zip(self.rows, self.places, strict=True):
            message = exchanges.redacted(row.message) if row.redacted else row.message
            place = (answers, row.created_at, tokens_through)
            refs.append(exchanges.MessageRef(position, message.without_item(), row.tokens, *place))
        return refs

    def check_step(self, step: Step, now: float) -> None:
        """Raise the reason why the step of a turn cannot be made now."""
        left = self.turn_expires_at - now
        step.check(self.turn_token, open_seconds=left, epoch=self.epoch, last_position=len(self.rows))

    def take_step(self, step: Step, question: int, now: float) -> None:
        if step.does is Does.BEGINS:
            self.turn_token, self.turn_question, self.turn_stopped = step.token, question, False
        elif step.does is Does.ENDS:
            self.turn_token, self.turn_question = "", 0
        self.turn_expires_at = now + step.seconds

    def used_key(self, batch: Batch, now: float) -> UsedKey | None:
        """Return the key of ``batch`` if it is used. Raises IdempotencyConflict if it stands for other content."""
        key = self.keys.get(batch.key_hash or "")
        if key is None or key.gone_at <= now - FORGOTTEN_AFTER:
            return None
        is_same = key.content in ("", batch.payload_hash)
        check_reuse(batch, key.positions[0], len(key.positions), is_same=is_same)
        return key

    def appended(self, positions: range, *, turned_due: bool = False, replayed: bool = False) -> values.Appended:
        rows, due = [self.rows[position - 1] for position in positions], self.due_since < NEVER
        tokens, ids = sum(row.tokens for row in rows), tuple(row.id for row in rows)
        receipt = values.Receipt(positions[0], positions[-1], tokens, due, replayed=replayed, ids=ids)
        return values.Appended(self.id, receipt, turned_due)

    def counted_with(self, batch: Batch) -> tuple[Counters, list[Row]]:
        """Return the counters after ``batch``, and the places of its messages. Raises why it cannot be appended."""
        if batch.has_own_ids and any(row.id in batch.ids for row in self.rows):
            raise values.id_taken()
        previous = Previous.of(self.rows[-1].message, len(self.rows), self.places[-1].answers) if self.rows else None
        try:
            return self.counters.append(batch.entries, previous)
        except exceptions.ToolResultRefused as error:
            answers = [row for row in self.rows if row.message.role == "assistant"]
            calling = [row.position for row in answers if error.call_id in row.message.call_ids]
            if not calling:
                raise
            closing = next((row.position for row in answers if row.position > calling[-1]), None)
            raise values.late_result(error.call_id, calling[-1], closing) from None

    def row(self, position: int) -> StoredMessage:
        if not 0 < position <= len(self.rows):
            raise values.no_message(position, len(self.rows))
        return self.rows[position - 1]

    def stems_from(self, session: Session, position: int) -> bool:
        """Whether this is the other session, or a fork of it or of its forks, made at ``position`` or later."""
        if self is session or self.forked_from is None:
            return self is session
        return self.fork_position >= position and self.forked_from.stems_from(session, position)

    def is_held(self, claim: Claim, now: float) -> bool:
        """Whether the lease of ``claim`` still stands. A change of the messages ends it."""
        return self.lease_token == claim.token and self.lease_expires_at > now

    def is_over(self, threshold: Threshold) -> bool:
        return self.counters.due(threshold, indexed_position=self.indexed_position)

    def mark_due(self, threshold: Threshold, now: float) -> None:
        """Mark the session due, or remove the mark."""
        self.due_since = min(self.due_since, now) if self.is_over(threshold) else NEVER

    def count(self) -> None:
        """Compute the counters and the places from all rows."""
        self.counters, self.places = Counters().append([Entry(row.message, row.tokens) for row in self.rows])
        if finished := self.summaries():
            self.counters = self.counters.covering(finished[-1].covered)

    def ended_at(self, position: int) -> Session:
        """Return the session as if it ended at ``position``, with the newest summary that ends before it."""
        before = [version for version in self.versions if version.value.last_position < position]
        ended = dataclasses.replace(self, rows=self.rows[:position], versions=before)
        ended.count()
        return ended

    def cut(self, after: int, threshold: Threshold, now: float) -> Edited:
        """Remove the messages after the position ``after``."""
        del self.rows[after:]
        self.segments = segments.through(self.segments, after)
        for key in self.keys.values():
            if key.positions[-1] > after:
                key.gone_at = min(key.gone_at, now)
        self.count()
        return self.changed(after + 1, self.counters.first_unfoldable, threshold, now)

    def redact(self, position: int, threshold: Threshold, now: float) -> Edited:
        """Empty the message at ``position``, and what was made of it."""
        row = self.rows[position - 1]
        self.rows[position - 1] = row._replace(message=row.message.emptied(), redacted=True)
        self.segments = [
            segments.struck(segment, position) if segment.first <= position <= segment.last else segment
            for segment in self.segments
        ]
        for key in self.keys.values():
            if position in key.positions:
                key.content = ""
        return self.changed(position, position, threshold, now)

    def changed(self, position: int, unfoldable: int, threshold: Threshold, now: float) -> Edited:
        """Complete a change of the messages from ``position`` on. No summary may cover what is ``unfoldable``.

        The compaction ends: a worker that is still folding cannot publish. The newest summary that is left becomes
        current.
        """
        for version in self.versions:
            if version.value.last_position >= position:
                version.value = values.emptied(version.value)
            version.valid = version.valid and version.value.last_position < unfoldable
        if self.rebuild_after < NEVER and self.lease_expires_at > now:
            self.rebuild_after = now
        self.attempts, self.lease_token, self.lease_expires_at, self.last_error = 0, "", 0.0, ""
        self.due_since, self.queued_at, self.next_attempt_at, self.updated_at = NEVER, 0.0, 0.0, now
        self.epoch, self.revision = self.epoch + 1, self.revision + 1
        self.count()
        self.mark_due(threshold, now)
        valid = [version for version in self.versions if version.valid]
        if not any(version.stand_in or version.building for version in valid):
            self.rebuild_after = NEVER
        elif self.rebuild_after == NEVER and any(version.stand_in for version in valid):
            self.rebuild_after = now
        return Edited(self.id, self.due_since < NEVER)

    def add_version(self, claim: Claim, new: NewVersion, threshold: Threshold, now: float) -> None:
        """Store ``new``, and make it current if it is final."""
        final, parent = values.is_final(claim, new), claim.summary.version if claim.summary else None
        if final and claim.rebuilding and claim.replaces:
            for version in self.summaries():
                version.valid = version.value.version < claim.replaces
        if final and (claim.rebuilding or claim.parts):
            for version in self.summaries(building=True):
                version.building = not claim.rebuilding and version.value.first_position != new.first_position
        self.last_version += 1
        made = (values.SummaryVersion.of(self.last_version, new), new.covered, parent, new.prompt_hash)
        self.versions.append(Version(*made, building=not final, stand_in=new.stand_in))
        if final:
            self.counters = self.counters.covering(new.covered)
            self.mark_due(threshold, now)
        if final and claim.rebuilding:
            self.rebuild_after = NEVER
        elif new.stand_in and self.rebuild_after == NEVER:
            self.rebuild_after = now

    def snapshot(self, view: View, pinned_tokens: float) -> values.Snapshot:
        positions = values.shown_pinned(self.counters.pinned, pinned_tokens)
        bound, refs = values.view_bound(self.counters, view), self.refs
        pinned = [ref for ref in refs if ref.position in positions]
        tail = [ref for ref in refs if ref.position > bound.position and ref.tokens_through > bound.tokens_through]
        tail = [ref for ref in tail if not ref.message.pinned]
        state, summary = (self.due_since < NEVER, self.revision, self.epoch), self.summary if view.summary else None
        return values.Snapshot(self.id, self.counters, *state, summary, pinned, tail)

    def read(self, after: int, *, before: int | None = None) -> IndexRead:
        rows = [Indexable(*row[:3], row.redacted) for row in self.rows[max(0, after - 1) :]]
        return IndexRead(self.extent, list(self.segments), rows, after, before)


class InMemoryStore:
    """Keeps sessions in a dict, under one lock. Safe for threads.

    ``attempts`` are the calls of models, for tests. ``clock`` returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.attempts: list[values.Attempted] = []
        self._lock = threading.RLock()
        self._clock = clock
        self._sessions: dict[int, Session] = {}
        self._ids = itertools.count(1)
        self._pauses: dict[str, Pause] = {}

    def session(self, name: SessionName, revision: int | None = None) -> Session:
        """Return the session, or one that is not stored. Raises StaleRevision if it is at another ``revision``."""
        named = (each for each in self._sessions.values() if each.session_name.name_hash == name.name_hash)
        session = next(named, Session(name))
        if session.id and revision not in (None, session.revision):
            raise values.stale(revision, session.revision)
        return session

    def _with_id(self, session_id: int) -> Session:
        """Return the session, or one that is not stored."""
        return self._sessions.get(session_id) or Session(SessionName("", ""))

    def _of(self, alias: str, **scope: Any) -> list[Session]:
        """Return the sessions of an alias, or only those of an owner or a visitor."""
        sessions, wanted = self._sessions.values(), {"alias": alias, **scope}.items()
        return [session for session in sessions if wanted <= vars(session.session_name).items()]

    def _created_by(self, creation: Creation | None) -> Session | None:
        """Return the session that an earlier request with the same key created."""
        for session in self._sessions.values():
            if creation and session.creation and session.creation.key_hash == creation.key_hash:
                if session.creation != creation:
                    raise creation_conflict()
                return dataclasses.replace(session, replayed=True)
        return None

    def _insert(self, session: Session) -> Session:
        session.id, session.updated_at = next(self._ids), self._clock()
        session.public_id = str(session.id)
        self._sessions[session.id] = session
        return session

    def _remove(self, sessions: list[Session]) -> int:
        for session in sessions:
            del self._sessions[session.id]
            for fork in self._sessions.values():
                if fork.forked_from is session:
                    fork.forked_from = session.forked_from
        return len(sessions)

    def owner_id(self, owner: Any) -> Any:
        owner_id = getattr(owner, "pk", None)
        if owner_id is None:
            raise values.no_owner(owner)
        return owner_id

    def append(self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str) -> values.Appended:
        session, now = self.session(name), self._clock()
        key = session.used_key(batch, now)
        if key is not None and key.gone_at < NEVER:
            raise key_removed(key.positions[0])
        if key is not None:
            return session.appended(key.positions, replayed=True)
        if batch.step is not None:
            session.check_step(batch.step, now)
        counters, places = session.counted_with(batch)
        if not session.id:
            self._insert(session)
        session.counters, session.places = counters, session.places + places
        for entry, place, message_id in zip(batch.entries, places, batch.ids, strict=True):
            created_at = entry.created_at or dt.datetime.fromtimestamp(now, dt.UTC)
            session.rows.append(StoredMessage.of(entry, place.position, created_at, message_id))
        last = len(session.rows)
        if batch.key_hash is not None:
            first, size = batch.key_place(last)
            session.keys[batch.key_hash] = UsedKey(range(first, first + size), batch.payload_hash)
        if batch.step is not None:
            session.take_step(batch.step, last, now)
        session.revision, session.updated_at = session.revision + 1, now
        turned_due = session.due_since == NEVER and session.is_over(threshold)
        if turned_due:
            session.due_since = now
        appended = session.appended(range(places[0].position, last + 1), turned_due=turned_due)
        return appended._replace(epoch=session.epoch if batch.step else -1)

    def replace(
        self, name: SessionName, after: int, batch: Batch, threshold: Threshold, *, counter: str, revision: int | None
    ) -> values.Appended:
        if self.session(name).used_key(batch, self._clock()) is not None:
            return self.append(name, batch, threshold, counter=counter)
        session = self.session(name, revision)
        if after > len(session.rows):
            raise values.no_message(after, len(session.rows))
        session.ended_at(after).counted_with(batch)  # If that raises, nothing is removed.
        _, edited = self.truncate(name, after, threshold, revision=None)
        appended = self.append(name, batch, threshold, counter=counter)
        return appended._replace(turned_due=appended.turned_due or bool(edited and edited.turned_due))

    def create(
        self, name: SessionName, *, title: str, metadata: Mapping[str, Any], creation: Creation | None = None
    ) -> Session:
        earlier = self._created_by(creation)
        if earlier is None and self.session(name).id:
            raise values.session_exists(name)
        return earlier or self._insert(Session(name, title, metadata, creation))

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        session = self.session(name, revision)
        if not session.id:
            raise values.gone(name)
        for field, value in changes.items():
            setattr(session, field, value)
        if changes.keys() & {"title", "metadata"}:
            session.updated_at = self._clock()

    def update_message(
        self, name: SessionName, position: int, metadata: Mapping[str, Any], *, revision: int | None
    ) -> None:
        session = self.session(name, revision)
        row = session.row(position)
        if row.redacted:
            raise values.redacted(position)
        message = dataclasses.replace(row.message, metadata=frozen_json(metadata))
        session.rows[position - 1] = row._replace(message=message)

    def delete(self, name: SessionName, *, revision: int | None) -> bool:
        session = self.session(name, revision)
        return self._remove([session] if session.id else []) > 0

    def load(self, name: SessionName, view: View, pinned_tokens: float) -> values.Snapshot | None:
        session = self.session(name)
        return session.snapshot(view, pinned_tokens) if session.id else None

    def load_at(self, name: SessionName, view: View, pinned_tokens: float, position: int) -> values.Snapshot | None:
        session = self.session(name)
        return session.ended_at(position).snapshot(view, pinned_tokens) if session.id else None

    def history(
        self, name: SessionName, *, before: int | None, after: int | None, limit: int, items: bool = False
    ) -> list[StoredMessage]:
        rows = self.session(name).rows[after or 0 : None if before is None else max(0, before - 1)]
        rows = rows[:limit] if after is not None else rows[max(0, len(rows) - limit) :]
        return rows if items else [shown(row) for row in rows]

    def messages_at(self, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], StoredMessage]:
        rows = [(session, row) for session in self._sessions.values() for row in session.rows]
        found = [(session.id, row) for session, row in rows if (session.id, session.epoch, row.position) in places]
        return {(session_id, row.position): shown(row) for session_id, row in found}

    def unindexed(self, session_id: int, *, limit: int) -> Unindexed | None:
        session = self._with_id(session_id)
        indexed, last = session.indexed_position, session.segments[-1] if session.segments else None
        previous = session.rows[indexed - 1].created_at if indexed else None
        messages = [Indexable(*row[:3], row.redacted) for row in session.rows[indexed : indexed + limit]]
        return Unindexed(session.epoch, indexed, len(session.rows), last, previous, messages) if messages else None

    def add_segments(self, session_id: int, unindexed: Unindexed, new: Sequence[Segment]) -> bool:
        session = self._with_id(session_id)
        if not session.id or (session.epoch, session.indexed_position) != unindexed[:2]:
            return False
        session.segments = [*(segment for segment in session.segments if segment.first < new[0].first), *new]
        return True

    def read_index(self, name: SessionName, *, before: int | None, epoch: int | None) -> IndexRead | None:
        session = self.session(name)
        if not session.id or epoch not in (None, session.epoch):
            return None
        return session.read(session.extent.unindexed_after(before), before=before)

    def read_indexes_of(self, alias: str, *, owner_id: Any, visitor: str, max_messages: int) -> list[IndexRead]:
        theirs = [session for session in self._of(alias, owner_id=owner_id, visitor=visitor) if session.rows]
        theirs.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
        extents = [session.extent for session in theirs]
        chosen = segments.newest_sessions(extents, max_messages=max_messages, max_sessions=len(extents))
        after = segments.unindexed_after(chosen)
        results = [session.read(after.get(session.id, len(session.rows))) for session in theirs[: len(chosen)]]
        if len(chosen) < len(theirs):
            results[-1] = results[-1]._replace(others=True)
        return results

    def read_indexes_among(self, alias: str, sessions: Any, *, max_messages: int) -> list[IndexRead]:
        raise exceptions.InvalidSession(
            "The in-memory store has no rows. Search one session, or those of an owner or a visitor."
        )

    def clear(self, name: SessionName) -> None:
        session = self.session(name)
        session.cut(0, Threshold(), self._clock())
        session.versions.clear()

    def truncate(
        self, name: SessionName, after: int, threshold: Threshold, *, revision: int | None
    ) -> tuple[int, Edited | None]:
        session = self.session(name, revision)
        removed = len(session.rows) - after
        return (removed, session.cut(after, threshold, self._clock())) if removed > 0 else (0, None)

    def pop(self, name: SessionName, threshold: Threshold) -> tuple[StoredMessage | None, Edited | None]:
        session = self.session(name)
        popped = session.rows[-1] if session.rows else None
        return popped, popped and session.cut(popped.position - 1, threshold, self._clock())

    def fork(
        self,
        source: SessionName,
        target: SessionName,
        at: int,
        threshold: Threshold,
        *,
        title: str | None = None,
        creation: Creation | None = None,
    ) -> values.Forked:
        session = self.session(source)
        if not session.id:
            raise values.no_session(source)
        earlier = self._created_by(creation)
        if earlier is not None:
            return values.Forked(earlier)
        if at > len(session.rows):
            raise values.no_message(at, len(session.rows))
        title = session.title if title is None else title
        fork = self.create(target, title=title, metadata=session.metadata, creation=creation)
        fork.forked_from, fork.fork_position, fork.last_version = session, at, session.last_version
        fork.rows, fork.segments = list(session.rows), session.segments
        copied = [version for version in session.summaries() if version.value.last_position <= at]
        fork.versions = [dataclasses.replace(version) for version in copied]
        edited = fork.cut(at, threshold, self._clock())
        fork.epoch = fork.revision = 0
        return values.Forked(fork, edited)

    def redact(self, name: SessionName, position: int, threshold: Threshold, *, forks: bool) -> values.Redaction:
        session, now = self.session(name), self._clock()
        message_id, sessions = session.row(position).id, self._sessions.values() if forks else [session]
        forked = [fork for fork in sessions if fork.stems_from(session, position)]
        # Another message has the position if the fork was cut before it, and went on in another way.
        holders = [fork for fork in forked if [row.id for row in fork.rows[position - 1 : position]] == [message_id]]
        in_flight = any(holder.lease_expires_at > now for holder in holders)
        return values.Redaction([holder.redact(position, threshold, now) for holder in holders], in_flight)

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        return self._remove(self._of(alias, owner_id=owner_id, visitor=visitor))

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        adopted = self._of(alias, owner_id=None, visitor=visitor)
        for session in adopted:
            name = SessionName(alias, session.session_name.key, owner_id)
            session.session_name = values.free_name(name, lambda name: self.session(name).id > 0)
            session.updated_at = self._clock()
        return [session.session_name for session in adopted]

    def waits(self) -> bool:
        return True

    def give_back_connection(self) -> None:
        pass

    release_connection = give_back_connection

    def on_commit(self, function: Callable[[], None]) -> None:
        function()

    def begin_turn(self, name: SessionName, step: Step) -> None:
        session, now = self.session(name), self._clock()
        session.check_step(step, now)
        session.take_step(step, step.question, now)

    def renew_turn(self, name: SessionName, step: Step) -> bool:
        session = self.session(name)
        if session.turn_token != step.token:
            raise turns.lost()
        session.turn_expires_at = self._clock() + step.seconds
        return session.turn_stopped

    def end_turn(self, name: SessionName, step: Step) -> None:
        session = self.session(name)
        if session.turn_token == step.token:
            session.turn_token, session.turn_question = "", 0

    def stop_turn(self, name: SessionName, question: int) -> bool:
        session = self.session(name)
        is_asked = session.turn_token != "" and session.turn_question == question
        is_open = is_asked and session.turn_expires_at > self._clock()
        session.turn_stopped = session.turn_stopped or is_open
        return is_open

    def step_turn(self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str) -> values.Appended:
        step = batch.step
        if step is None or step.after is None:
            return self.append(name, batch, threshold, counter=counter)
        self.session(name).check_step(step, self._clock())
        checked = batch.with_step(step._replace(epoch=-1))
        return self.replace(name, step.after, checked, threshold, counter=counter, revision=None)

    def moved(self, name: SessionName, step: Step, last_id: uuid.UUID, question_id: uuid.UUID) -> int | None:
        session = self.session(name)
        wanted = {(step.question, question_id), (step.last_position, last_id)}
        found = {(row.position, row.id) for row in session.rows if not row.redacted}
        return session.epoch if len(session.rows) == step.last_position and wanted <= found else None

    def revisions(self, name: SessionName) -> tuple[int, int]:
        return self.session(name).revision, 0

    def question(self, name: SessionName, message_id: uuid.UUID | None) -> StoredMessage | None:
        asked = [row for row in self.session(name).rows if row.message.role == "user" and message_id in (None, row.id)]
        return shown(asked[-1]) if asked else None

    def after_question(self, name: SessionName, question: int) -> tuple[State, list[StoredMessage]]:
        session = self.session(name)
        if not session.id:
            raise turns.changed()
        state = State(session.epoch, len(session.rows), session.revision)
        return state, values.turn_of(question, map(shown, session.rows[question:]))

    def keyed_question(self, name: SessionName, batch: Batch) -> int | None:
        key = self.session(name).used_key(batch, self._clock())
        if key is not None and key.gone_at < NEVER:
            raise turns.changed()
        return None if key is None else key.positions[0]

    def find(self, name: SessionName) -> int | None:
        return self.session(name).id or None

    def claim(
        self, session_id: int, threshold: Threshold, *, lease: float, prompt_hash: str, force: bool, due_for: float = 0
    ) -> Claim | str:
        session, now = self._with_id(session_id), self._clock()
        if session.due_since == NEVER and not session.is_over(threshold):
            return "not_due"
        if session.lease_expires_at > now:
            return "busy"
        due_since = min(session.due_since, now)
        if (session.next_attempt_at > now and not force) or due_since > now - due_for:
            return "waiting"
        session.lease_token, session.lease_expires_at, session.due_since = uuid.uuid4().hex, now + lease, due_since
        session.attempts += 1
        session.next_attempt_at = session.lease_expires_at + wait_after_lease(session.attempts)
        claim = values.claimed(session, session.summary, now - due_since)
        first = claim.counters.covered_position + 1
        unfinished = session.summaries(building=True)
        parts = [part for part in unfinished if part.value.part_end is not None and part.value.first_position == first]
        line = values.building_line(parts, prompt_hash, claim.summary.version if claim.summary else None)
        for part in parts:
            part.valid = part.value.version in line
        return values.continued(claim, line)

    def claim_rebuild(
        self, session_id: int, *, lease: float, prompt_hash: str, whole: bool, wait: float
    ) -> Claim | str:
        session, now = self._with_id(session_id), self._clock()
        if not session.summary or (session.rebuild_after == NEVER and not whole):
            return "not_due"
        if session.lease_expires_at > now:
            return "busy"
        session.lease_token, session.lease_expires_at, session.rebuild_after = uuid.uuid4().hex, now + lease, now + wait
        claim = values.claimed(session, session.summary, now - min(session.due_since, now))
        finished = {version.value.version: version for version in session.summaries()}
        stand_in = next((version for version in finished.values() if version.stand_in), None)
        building = session.summaries(building=True)
        rebuild = values.rebuild_of(claim, building, stand_in, finished.get, prompt_hash=prompt_hash, whole=whole)
        if rebuild is None:  # What the fallback had made was replaced meanwhile.
            session.lease_token, session.lease_expires_at, session.rebuild_after = "", 0.0, NEVER
            return "not_due"
        claim, line = rebuild
        for version in building:
            version.valid = version.value.version in line
        return claim

    def turns(self, claim: Claim, limit: int | None = None) -> list[exchanges.Turn]:
        refs = self.messages(claim)[:limit]
        return [exchanges.Turn(ref.position, ref.tokens, ref.answers, ref.message.role) for ref in refs]

    def messages(self, claim: Claim, first: int = 1, last: float = math.inf) -> list[exchanges.MessageRef]:
        tail = self._with_id(claim.session_id).refs[claim.counters.covered_position : claim.counters.last_position]
        return [ref for ref in tail if first <= ref.position <= last and not ref.message.pinned]

    def extend(self, claim: Claim, *, lease: float) -> bool:
        session, now = self._with_id(claim.session_id), self._clock()
        is_held = session.is_held(claim, now)
        if is_held:
            session.lease_expires_at = now + lease
        return is_held

    def is_due(self, session_id: int) -> bool:
        return self._with_id(session_id).due_since < NEVER

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, threshold: Threshold, *, lease: float
    ) -> Claim | None:
        session, now = self._with_id(claim.session_id), self._clock()
        if not session.is_held(claim, now) or session.counters.covered_position != values.covered_by(claim):
            if attempt is not None:
                self.record(claim, dataclasses.replace(attempt, outcome=values.AttemptOutcome.DROPPED))
            return None
        session.add_version(claim, version, threshold, now)
        session.lease_expires_at = now + lease
        if not claim.rebuilding:
            session.attempts, session.next_attempt_at, session.last_error = 0, 0.0, ""
        if attempt is not None:
            self.record(claim, dataclasses.replace(attempt, version=session.last_version), fallback=version.fallback)
        return values.after_publishing(claim, version, session.last_version)

    def release(self, claim: Claim, threshold: Threshold, how: values.Release = values.SUCCESS) -> bool:
        session, now = self._with_id(claim.session_id), self._clock()
        if session.lease_token != claim.token:
            return False
        session.lease_token, session.lease_expires_at, session.fold_window = "", 0.0, how.window
        session.mark_due(threshold, now)
        if not claim.rebuilding:
            session.attempts = max(0, session.attempts - how.uncount) if how.error else 0
            session.next_attempt_at = 0.0 if how.retry_in is None else now + how.retry_in
            session.last_error = how.error
        if how.queued:
            session.queued_at = now
        if how.rebuild_in is not None:
            session.rebuild_after = now + how.rebuild_in
        return session.due_since < NEVER

    def record(self, claim: Claim, attempt: AttemptRecord, *, fallback: bool = False) -> None:
        started = self._clock() - attempt.duration_seconds
        self.attempts.append(values.Attempted(claim.session_id, claim.name.alias, started, attempt, fallback))

    def sweep(
        self,
        alias: str,
        *,
        limit: int,
        due_for: float = 0.0,
        queued_for: float,
        fewest_attempts: bool = False,
        unindexed: int | None = None,
        most_leases: int | None = None,
    ) -> list[int]:
        now = self._clock()
        due = [session for session in self._free(alias, unindexed) if not due_for or session.due_since <= now - due_for]
        found = [session for session in due if not self._in_queue(session, now - queued_for, now)]
        ranks: dict[int, int] = {}
        if most_leases is None:
            found.sort(key=lambda session: (session.attempts if fewest_attempts else 0, *_waited(session)))
            ahead: defaultdict[tuple[str, Any], itertools.count[int]] = defaultdict(itertools.count)
            ranks = {session.id: next(ahead[_scopes(session)[0].who]) for session in found}
        else:
            found = [session for session in found if max(map(self.leases, _scopes(session))) < most_leases]
            found.sort(key=lambda session: (session.due_since, session.id))
        found.sort(key=lambda session: (session.attempts if fewest_attempts else 0, ranks.get(session.id, 0)))
        for session in found[:limit]:
            session.queued_at = now
        return [session.id for session in found[:limit]]

    def scopes(self, session_id: int) -> list[Scope]:
        return _scopes(self._with_id(session_id), session_id)

    def leases(self, scope: Scope) -> int:
        leased = [session for session in self._sessions.values() if session.lease_expires_at > self._clock()]
        # A claim counts as an attempt.
        return sum(scope.who in [of.who for of in _scopes(session, claims=1)] for session in leased)

    def others_wait(self, scope: Scope, aliases: tuple[str, ...]) -> bool:
        waiting = [session for alias in aliases if not self.pause_of(alias).holds for session in self._free(alias)]
        return any(scope.who not in [of.who for of in _scopes(session)] for session in waiting)

    def following(self, claim: Claim) -> int | None:
        free = [session for session in self._free(claim.name.alias) if session.id != claim.session_id]
        waiting = [session for session in free if _scopes(session)[0].who == claim.scope.who]
        waiting = [session for session in waiting if 0 < session.queued_at < session.due_since]
        if not waiting:
            return None
        first = min(waiting, key=_waited)
        first.queued_at = self._clock()
        return first.id

    def unqueue(self, session_id: int) -> None:
        session = self._with_id(session_id)
        session.queued_at = session.due_since - 1 if session.due_since < NEVER else session.queued_at

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        now = self._clock()
        return min(limit, sum(self._in_queue(session, now - within, now - after) for session in self._free(alias)))

    def _free(self, alias: str, unindexed: int | None = None) -> list[Session]:
        """Return the sessions that are due and that a worker could fold now, or index."""
        now = self._clock()
        free = [session for session in self._of(alias) if session.due_since < NEVER and session.lease_expires_at <= now]
        if unindexed is None:
            return [session for session in free if session.next_attempt_at <= now]
        return [session for session in free if session.counters.newest_position > session.indexed_position + unindexed]

    def _in_queue(self, session: Session, after: float, through: float) -> bool:
        """Whether a task was queued between these times, and no worker has taken it, nor has it met a pause."""
        now, ends = self._clock(), self.pause_of(session.session_name.alias).paused_until
        met_pause = ends is not None and session.queued_at < ends.timestamp() <= now
        is_done = session.queued_at < session.due_since <= now or session.queued_at < session.lease_expires_at
        return after < session.queued_at <= through and not met_pause and not is_done

    def sweep_rebuilds(self, alias: str, *, limit: int, wait: float) -> list[int]:
        now = self._clock()
        marked = [session for session in self._of(alias) if session.rebuild_after <= now and session.due_since == NEVER]
        free = [session for session in marked if session.lease_expires_at <= now]
        free.sort(key=lambda session: (session.rebuild_after, session.id))
        for session in free[:limit]:
            session.rebuild_after = now + wait
        return [session.id for session in free[:limit]]

    def waiting_rebuilds(self, alias: str, *, within: float, limit: int) -> int:
        now = self._clock()
        times = [session.rebuild_after for session in self._of(alias) if session.due_since == NEVER]
        return min(limit, sum(now < time <= now + within for time in times))

    def mark_unmarked(self, alias: str, threshold: Threshold, *, limit: int) -> int:
        unmarked = [session for session in self._of(alias) if session.due_since == NEVER and session.is_over(threshold)]
        for session in unmarked:
            session.due_since = self._clock()
        return len(unmarked)

    def pause_of(self, alias: str) -> Pause:
        now = dt.datetime.fromtimestamp(self._clock(), dt.UTC)
        return self._pauses.get(alias, Pause(now))._replace(now=now)

    def change_pause(self, alias: str, change: Callable[[Pause], Pause]) -> tuple[Pause, Pause]:
        before = self.pause_of(alias)
        self._pauses[alias] = after = change(before)
        return before, after

    def has_folded_another(self, alias: str, session_id: int, seconds: float) -> bool:
        since = self._clock() - seconds
        newest = next((attempt for attempt in reversed(self.attempts) if attempt.session_id == session_id), None)
        if newest is not None and newest.record.outcome == values.AttemptOutcome.UNAVAILABLE:
            since = newest.started_at
        others = [attempt for attempt in self.attempts if attempt.alias == alias and attempt.session_id != session_id]
        folded = [attempt for attempt in others if attempt.record.outcome == values.AttemptOutcome.PUBLISHED]
        return any(attempt.started_at >= since and not attempt.fallback for attempt in folded)


def _scopes(session: Session, session_id: int | None = None, *, claims: int = 0) -> list[Scope]:
    name = session.session_name
    return Scope.all_of(name.owner_id, name.visitor, session_id or session.id, session.attempts - claims)


def _waited(session: Session) -> tuple[float, float, int]:
    """Return what decides which session comes first: when it was queued, or else since when it is due."""
    return session.queued_at, session.due_since, session.id


def shown(row: StoredMessage) -> StoredMessage:
    """Return a message without its item."""
    return row._replace(message=row.message.without_item())


def under_lock(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(store: InMemoryStore, /, *args: Any, **kwargs: Any) -> Any:
        with store._lock:
            return method(store, *args, **kwargs)

    return locked


# Each public method sees and leaves a whole state. What on_commit() calls may wait for another thread.
for _name in [name for name in vars(InMemoryStore) if not name.startswith("_") and name != "on_commit"]:
    setattr(InMemoryStore, _name, under_lock(getattr(InMemoryStore, _name)))
