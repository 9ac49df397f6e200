"""A store in the memory of one process, for scripts and tests. It loses everything when the process ends.

It does not need Django. :class:`.ORMStore` documents the operations. Its tables are dicts here and its rows are
dataclasses, so this module can be read as what the SQL must do. A test runs random operations on both stores and
compares them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from django_convmemory import exceptions
from django_convmemory.messages import ChatMessage, frozen_json
from django_convmemory.rules import creations, exchanges, segments, turns, used_keys, values
from django_convmemory.rules.counters import Batch, Counters, Covered, Previous, rewound
from django_convmemory.rules.creations import Creation
from django_convmemory.rules.exchanges import MessageRef, Turn
from django_convmemory.rules.pause import Pause, wait_after_lease
from django_convmemory.rules.segments import Extent, Indexable, IndexRead, Segment, Unindexed
from django_convmemory.rules.strategies import Threshold, View
from django_convmemory.rules.turns import Does, State, Step
from django_convmemory.rules.values import Claim, Edited, SessionName

T = TypeVar("T")


# Rows. A time that is a number is in seconds, by the store's clock.


@dataclasses.dataclass(slots=True)
class Message:
    position: int
    message: ChatMessage
    tokens: int
    answers: int | None
    tokens_through: int
    created_at: dt.datetime
    # Copies of the message in forks have the same id.
    id: uuid.UUID
    reply_to: int | None = None
    cut_off: str | None = None
    usage: Mapping[str, Any] | None = None
    redacted: bool = False

    @property
    def ref(self) -> MessageRef:
        message = self.message.without_item()
        message = exchanges.redacted(message) if self.redacted else message
        return MessageRef(self.position, message, self.tokens, self.answers, self.created_at, self.tokens_through)

    @property
    def indexable(self) -> Indexable:
        return Indexable(self.position, self.created_at, self.message, self.redacted)

    @property
    def with_item(self) -> values.StoredMessage:
        stored = (self.position, self.created_at, self.message, self.tokens, self.redacted, self.id)
        return values.StoredMessage(*stored, self.reply_to, self.cut_off, self.usage)

    @property
    def stored(self) -> values.StoredMessage:
        return self.with_item._replace(message=self.message.without_item())

    @property
    def previous(self) -> Previous:
        return Previous.of(self.message, self.position, self.answers)


@dataclasses.dataclass(frozen=True, slots=True)
class UsedKey:
    first_position: int
    size: int
    # The hash of the messages.
    content: str
    gone_at: float | None = None

    @property
    def last_position(self) -> int:
        return self.first_position + self.size - 1


@dataclasses.dataclass(slots=True)
class Version:
    value: values.SummaryVersion
    covered: Covered
    parent_version: int | None
    prompt_hash: str
    building: bool = False
    stand_in: bool = False
    fallback: bool = False
    valid: bool = True


@dataclasses.dataclass(slots=True)
class Session:
    id: int
    session_name: SessionName
    title: str = ""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counters: Counters = dataclasses.field(default_factory=Counters)
    rows: list[Message] = dataclasses.field(default_factory=list)
    archived: bool = False
    starred: bool = False
    keys: dict[str, UsedKey] = dataclasses.field(default_factory=dict)
    creation: Creation | None = None
    # The session was created by an earlier request with the same idempotency key.
    replayed: bool = False
    versions: dict[int, Version] = dataclasses.field(default_factory=dict)
    segments: list[Segment] = dataclasses.field(default_factory=list)
    last_version: int = 0
    current_version: int = 0
    due_since: float | None = None
    queued_at: float | None = None
    attempts: int = 0
    next_attempt_at: float | None = None
    lease_token: str = ""
    lease_expires_at: float = 0.0
    last_error: str = ""
    rebuild_after: float | None = None
    turn_token: str = ""
    turn_expires_at: float = 0.0
    turn_question: int = 0
    turn_stopped: bool = False
    epoch: int = 0
    revision: int = 0
    updated_at: float = 0.0
    forked_from: int | None = None
    fork_position: int = 0

    @property
    def public_id(self) -> str:
        """Nothing of this process is public: its number is enough."""
        return str(self.id)

    @property
    def summary(self) -> values.SummaryVersion | None:
        return self.versions[self.current_version].value if self.current_version else None

    @property
    def indexed_position(self) -> int:
        return self.segments[-1].last if self.segments else 0

    @property
    def extent(self) -> Extent:
        """How far its messages and its index reach, for a search."""
        last = self.counters.last_position
        return Extent(self.id, self.session_name, self.epoch, self.indexed_position, last)

    def is_leased(self, now: float) -> bool:
        return bool(self.lease_token) and self.lease_expires_at > now

    def is_over(self, threshold: Threshold) -> bool:
        return self.counters.due(threshold, indexed_position=self.indexed_position)

    def mark_due(self, threshold: Threshold, now: float) -> None:
        if not self.is_over(threshold):
            self.due_since = None
        elif self.due_since is None:
            self.due_since = now

    def check_step(self, step: Step, now: float) -> None:
        """Raise the reason why the step of a turn cannot be made now."""
        left = self.turn_expires_at - now if self.turn_token else None
        step.check(self.turn_token, open_seconds=left, epoch=self.epoch, last_position=len(self.rows))

    @property
    def turn_state(self) -> State:
        return State(self.epoch, len(self.rows), self.revision)

    def take_step(self, step: Step, question: int, now: float) -> None:
        if step.does is Does.ENDS:
            self.turn_token, self.turn_question = "", 0
        else:
            self.turn_expires_at = now + step.seconds
        if step.does is Does.BEGINS:
            self.turn_token, self.turn_question, self.turn_stopped = step.token, question, False

    def mark_gone(self, after: int, now: float) -> None:
        """Note that the messages after the position ``after`` are removed."""
        for key_hash, used in self.keys.items():
            if used.gone_at is None and used.last_position > after:
                self.keys[key_hash] = dataclasses.replace(used, gone_at=now)

    def stop_compaction(self, now: float) -> None:
        """Clear the lease, the due mark and the failures. A worker that is still folding cannot publish."""
        if self.rebuild_after is not None and self.is_leased(now):
            self.rebuild_after = now
        self.due_since = self.queued_at = self.next_attempt_at = None
        self.attempts, self.lease_token, self.lease_expires_at, self.last_error = 0, "", 0.0, ""
        self.epoch += 1
        self.revision += 1

    def unfinished(self) -> list[Version]:
        """Return the versions of a rebuild or of a long exchange that is not finished, in order."""
        return [version for version in self.versions.values() if version.building and version.valid]

    def first_stand_in(self) -> Version | None:
        """Return the first version that the fallback made in the model's place."""
        finished = (version for version in self.versions.values() if version.valid and not version.building)
        return next((version for version in finished if version.stand_in), None)


@dataclasses.dataclass(slots=True)
class AliasState:
    pause: Pause
    threshold: Threshold | None = None


# The store.


def _locked(store: type[T]) -> type[T]:
    """Run each public method under the store's lock, so that it sees and leaves a whole state.

    Except ``on_commit``: what it calls may wait for another thread.
    """

    def locked(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def under_lock(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return method(self, *args, **kwargs)

        return under_lock

    for name, method in list(vars(store).items()):
        if callable(method) and not name.startswith("_") and name != "on_commit":
            setattr(store, name, locked(method))
    return store


@_locked
class InMemoryStore:
    """Keeps sessions in dicts, under one lock. Safe for threads.

    ``attempts`` are the calls of models, for tests. ``clock`` returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.attempts: list[values.Attempted] = []
        self._lock = threading.RLock()
        self._clock = clock
        self._sessions: dict[int, Session] = {}
        self._by_name_hash: dict[str, Session] = {}
        self._aliases: dict[str, AliasState] = {}
        self._ids = itertools.count(1)

    def _new_id(self) -> int:
        return next(self._ids)

    def session(self, name: SessionName) -> Session | None:
        return self._by_name_hash.get(name.name_hash)

    def _of_alias(self, alias: str) -> Iterator[Session]:
        return (session for session in self._sessions.values() if session.session_name.alias == alias)

    def _of_scope(self, alias: str, *, owner_id: Any, visitor: str) -> list[Session]:
        """Return the sessions of an owner or a visitor."""
        names = ((session.session_name, session) for session in self._of_alias(alias))
        return [session for name, session in names if (name.owner_id, name.visitor) == (owner_id, visitor)]

    def _created_by(self, creation: Creation | None) -> Session | None:
        """Return the session that an earlier request with the key of ``creation`` created, or None.

        Raises :class:`~django_convmemory.exceptions.IdempotencyConflict` if that was another request.
        """
        if creation is None:
            return None
        for session in self._sessions.values():
            if session.creation is not None and session.creation.key_hash == creation.key_hash:
                if session.creation != creation:
                    raise creations.conflict()
                return dataclasses.replace(session, replayed=True)
        return None

    def _restore(self, session: Session) -> None:
        """Put back a session as it was before an operation that has failed."""
        self._sessions[session.id] = self._by_name_hash[session.session_name.name_hash] = session

    def _insert(self, session: Session) -> None:
        session.id = self._new_id()
        session.updated_at = self._clock()
        self._sessions[session.id] = self._by_name_hash[session.session_name.name_hash] = session

    def _rename(self, session: Session, name: SessionName) -> None:
        del self._by_name_hash[session.session_name.name_hash]
        self._by_name_hash[name.name_hash] = session
        session.session_name = name

    def _remove(self, session: Session) -> None:
        del self._sessions[session.id], self._by_name_hash[session.session_name.name_hash]

    def _alias(self, alias: str) -> AliasState:
        """Return the state of an alias, which can be changed."""
        return self._aliases.setdefault(alias, AliasState(Pause(moment(self._clock()))))

    def owner_id(self, owner: Any) -> Any:
        owner_id = getattr(owner, "pk", None)
        if owner_id is None:
            raise values.no_owner(owner)
        return owner_id

    def append(self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str) -> values.Appended:
        session = self.session(name) or Session(0, name)
        replayed = _replay(session, batch, self._clock())
        if replayed is not None:
            return replayed
        if batch.step is not None:
            session.check_step(batch.step, self._clock())
        if batch.has_own_ids and any(row.id in batch.ids for row in session.rows):
            raise values.id_taken()
        try:
            previous = session.rows[-1].previous if session.rows else None
            counters, rows = session.counters.append(batch.entries, previous)
        except exceptions.ToolResultRefused as error:
            raise _explained(session, error) from None
        if not session.id:
            self._insert(session)
        session.counters = counters
        now = moment(self._clock())
        for entry, row, message_id in zip(batch.entries, rows, batch.ids, strict=True):
            created_at = entry.created_at or now
            stored = (row.position, entry.message, entry.tokens, row.answers, row.tokens_through, created_at)
            session.rows.append(Message(*stored, message_id, entry.reply_to, entry.cut_off, entry.usage))
        if batch.key_hash is not None:
            session.keys[batch.key_hash] = UsedKey(*batch.key_place(len(session.rows)), batch.payload_hash)
        if batch.step is not None:
            session.take_step(batch.step, len(session.rows), self._clock())
        session.revision += 1
        session.updated_at = self._clock()
        turned_due = session.due_since is None and session.is_over(threshold)
        if turned_due:
            session.due_since = self._clock()
        appended = _appended(session, rows[0].position, rows[-1].position, turned_due=turned_due)
        return appended._replace(epoch=session.epoch if batch.step else -1)

    def replace(
        self, name: SessionName, after: int, batch: Batch, threshold: Threshold, *, counter: str, revision: int | None
    ) -> values.Appended:
        session = self.session(name)
        replayed = _replay(session, batch, self._clock()) if session else None
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
            keys=dict(session.keys),
            versions={number: dataclasses.replace(version) for number, version in session.versions.items()},
            segments=list(session.segments),
        )
        _, edited = self.truncate(name, after, threshold, revision=revision)
        try:
            appended = self.append(name, batch, threshold, counter=counter)
        except exceptions.ConvMemoryError:
            if before is not None:
                self._restore(before)
            raise
        return appended._replace(turned_due=appended.turned_due or bool(edited and edited.turned_due))

    def create(
        self, name: SessionName, *, title: str, metadata: Mapping[str, Any], creation: Creation | None = None
    ) -> Session:
        earlier = self._created_by(creation)
        if earlier is not None:
            return earlier
        if self.session(name) is not None:
            raise values.session_exists(name)
        session = Session(0, name, title, metadata, creation=creation)
        self._insert(session)
        return session

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        session = self._at_revision(name, revision)
        if session is None:
            raise values.gone(name)
        if not changes:
            return
        for field, value in changes.items():
            setattr(session, field, value)
        if changes.keys() & {"title", "metadata"}:
            session.updated_at = self._clock()

    def _at_revision(self, name: SessionName, revision: int | None) -> Session | None:
        """Return the session, or None. Raises ``StaleRevision`` if it is at another ``revision`` than this one."""
        session = self.session(name)
        if session is not None and revision is not None and session.revision != revision:
            raise values.stale(revision, session.revision)
        return session

    def update_message(
        self, name: SessionName, position: int, metadata: Mapping[str, Any], *, revision: int | None
    ) -> None:
        session = self._at_revision(name, revision)
        if session is None or not 0 < position <= len(session.rows):
            raise values.no_message(position, len(session.rows) if session else 0)
        row = session.rows[position - 1]
        if row.redacted:
            raise values.redacted(position)
        row.message = dataclasses.replace(row.message, metadata=frozen_json(metadata))

    def delete(self, name: SessionName, *, revision: int | None) -> bool:
        session = self._at_revision(name, revision)
        if session is not None:
            self._delete_row(session)
        return session is not None

    def _delete_row(self, session: Session) -> None:
        for copy in self._forks(session, 0):
            copy.forked_from = session.forked_from
        self._remove(session)

    def load(self, name: SessionName, view: View, pinned_tokens: float) -> values.Snapshot | None:
        session = self.session(name)
        return None if session is None else _snapshot(session, view, pinned_tokens)

    def clear(self, name: SessionName) -> None:
        session = self.session(name)
        if session is None:
            return
        session.stop_compaction(self._clock())
        session.mark_gone(0, self._clock())
        session.updated_at = self._clock()
        session.counters, session.current_version, session.rebuild_after = Counters(), 0, None
        session.rows, session.versions, session.segments = [], {}, []

    def history(
        self, name: SessionName, *, before: int | None, after: int | None, limit: int, items: bool = False
    ) -> list[values.StoredMessage]:
        session = self.session(name)
        rows = session.rows if session else []
        rows = rows[after or 0 : None if before is None else max(0, before - 1)]
        rows = rows[:limit] if after is not None else rows[max(0, len(rows) - limit) :]
        return [row.with_item if items else row.stored for row in rows]

    def unindexed(self, session_id: int, *, limit: int) -> Unindexed | None:
        session = self._sessions.get(session_id)
        if session is None or session.indexed_position >= len(session.rows):
            return None
        indexed = session.indexed_position
        return Unindexed(
            epoch=session.epoch,
            indexed_position=indexed,
            last_position=len(session.rows),
            last=session.segments[-1] if session.segments else None,
            previous=session.rows[indexed - 1].created_at if indexed else None,
            messages=[row.indexable for row in session.rows[indexed : indexed + limit]],
        )

    def add_segments(self, session_id: int, unindexed: Unindexed, new: Sequence[Segment]) -> bool:
        session = self._sessions.get(session_id)
        if session is None or (session.epoch, session.indexed_position) != (
            unindexed.epoch,
            unindexed.indexed_position,
        ):
            return False
        if session.segments and session.segments[-1].first == new[0].first:
            session.segments.pop()
        session.segments += new
        return True

    def read_index(self, name: SessionName, *, before: int | None, epoch: int | None) -> IndexRead | None:
        session = self.session(name)
        if session is None or epoch not in (None, session.epoch):
            return None
        return _read(session, session.extent.unindexed_after(before), before=before)

    def read_indexes_of(self, alias: str, *, owner_id: Any, visitor: str, max_messages: int) -> list[IndexRead]:
        theirs = [session for session in self._of_scope(alias, owner_id=owner_id, visitor=visitor) if session.rows]
        theirs.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
        extents = [session.extent for session in theirs]
        chosen = segments.newest_sessions(extents, max_messages=max_messages, max_sessions=len(extents))
        after = segments.unindexed_after(chosen)
        results = [
            _read(session, after.get(session.id, session.counters.last_position)) for session in theirs[: len(chosen)]
        ]
        if len(chosen) < len(theirs):
            results[-1] = results[-1]._replace(others=True)
        return results

    def read_indexes_among(self, alias: str, sessions: Any, *, max_messages: int) -> list[IndexRead]:
        raise exceptions.InvalidSession(
            "The in-memory store has no rows. Search one session, or those of an owner or a visitor."
        )

    def messages_at(self, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], values.StoredMessage]:
        return {
            (session_id, position): session.rows[position - 1].stored
            for session_id, epoch, position in places
            if (session := self._sessions.get(session_id)) is not None
            and session.epoch == epoch
            and 0 < position <= len(session.rows)
        }

    def truncate(
        self, name: SessionName, after: int, threshold: Threshold, *, revision: int | None
    ) -> tuple[int, Edited | None]:
        session = self._at_revision(name, revision)
        removed = len(session.rows) - after if session else 0
        if session is None or removed <= 0:
            return 0, None
        session.counters = _rewound(session, after)
        del session.rows[after:]
        session.segments = segments.through(session.segments, after)
        for version in session.versions.values():
            if version.value.last_position > after:
                version.value = values.emptied(version.value)
        edited = self._finish(session, session.counters.first_unfoldable, threshold)
        session.mark_gone(after, self._clock())
        return removed, edited

    def _finish(self, session: Session, position: int, threshold: Threshold) -> Edited:
        """Complete a change of the messages from ``position`` on.

        The compaction ends. The summaries that cover the position are invalidated, and the newest one that is left
        becomes current. The session is marked due if ``threshold`` says so.
        """
        session.stop_compaction(self._clock())
        session.updated_at = self._clock()
        for version in session.versions.values():
            version.valid = version.valid and version.value.last_position < position
        session.current_version = max(
            (number for number, version in session.versions.items() if version.valid and not version.building),
            default=0,
        )
        current = session.versions.get(session.current_version)
        session.counters = session.counters.covering(current.covered if current else Covered())
        session.mark_due(threshold, self._clock())
        valid = [version for version in session.versions.values() if version.valid]
        if not any(version.stand_in or version.building for version in valid):
            session.rebuild_after = None
        elif session.rebuild_after is None and any(version.stand_in for version in valid):
            session.rebuild_after = self._clock()
        return Edited(session.id, session.due_since is not None)

    def pop(self, name: SessionName, threshold: Threshold) -> tuple[values.StoredMessage | None, Edited | None]:
        session = self.session(name)
        if session is None or not session.rows:
            return None, None
        popped = session.rows[-1].with_item
        _, edited = self.truncate(name, popped.position - 1, threshold, revision=None)
        return popped, edited

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
        if session is None:
            raise values.no_session(source)
        earlier = self._created_by(creation)
        if earlier is not None:
            return values.Forked(earlier, Edited(earlier.id, turned_due=False))
        if at > len(session.rows):
            raise values.no_message(at, len(session.rows))
        if self.session(target) is not None:
            raise values.session_exists(target)
        copy = Session(0, target, session.title if title is None else title, session.metadata, _rewound(session, at))
        copy.creation, copy.forked_from, copy.fork_position = creation, session.id, at
        copy.rows = [dataclasses.replace(row) for row in session.rows[:at]]
        copy.versions = {
            number: dataclasses.replace(version)
            for number, version in session.versions.items()
            if version.valid and not version.building and version.value.last_position <= at
        }
        copy.last_version, copy.segments = session.last_version, segments.through(session.segments, at)
        self._insert(copy)
        edited = self._finish(copy, copy.counters.first_unfoldable, threshold)
        copy.epoch = copy.revision = 0
        return values.Forked(copy, edited)

    def redact(self, name: SessionName, position: int, threshold: Threshold, *, forks: bool) -> values.Redaction:
        session = self.session(name)
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
        in_flight = any(holder.is_leased(now) for holder in holders)
        return values.Redaction([self._redact_in(holder, position, threshold) for holder in holders], in_flight)

    def _forks(self, session: Session, position: int) -> list[Session]:
        """Return the forks of a session that were made at ``position`` or later, without their forks."""
        return [
            fork
            for fork in self._sessions.values()
            if fork.forked_from == session.id and fork.fork_position >= position
        ]

    def _redact_in(self, session: Session, position: int, threshold: Threshold) -> Edited:
        row = session.rows[position - 1]
        row.message, row.redacted = row.message.emptied(), True
        for key_hash, used in session.keys.items():
            if used.first_position <= position <= used.last_position:
                session.keys[key_hash] = dataclasses.replace(used, content="")
        for version in session.versions.values():
            if version.value.last_position >= position:
                version.value = values.emptied(version.value)
        _strike(session, position)
        return self._finish(session, position, threshold)

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        erased = self._of_scope(alias, owner_id=owner_id, visitor=visitor)
        for session in erased:
            self._delete_row(session)
        return len(erased)

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        names = []
        for session in self._of_alias(alias):
            if session.session_name.visitor != visitor:
                continue
            name = values.free_name(
                SessionName(alias, session.session_name.key, owner_id), lambda name: self.session(name) is not None
            )
            self._rename(session, name)
            session.updated_at = self._clock()
            names.append(name)
        return names

    def waits(self) -> bool:
        return True

    def give_back_connection(self) -> None:
        pass

    def begin_turn(self, name: SessionName, step: Step) -> None:
        session = self.session(name)
        if session is None:
            raise turns.changed()
        session.check_step(step, self._clock())
        session.take_step(step, step.question, self._clock())

    def renew_turn(self, name: SessionName, step: Step) -> bool:
        session = self.session(name) or Session(0, name)
        step._replace(does=Does.GOES_ON, epoch=-1).check(
            session.turn_token, open_seconds=None, epoch=0, last_position=0
        )
        session.take_step(step._replace(does=Does.GOES_ON), 0, self._clock())
        return session.turn_stopped

    def end_turn(self, name: SessionName, step: Step) -> None:
        session = self.session(name)
        if session is not None and session.turn_token == step.token:
            session.take_step(step._replace(does=Does.ENDS), 0, self._clock())

    def stop_turn(self, name: SessionName, question: int) -> bool:
        session = self.session(name)
        if session is None or not session.turn_token or session.turn_expires_at <= self._clock():
            return False
        session.turn_stopped = session.turn_question == question
        return session.turn_stopped

    def step_turn(self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str) -> values.Appended:
        session, step = self.session(name), batch.step
        if session is None:
            raise turns.changed()
        if step is None or step.after is None:
            return self.append(name, batch, threshold, counter=counter)
        session.check_step(step, self._clock())
        self.truncate(name, step.after, threshold, revision=None)
        batch.step = step._replace(epoch=-1)
        try:
            return self.append(name, batch, threshold, counter=counter)
        finally:
            batch.step = step

    def moved(self, name: SessionName, step: Step, last_id: uuid.UUID, question_id: uuid.UUID) -> State | None:
        session = self.session(name)
        if session is None or len(session.rows) != step.last_position:
            return None
        question, last = session.rows[step.question - 1], session.rows[-1]
        is_same = (question.id, last.id) == (question_id, last_id) and not (question.redacted or last.redacted)
        return session.turn_state if is_same else None

    def revisions(self, name: SessionName) -> tuple[int, int]:
        session = self.session(name)
        return (session.revision, 0) if session else (0, 0)

    def question(self, name: SessionName, message_id: uuid.UUID | None) -> values.StoredMessage | None:
        session = self.session(name)
        asked = [row for row in (session.rows if session else []) if row.message.role == "user"]
        return next((row.stored for row in reversed(asked) if message_id in (None, row.id)), None)

    def after_question(self, name: SessionName, question: int) -> tuple[State, list[values.StoredMessage]]:
        session = self.session(name)
        if session is None:
            raise turns.changed()
        following = values.turn_of(question, [row.stored for row in session.rows[question:]])
        return session.turn_state, following

    def keyed_question(self, name: SessionName, batch: Batch) -> int | None:
        session = self.session(name)
        used = session.keys.get(batch.key_hash or "") if session else None
        if used is None or (used.gone_at is not None and used.gone_at <= self._clock() - used_keys.FORGOTTEN_AFTER):
            return None
        is_same = used.content in ("", batch.payload_hash)
        used_keys.check_content(batch, used.first_position, used.size, is_same=is_same)
        if used.gone_at is not None:
            raise turns.changed()
        return used.first_position

    def load_at(self, name: SessionName, view: View, pinned_tokens: float, position: int) -> values.Snapshot | None:
        session = self.session(name)
        if session is None:
            return None
        ended = dataclasses.replace(session, rows=session.rows[:position])
        finished = [(number, version) for number, version in session.versions.items() if not version.building]
        before = [number for number, version in finished if version.valid and version.value.last_position < position]
        ended.current_version = max(before, default=0)
        current = session.versions.get(ended.current_version)
        ended.counters = _rewound(session, position).covering(current.covered if current else Covered())
        return _snapshot(ended, view, pinned_tokens)

    def on_commit(self, function: Callable[[], None]) -> None:
        function()

    def find(self, name: SessionName) -> int | None:
        session = self.session(name)
        return session.id if session else None

    def claim(
        self,
        session_id: int,
        threshold: Threshold,
        *,
        lease: float,
        prompt_hash: str,
        force: bool,
        due_for: float = 0.0,
    ) -> Claim | str:
        session = self._sessions.get(session_id)
        now = self._clock()
        if session is None or (session.due_since is None and not session.is_over(threshold)):
            return "not_due"
        if session.is_leased(now):
            return "busy"
        waits = session.next_attempt_at is not None and session.next_attempt_at > now and not force
        if waits or (due_for and (session.due_since is None or session.due_since > now - due_for)):
            return "waiting"
        session.lease_token = uuid.uuid4().hex
        session.lease_expires_at = now + lease
        session.due_since = now if session.due_since is None else session.due_since
        session.attempts += 1
        session.next_attempt_at = session.lease_expires_at + wait_after_lease(session.attempts)
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
        self, session_id: int, *, lease: float, prompt_hash: str, whole: bool, wait: float
    ) -> Claim | str:
        session = self._sessions.get(session_id)
        now = self._clock()
        if session is None or not session.current_version or (session.rebuild_after is None and not whole):
            return "not_due"
        if session.is_leased(now):
            return "busy"
        claim = values.claimed(session, session.summary, now - (session.due_since or now))
        unfinished = session.unfinished()
        rebuild = values.rebuild_of(
            claim,
            unfinished,
            session.first_stand_in(),
            session.versions.get,
            prompt_hash=prompt_hash,
            whole=whole,
        )
        if rebuild is None:
            # What the fallback had made was replaced meanwhile.
            session.rebuild_after = None
            return "not_due"
        for version in unfinished:
            version.valid = version.value.version in rebuild.line
        session.rebuild_after = now + wait
        session.lease_token = uuid.uuid4().hex
        session.lease_expires_at = now + lease
        return rebuild.claim(dataclasses.replace(claim, token=session.lease_token))

    def turns(self, claim: Claim) -> list[Turn]:
        return [Turn(row.position, row.tokens, row.answers, row.message.role) for row in self._tail(claim)]

    def messages(self, claim: Claim, first: int, last: int) -> list[MessageRef]:
        return [row for row in self._tail(claim) if first <= row.position <= last]

    def _tail(self, claim: Claim) -> list[MessageRef]:
        session = self._sessions.get(claim.session_id)
        if session is None or session.epoch != claim.epoch:
            return []
        covered, last = claim.counters.covered_position, claim.counters.last_position
        return [row.ref for row in session.rows[covered:last] if not row.message.pinned]

    def extend(self, claim: Claim, *, lease: float) -> bool:
        session = self._held(claim)
        if session is not None:
            session.lease_expires_at = self._clock() + lease
        return session is not None

    def _held(self, claim: Claim) -> Session | None:
        """Return the session if the lease of ``claim`` still stands, and its messages are those of the claim."""
        session = self._sessions.get(claim.session_id)
        if session is None or session.epoch != claim.epoch:
            return None
        if session.lease_token != claim.token or session.lease_expires_at <= self._clock():
            return None
        return session

    def is_due(self, session_id: int) -> bool:
        session = self._sessions.get(session_id)
        return session is not None and session.due_since is not None

    def release_connection(self) -> None:
        """Do nothing: there is no connection."""

    def publish(
        self,
        claim: Claim,
        version: values.NewVersion,
        attempt: values.AttemptRecord | None,
        threshold: Threshold,
        *,
        lease: float,
    ) -> Claim | None:
        session = self._held(claim)
        if session is None or session.counters.covered_position != values.covered_by(claim):
            if attempt is not None:
                self.record(claim, dataclasses.replace(attempt, outcome=values.AttemptOutcome.DROPPED))
            return None
        number = session.last_version + 1
        final = values.is_final(claim, version)
        if final:
            _finish_versions(session, claim, version)
        parent = claim.summary.version if claim.summary else None
        session.versions[number] = Version(
            *(version.stored(number), version.covered, parent, version.prompt_hash),
            *(not final, version.stand_in, version.fallback),
        )
        session.last_version = number
        if final:
            session.current_version = number
            session.counters = session.counters.covering(version.covered)
            session.mark_due(threshold, self._clock())
        if final and claim.rebuilding:
            session.rebuild_after = None
        elif version.stand_in and session.rebuild_after is None:
            session.rebuild_after = self._clock()
        if not claim.rebuilding:
            session.attempts, session.next_attempt_at, session.last_error = 0, None, ""
        session.lease_expires_at = self._clock() + lease
        if attempt is not None:
            self.record(claim, dataclasses.replace(attempt, version=number))
        return values.after_publishing(claim, version, number)

    def release(
        self,
        claim: Claim,
        threshold: Threshold,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
        rebuild_in: float | None = None,
        queued: bool = False,
    ) -> bool:
        session = self._sessions.get(claim.session_id)
        if session is None or session.lease_token != claim.token:
            return False
        now = self._clock()
        session.lease_token, session.lease_expires_at = "", 0.0
        session.mark_due(threshold, now)
        due = session.due_since is not None
        if not claim.rebuilding:
            if not error:
                session.attempts = 0
            elif uncount:
                session.attempts = max(0, session.attempts - 1)
            session.last_error = error
            session.next_attempt_at = now + retry_in if due and retry_in is not None else None
        if queued:
            session.queued_at = now
        if rebuild_in is not None:
            session.rebuild_after = now + rebuild_in
        return due

    def record(self, claim: Claim, attempt: values.AttemptRecord) -> None:
        started = moment(self._clock() - attempt.duration_seconds)
        self.attempts.append(values.Attempted(claim.session_id, claim.name.alias, started, attempt))

    def sweep(
        self,
        alias: str,
        *,
        limit: int,
        due_for: float = 0.0,
        queued_for: float,
        fewest_attempts: bool = False,
        unindexed: int | None = None,
    ) -> list[int]:
        now = self._clock()
        order = sorted(
            (session.attempts if fewest_attempts else 0, session.due_since or 0.0, session.id)
            for session in self._free(alias, now, unindexed=unindexed)
            if (not due_for or (session.due_since or now) <= now - due_for)
            and (
                not self._in_queue(session, now - queued_for, now)
                or (session.lease_token and session.lease_expires_at > (session.queued_at or 0.0))
            )
        )
        ids = [session_id for *_, session_id in order[:limit]]
        for session_id in ids:
            self._sessions[session_id].queued_at = now
        return ids

    def _in_queue(self, session: Session, after: float, through: float) -> bool:
        """Whether the session was queued between these times, and has met no pause since that has ended."""
        if session.queued_at is None or not after < session.queued_at <= through:
            return False
        until = self._alias(session.session_name.alias).pause.paused_until
        met_pause = until is not None and session.queued_at < until.timestamp() <= self._clock()
        since = session.due_since or 0.0
        return not met_pause and (session.queued_at >= since or since > self._clock())

    def _free(self, alias: str, now: float, *, unindexed: int | None = None) -> Iterator[Session]:
        """Yield the sessions that are due and that a worker could fold now, or index."""
        for session in self._of_alias(alias):
            if unindexed is None:
                ready = session.next_attempt_at is None or session.next_attempt_at <= now
            else:
                ready = session.counters.newest_position > session.indexed_position + unindexed
            if session.due_since is not None and ready and not session.is_leased(now):
                yield session

    def sweep_rebuilds(self, alias: str, *, limit: int, wait: float) -> list[int]:
        now = self._clock()
        order = sorted(
            (session.rebuild_after, session.id)
            for session in self._of_alias(alias)
            if session.rebuild_after is not None
            and session.rebuild_after <= now
            and session.due_since is None
            and not session.is_leased(now)
        )
        ids = [session_id for _, session_id in order[:limit]]
        for session_id in ids:
            self._sessions[session_id].rebuild_after = now + wait
        return ids

    def waiting_rebuilds(self, alias: str, *, within: float, limit: int) -> int:
        now = self._clock()
        times = [session.rebuild_after for session in self._of_alias(alias) if session.due_since is None]
        return min(limit, sum(time is not None and now < time <= now + within for time in times))

    def mark_unmarked(self, alias: str, threshold: Threshold, *, limit: int) -> int:
        alias_state = self._alias(alias)
        if alias_state.threshold == threshold:
            return 0
        alias_state.threshold = threshold
        marked = 0
        for session in self._of_alias(alias):
            if session.due_since is None and session.is_over(threshold):
                session.due_since = self._clock()
                marked += 1
        return marked

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        now = self._clock()
        free = self._free(alias, now)
        return min(limit, sum(self._in_queue(session, now - within, now - after) for session in free))

    def pause_of(self, alias: str) -> Pause:
        return self._alias(alias).pause._replace(now=moment(self._clock()))

    def change_pause(self, alias: str, change: Callable[[Pause], Pause]) -> tuple[Pause, Pause]:
        before = self.pause_of(alias)
        self._alias(alias).pause = after = change(before)
        return before, after

    def has_folded_another(self, alias: str, session_id: int, seconds: float) -> bool:
        since = moment(self._clock() - seconds)
        newest = next((attempt for attempt in reversed(self.attempts) if attempt.session_id == session_id), None)
        if newest is not None and newest.record.outcome == values.AttemptOutcome.UNAVAILABLE:
            since = newest.started_at
        return any(
            attempt.alias == alias
            and attempt.session_id != session_id
            and attempt.record.outcome == values.AttemptOutcome.PUBLISHED
            and attempt.started_at >= since
            and not self._is_by_fallback(attempt)
            for attempt in self.attempts
        )

    def _is_by_fallback(self, attempt: values.Attempted) -> bool:
        session = self._sessions.get(attempt.session_id)
        version = session.versions.get(attempt.record.version or 0) if session else None
        return version is not None and version.fallback


def moment(seconds: float) -> dt.datetime:
    """Return a time of the clock as a datetime."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def _replay(session: Session, batch: Batch, now: float) -> values.Appended | None:
    """Return what the batch's key has stored, or None. Raises IdempotencyConflict if ``batch`` is no retry of it."""
    used = session.keys.get(batch.key_hash or "")
    if used is None or (used.gone_at is not None and used.gone_at <= now - used_keys.FORGOTTEN_AFTER):
        return None
    is_same = used.content in ("", batch.payload_hash)
    used_keys.check_retry(batch, used.first_position, used.size, is_same=is_same, is_gone=used.gone_at is not None)
    return _appended(session, used.first_position, used.last_position, replayed=True)


def _snapshot(session: Session, view: View, pinned_tokens: float) -> values.Snapshot:
    counters = session.counters
    positions = set(values.shown_pinned(counters.pinned, pinned_tokens))
    bound = values.view_bound(counters, view)
    pinned = [row.ref for row in session.rows if row.position in positions]
    unpinned = (row for row in session.rows if not row.message.pinned)
    tail = [row.ref for row in unpinned if bound.admits(row.position, row.tokens_through)]
    summary, due = session.summary if view.summary else None, session.due_since is not None
    return values.Snapshot(session.id, counters, due, session.revision, session.epoch, summary, pinned, tail)


def _appended(
    session: Session, first: int, last: int, *, turned_due: bool = False, replayed: bool = False
) -> values.Appended:
    rows = session.rows[first - 1 : last]
    tokens, ids = sum(row.tokens for row in rows), tuple(row.id for row in rows)
    is_due = session.due_since is not None
    receipt = values.Receipt(first, last, tokens, is_due, replayed=replayed, ids=ids)
    return values.Appended(session.id, receipt, turned_due)


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


def _rewound(session: Session, position: int) -> Counters:
    """Return the counters of the session if it ends at ``position``, without a summary."""
    rows = [row.ref for row in session.rows[:position] if not row.message.pinned]
    begun = (row for row in reversed(rows) if row.message.role == "assistant" and row.answers is None)
    spoke = next(begun, None)
    continuing = [row for row in rows if spoke is not None and row.answers == spoke.position]
    return rewound(session.counters, position, rows[-1] if rows else None, spoke, continuing)


def _finish_versions(session: Session, claim: Claim, version: values.NewVersion) -> None:
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


def _read(session: Session, after: int, *, before: int | None = None) -> IndexRead:
    rows = [row.indexable for row in session.rows if row.position >= after]
    return IndexRead(session.extent, list(session.segments), rows, after, before)


def _strike(session: Session, position: int) -> None:
    """Remove the words of the message at ``position`` from the index."""
    session.segments = [
        segments.struck(segment, position) if segment.first <= position <= segment.last else segment
        for segment in session.segments
    ]
