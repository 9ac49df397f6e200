"""What is kept of a session, of its messages and summaries, and of an alias: the counterpart of the models.

A time that is a number is in seconds, by the store's clock.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any

from django_convmemory.messages import ChatMessage
from django_convmemory.rules import cuts, exchanges, spent_keys, values
from django_convmemory.rules.counters import Counters, Covered, Placing, Previous, Standing
from django_convmemory.rules.creations import Creation
from django_convmemory.rules.exchanges import Placed
from django_convmemory.rules.indexable import Extent, Indexable
from django_convmemory.rules.segments import Segment
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import SessionName, SummaryVersion


@dataclasses.dataclass(slots=True)
class Message:
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
        message = self.message.without_item()
        message = exchanges.redacted(message) if self.redacted else message
        return Placed(self.position, message, self.tokens, self.answers, self.created_at)

    @property
    def indexable(self) -> Indexable:
        return Indexable(self.position, self.created_at, self.message, self.redacted)

    @property
    def with_item(self) -> values.StoredMessage:
        return values.StoredMessage(self.position, self.created_at, self.message, self.tokens, self.redacted)

    @property
    def stored(self) -> values.StoredMessage:
        return self.with_item._replace(message=self.message.without_item())

    @property
    def placing(self) -> Placing:
        return Placing(Standing(self.position, self.tokens, self.tokens_through), self.answers, self.message)

    @property
    def previous(self) -> Previous:
        return Previous.of(self.message, self.position, self.answers)


@dataclasses.dataclass(slots=True)
class Summary:
    value: SummaryVersion
    covered: Covered
    parent_version: int | None
    prompt_hash: str
    building: bool = False
    stand_in: bool = False
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
    keys: dict[str, tuple[values.Payload, int]] = dataclasses.field(default_factory=dict)
    creation: Creation | None = None
    # The session was created by an earlier request with the same idempotency key.
    replayed: bool = False
    cuts: str = ""
    spent_keys: str = ""
    versions: dict[int, Summary] = dataclasses.field(default_factory=dict)
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
    def public_id(self) -> str:
        """Nothing of this process is public: its number is enough."""
        return str(self.id)

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

    def is_leased(self, now: float) -> bool:
        return bool(self.lease_token) and self.lease_expires_at > now

    def is_over(self, threshold: Threshold) -> bool:
        return self.counters.due(threshold, indexed_position=self.indexed_position)

    def mark_due(self, threshold: Threshold, now: float) -> None:
        if not self.is_over(threshold):
            self.due_since = None
        elif self.due_since is None:
            self.due_since = now

    def remember_cut(self, after: int) -> None:
        """Keep what outlives the messages after the position ``after``. The epoch has been raised."""
        deleted = sorted(
            ((first, key, payload.size) for key, (payload, first) in self.keys.items() if first > after), reverse=True
        )
        self.keys = {key: (payload, first) for key, (payload, first) in self.keys.items() if first <= after}
        self.spent_keys = spent_keys.spend(self.spent_keys, [(key, first, size) for first, key, size in deleted])
        self.cuts = cuts.cut(self.cuts, after, self.epoch)

    def stop_compaction(self) -> None:
        """Clear the lease, the due mark and the failures. A worker that is still folding cannot publish."""
        self.due_since = self.hinted_at = self.next_attempt_at = None
        self.attempts, self.lease_token, self.lease_expires_at, self.last_error = 0, "", 0.0, ""
        self.epoch += 1
        self.revision += 1

    def unfinished(self) -> list[Summary]:
        """Return the versions of a rebuild or of a long exchange that is not finished, in order."""
        return [version for version in self.versions.values() if version.building and version.valid]

    def first_stand_in(self) -> Summary | None:
        """Return the first version that the fallback made in the model's place."""
        finished = (version for version in self.versions.values() if version.valid and not version.building)
        return next((version for version in finished if version.stand_in), None)


@dataclasses.dataclass(slots=True)
class AliasState:
    failures: int = 0
    last_session: int | None = None
    since: float | None = None
    until: float | None = None
    reason: str = ""
    error: str = ""
    threshold: Threshold | None = None
