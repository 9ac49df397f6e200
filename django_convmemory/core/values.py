"""What goes in and out of a store, and the arithmetic that both stores share."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import hashlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from django_convmemory.core.counters import Batch, Counters, Pinned
from django_convmemory.core.exchanges import Placed
from django_convmemory.core.strategies import View
from django_convmemory.exceptions import (
    InvalidSession,
    SessionExists,
    StaleRevision,
    ToolResultRefused,
    UnknownMessage,
    UnknownSession,
)
from django_convmemory.messages import ChatMessage


@dataclasses.dataclass(frozen=True, slots=True)
class SessionName:
    """A session, named: by alias, scope and key.

    The scope is a user of the site (``owner_id``), a visitor, or nobody. With ``row_id`` the row of that id is meant,
    and no other that has come to bear the name since it was looked up.
    """

    alias: str
    key: str
    owner_id: Any = None
    visitor: str = ""
    row_id: int | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        whose = f", owner {self.owner_id}" if self.owner_id is not None else f", visitor {self.visitor}"
        return f"{self.alias}: {self.key}{whose if self.owner_id is not None or self.visitor else ''}"

    @property
    def name_hash(self) -> str:
        """The SHA-256 in hex by which stores find the session, whatever a database thinks equal."""
        scope = f"u:{self.owner_id}" if self.owner_id is not None else f"v:{self.visitor}" if self.visitor else ""
        return hashlib.sha256(f"{self.alias}\0{scope}\0{self.key}".encode()).hexdigest()


class Appended(NamedTuple):
    """What an append did. ``turned_due``: it was this append that made the session due. ``due``: it is due now."""

    session_id: int
    first_position: int
    last_position: int
    tokens: int
    due: bool
    turned_due: bool
    replayed: bool


@dataclasses.dataclass(frozen=True, slots=True)
class SummaryVersion:
    """A fold, as stored. It stands for everything through ``last_position``."""

    version: int
    first_position: int
    last_position: int
    text: str
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """A session as it was at one moment: its counters, its current summary, and the messages to show."""

    session_id: int
    counters: Counters
    due: bool
    revision: int
    summary: SummaryVersion | None
    pinned: Sequence[Placed]
    tail: Sequence[Placed]


class StoredMessage(NamedTuple):
    """A message of the transcript, as people see it."""

    position: int
    created_at: dt.datetime
    message: ChatMessage
    tokens: int
    redacted: bool


class Edited(NamedTuple):
    """What became of a session whose rows were changed. ``turned_due``: it was this that made the session due."""

    session_id: int
    turned_due: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The right to fold a session until the lease ends, and what the session was when it was given.

    With ``rebuilding`` the summary is made again from the original messages through the position covered: the counters
    are those of a session that ends there, and ``summary`` is what is built so far.
    """

    session_id: int
    name: SessionName
    token: str
    epoch: int
    last_version: int
    attempts: int
    due_seconds: float
    counters: Counters
    summary: SummaryVersion | None
    rebuilding: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """A fold to be published: what it adds (``first_position..last_position``) and its text.

    ``count`` and ``tokens_through`` are the unpinned messages and their tokens through ``last_position``.
    """

    first_position: int
    last_position: int
    count: int
    tokens_through: int
    text: str
    tokens: int
    model: str
    shortened: bool
    fallback: bool
    prompt_hash: str


class AttemptOutcome(enum.StrEnum):
    """What came of one call of a model."""

    PUBLISHED = "published"
    SHORTEN = "shorten"
    DROPPED = "dropped"
    UNAVAILABLE = "unavailable"
    MISCONFIGURED = "misconfigured"
    TOO_LONG = "context_length"
    REFUSED = "refused"
    BAD_OUTPUT = "bad_output"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One call of a model, for the books. ``version`` is what came of it, or None."""

    first_position: int
    last_position: int
    due_seconds: float
    duration_seconds: float
    outcome: AttemptOutcome
    error: str = ""
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: Decimal | None = None
    version: int | None = None


class Bound(NamedTuple):
    """The suffix of the unpinned messages that a view asks for, as a store can find it by an index.

    All messages above ``position`` and with a running total above ``tokens_through``, of those through
    ``last_position``.
    """

    position: int
    tokens_through: int
    last_position: int

    def admits(self, position: int, tokens_through: int) -> bool:
        """Whether the message at ``position`` belongs to it."""
        return self.position < position <= self.last_position and tokens_through > self.tokens_through


def view_bound(counters: Counters, view: View) -> Bound:
    """Return which messages ``view`` asks for: at least those, in any case the newest exchange, and few more."""
    position = counters.covered_position if view.summary else 0
    tokens_through = counters.covered_tokens if view.summary else 0
    if view.messages is not None:
        first = counters.last_position - view.messages
        for pinned in reversed(counters.pinned):
            if pinned.position <= first:
                break
            first -= 1
        position = max(position, min(first, counters.newest_position - 1))
    if view.tokens is not None:
        tokens_through = max(tokens_through, min(counters.unpinned_tokens - view.tokens, counters.settled_tokens))
    return Bound(position, tokens_through, counters.last_position)


def shown_pinned(pinned: Sequence[Pinned], max_tokens: int) -> list[int]:
    """Return the positions of the pinned messages that are shown: the first always, then the newest that fit."""
    if not pinned:
        return []
    left = max_tokens - pinned[0].tokens
    shown = [pinned[0].position]
    for one in reversed(pinned[1:]):
        left -= one.tokens
        if left < 0:
            break
        shown.append(one.position)
    return shown


class Forked(NamedTuple):
    """A session that was copied; ``session`` names it, and is the row where the store has rows."""

    session: Any
    edited: Edited


def stale(revision: int, now: int) -> StaleRevision:
    """Return the error of an edit that was made for an earlier revision."""
    return StaleRevision(
        f"The session is at revision {now}, not {revision} any more: load it again, and see whether the change is "
        "still wanted."
    )


def no_message(position: int, last: int) -> UnknownMessage:
    """Return the error of naming a message that is not there."""
    return UnknownMessage(f"The session has no message at position {position}; its last one is at {last}.")


def no_owner(owner: object) -> InvalidSession:
    """Return the error of naming somebody else than a user who is stored."""
    return InvalidSession(
        f"An object of type {type(owner).__name__} cannot own a session: an owner is a user of the "
        "site, who is saved. For somebody who is not logged in give visitor=…, a random id that the site keeps in its "
        "own session."
    )


def no_session(name: SessionName) -> InvalidSession:
    """Return the error of copying what is not there."""
    return InvalidSession(f"There is no session {name.key!r} to copy.")


def gone(name: SessionName) -> UnknownSession:
    """Return the error of changing a session that is not there, or not any more."""
    return UnknownSession(f"The session {name.key!r:.300} does not exist, or belongs to somebody else now.")


def session_exists(name: SessionName) -> SessionExists:
    """Return the error of creating a session under a name that another one has."""
    return SessionExists(f"A session with the key {name.key!r:.300} already exists; choose another key.")


MAX_ALIAS_LENGTH = 100
MAX_KEY_LENGTH = 255
MAX_TITLE_LENGTH = 255
MAX_MODEL_NAME = 200


def numbered(key: str, number: int) -> str:
    """Return ``key`` with a number behind it, for a scope that has the key already."""
    suffix = f" ({number})"
    return key[: MAX_KEY_LENGTH - len(suffix)] + suffix


def rebuilding(counters: Counters, position: int, count: int, tokens_through: int) -> Counters:
    """Return the counters of a session that ends where its summary does, with a new summary through ``position``."""
    return Counters(
        last_position=counters.covered_position,
        unpinned_count=counters.covered_count,
        unpinned_tokens=counters.covered_tokens,
        covered_position=position,
        covered_count=count,
        covered_tokens=tokens_through,
    )


def building_line(versions: Sequence[tuple[int, int | None, str]], prompt_hash: str) -> list[int]:
    """Return the versions that a rebuild can continue: each made from the one before, all with this prompt.

    ``versions`` are those that are building, in order: number, parent and prompt of each.
    """
    line: list[int] = []
    for number, parent, prompt in versions:
        if parent == (line[-1] if line else None) and prompt == prompt_hash:
            line.append(number)
    return line


def covered_by(claim: Claim) -> int:
    """Return the position that the session's current summary must stand for, for this claim to publish."""
    return claim.counters.last_position if claim.rebuilding else claim.counters.covered_position


def after_publishing(claim: Claim, version: NewVersion, number: int) -> Claim:
    """Return the claim as it is once ``version`` is published."""
    return dataclasses.replace(
        claim,
        last_version=number,
        attempts=0,
        counters=claim.counters._replace(
            covered_position=version.last_position,
            covered_count=version.count,
            covered_tokens=version.tokens_through,
        ),
        summary=SummaryVersion(number, version.first_position, version.last_position, version.text, version.tokens),
    )


def late_result(call_id: str, asked: int, closed: int | None) -> ToolResultRefused:
    """Return the error of a tool result that comes too late, which names the message that closed its exchange."""
    how = (
        f"the assistant message at position {closed} closed its exchange"
        if closed
        else "every call of it has its result"
    )
    return ToolResultRefused(
        f"The call {call_id!r:.100} was made by the assistant message at position {asked}, and {how}: a result that "
        "comes later has no place. Store it before the next assistant message, or leave it out.",
        call_id,
    )


def key_conflict(position: int) -> str:
    """The text of an :class:`~django_convmemory.exceptions.IdempotencyConflict`."""
    return (
        f"This idempotency key stored other content at position {position}. Use a new key for new content, and the "
        "same content for a retry."
    )


class Payload(NamedTuple):
    """What was stored with an idempotency key: its hash, or "" where some of it was redacted, and how many messages."""

    hash: str
    size: int

    @property
    def text(self) -> str:
        """The form that a column holds."""
        return f"{self.hash}/{self.size}"

    def is_retried_by(self, batch: Batch) -> bool:
        """Whether ``batch``, which came with the same key, has the same content, as far as that can be told."""
        return self.size == len(batch.entries) and self.hash in ("", batch.payload_hash)


def payload_of(text: str) -> Payload:
    """Return what :attr:`Payload.text` says."""
    payload_hash, _, size = text.partition("/")
    return Payload(payload_hash, int(size or 0))


class Attempted(NamedTuple):
    """An attempt as stored by the in-memory store, for tests and the curious."""

    session_id: int
    alias: str
    started_at: dt.datetime
    record: AttemptRecord
