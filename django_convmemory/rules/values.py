"""The arguments and results of a store's methods, and the arithmetic that both stores share."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import hashlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from django_convmemory import exceptions
from django_convmemory.messages import ChatMessage
from django_convmemory.rules import usage
from django_convmemory.rules.counters import Counters, Covered, Entry, Pinned
from django_convmemory.rules.exchanges import MessageRef
from django_convmemory.rules.strategies import View


@dataclasses.dataclass(frozen=True)
class SessionName:
    """The name of a session: its alias, its scope and its key.

    The scope is a user of the site (``owner_id``), a visitor, or nobody. With ``row_id`` the name means the row with
    that id only, and not another row that has got the same name since.
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
    def session_name(self) -> SessionName:
        """This name. So operations of a memory take it instead of a key."""
        return self

    @functools.cached_property
    def name_hash(self) -> str:
        """The SHA-256 of the name in hex. Stores find the session by it, so that collations do not matter."""
        return hashlib.sha256(f"{self.alias}\0{self.scope}\0{self.key}".encode()).hexdigest()

    @property
    def scope(self) -> str:
        """Whose the session is, as a text: "" if it is nobody's."""
        return f"u:{self.owner_id}" if self.owner_id is not None else f"v:{self.visitor}" if self.visitor else ""


class Receipt(NamedTuple):
    """The positions and the tokens of the messages that ``append`` stored.

    ``due``: a compaction of the session is due. ``replayed``: nothing was stored, because the idempotency key was used
    before for the same content. The positions and the ids are those of the first time. ``ids`` has the id of each row:
    a message keeps it, and no other message of the session ever has it.
    """

    first_position: int
    last_position: int
    tokens: int
    due: bool
    replayed: bool
    ids: tuple[uuid.UUID, ...]


class Appended(NamedTuple):
    """The result of a store's append. ``turned_due`` says whether this append made the session due.

    ``epoch`` is that of the session if the append was a step of a turn.
    """

    session_id: int
    receipt: Receipt
    turned_due: bool
    epoch: int = -1


class SummaryVersion(NamedTuple):
    """A stored version of the summary. It stands for everything through ``last_position``.

    - ``part_end``: if it is not None, only a part of the exchange that ends there is in it: see :mod:`.chunk`.
    - ``identifiers``: what was said with digits, the latest mention first: see :mod:`.identifiers`.
    - ``model_length``: how many characters of ``text`` the model wrote. None: all of them. The rest shows identifiers.

    A context needs the first five only.
    """

    version: int
    first_position: int
    last_position: int
    text: str
    tokens: int
    part_end: int | None = None
    identifiers: tuple[str, ...] = ()
    model_length: int | None = None

    @classmethod
    def of(cls, version: int, made: Any) -> SummaryVersion:
        """Return the version with this number that ``made`` describes: a row, or a :class:`NewVersion`."""
        shown = (made.first_position, made.last_position, made.text, made.tokens)
        return cls(version, *shown, made.part_end, tuple(made.identifiers or ()), made.model_length)

    @property
    def model_text(self) -> str:
        """What the model wrote of ``text``."""
        return self.text[: self.model_length]


def emptied(version: SummaryVersion) -> SummaryVersion:
    """Return ``version`` without what it says."""
    return version._replace(text="", identifiers=(), model_length=None)


class Snapshot(NamedTuple):
    """A session as it was at one moment: its counters, its current summary, and the messages to show."""

    session_id: int
    counters: Counters
    due: bool
    revision: int
    epoch: int
    summary: SummaryVersion | None
    pinned: Sequence[MessageRef]
    tail: Sequence[MessageRef]


class StoredMessage(NamedTuple):
    """A message of the history.

    A message that a turn has stored has the position of its question in ``reply_to``. The reply that ends the turn has
    ``cut_off``: "", or "length", "stopped" or "lost" if it is not whole. Other messages have None. ``usage`` is what
    the provider reported for the message.
    """

    position: int
    created_at: dt.datetime
    message: ChatMessage
    tokens: int
    redacted: bool
    id: uuid.UUID
    reply_to: int | None = None
    cut_off: str | None = None
    usage: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, entry: Entry, position: int, created_at: dt.datetime, message_id: uuid.UUID) -> StoredMessage:
        """Return the message that was stored for ``entry`` at this position."""
        stored = (position, created_at, entry.message, entry.tokens, False, message_id)
        return cls(*stored, entry.reply_to, entry.cut_off, entry.usage)

    def to_json(self) -> dict[str, Any]:
        """Return what the HTTP API shows of the message."""
        message, reported = self.message, usage.read(self.usage)
        return {
            "id": str(self.id),
            "position": self.position,
            "message": message.to_openai(),
            "kind": message.kind,
            "metadata": message.metadata,
            "format": message.format,
            "item": message.item,
            "tokens": self.tokens,
            "usage": reported and reported._asdict(),
            "reply_to": self.reply_to,
            "cut_off": self.cut_off,
            "created_at": self.created_at.isoformat().replace("+00:00", "Z"),
            "redacted": self.redacted,
        }


class Edited(NamedTuple):
    """A session that was edited. ``turned_due`` says whether it is due after the edit."""

    session_id: int
    turned_due: bool


class Redaction(NamedTuple):
    """The sessions in which a message was redacted. ``in_flight``: a worker was folding one of them."""

    edited: list[Edited]
    in_flight: bool


class Scope(NamedTuple):
    """Those with whom a session takes turns at the workers: all sessions of its owner, or of its visitor.

    A session that has neither is a scope of its own. With ``failing`` they are all sessions whose last attempt failed.
    """

    owner_id: Any
    visitor: str
    session_id: int
    failing: bool = False

    @classmethod
    def all_of(cls, owner_id: Any, visitor: str, session_id: int, failures: int) -> list[Scope]:
        """Return the scopes of a session: that of its owner, and that of the failing ones if it is one of them."""
        scope = cls(owner_id, visitor, session_id)
        return [scope, scope._replace(failing=True)] if failures > 0 else [scope]

    @property
    def whose(self) -> str:
        if self.failing:
            return "failing"
        return "owner" if self.owner_id is not None else "visitor" if self.visitor else "session"

    @property
    def who(self) -> tuple[str, Any]:
        """The same for all sessions of the scope."""
        value = self.owner_id if self.owner_id is not None else self.visitor or self.session_id
        return self.whose, not self.failing and value


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The right to fold a session until the lease ends, and the session as it was when the lease was taken.

    With ``rebuilding`` the summary is rebuilt from the messages that it covers. Then the counters are those of a
    session that ends with these messages, and ``summary`` is the last version that the rebuild has made. ``replaces``
    is the first version that the fallback made; 0 if there is none.

    ``parts`` is how many parts of the next exchange are folded already, the last of them into ``summary``. ``window``
    is the most tokens that the model was found to take at once by a run that has not folded all, or None.
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
    replaces: int = 0
    parts: int = 0
    public_id: str = ""
    window: int | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.name.owner_id, self.name.visitor, self.session_id)


class Release(NamedTuple):
    """What the end of a run leaves in the session's row.

    - ``retry_in``: the next attempt waits for so many seconds.
    - ``error`` is stored as the last error. Without it the number of attempts becomes 0.
    - ``uncount`` takes back the attempt that the claim counted.
    - ``rebuild_in``: the session is marked for a rebuild in so many seconds.
    - ``window``: the next claim has it.
    - ``queued``: the caller sends a task if the session is still due, so a sweep need not.

    After a rebuild, the first three change nothing: they are about what is due.
    """

    retry_in: float | None = None
    error: str = ""
    uncount: bool = False
    rebuild_in: float | None = None
    window: int | None = None
    queued: bool = False


SUCCESS = Release()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """A new version of the summary: the messages that it adds (``first_position..last_position``) and its text.

    - ``covered_count`` and ``covered_tokens`` are the unpinned messages and their tokens through ``last_position``.
    - ``stand_in``: the fallback made it because the model was unavailable, so it should be rebuilt.
    - ``carried``: no model was asked, or none could summarize these messages. The text is that of the version before.
    - ``cut``: a message was too long, and its rest is not in the summary.
    - ``part_end``: the offset through which an exchange is folded that is not folded to its end, or None.
    - ``identifiers`` and ``model_length`` are those of :class:`SummaryVersion`.
    """

    first_position: int
    last_position: int
    covered_count: int
    covered_tokens: int
    text: str
    tokens: int
    model: str
    shortened: bool
    fallback: bool
    prompt_hash: str
    stand_in: bool = False
    carried: bool = False
    cut: bool = False
    part_end: int | None = None
    identifiers: tuple[str, ...] = ()
    model_length: int | None = None

    @property
    def covered(self) -> Covered:
        return Covered(self.last_position, self.covered_count, self.covered_tokens)


class AttemptOutcome(enum.StrEnum):
    """The outcome of one model call."""

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
    """One model call. ``version`` is the number of the version that it made, or None.

    ``cached_tokens`` of the prompt came from the provider's cache. None: the provider does not report it.
    """

    first_position: int
    last_position: int
    due_seconds: float
    duration_seconds: float
    outcome: AttemptOutcome
    error: str = ""
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost: Decimal | None = None
    version: int | None = None


class Bound(NamedTuple):
    """The last unpinned messages, as many as a view needs, in a form for which a store has an index.

    They have a position above ``position`` and a running total above ``tokens_through``.
    """

    position: int
    tokens_through: int


def view_bound(counters: Counters, view: View) -> Bound:
    """Return the bound of the messages that ``view`` needs. The newest exchange is always within it."""
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
    return Bound(position, tokens_through)


def shown_pinned(pinned: Sequence[Pinned], max_tokens: float) -> list[int]:
    """Return the positions of the pinned messages that are shown: the first one, and the newest ones that fit."""
    if not pinned:
        return []
    left = max_tokens - pinned[0].tokens
    positions = [pinned[0].position]
    for message in reversed(pinned[1:]):
        left -= message.tokens
        if left < 0:
            break
        positions.append(message.position)
    return positions


class Forked(NamedTuple):
    """The result of a fork. ``session`` is the new session: its row if the store has rows.

    ``edited`` is None if an earlier request has made it.
    """

    session: Any
    edited: Edited | None = None


def turn_of(question: int, following: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Return the messages of ``following`` that belong to the turn of the question at this position.

    They follow it without a gap. A turn has stored them for the question, or they were appended or imported: then they
    end before the next message of a user.
    """

    def belongs(stored: StoredMessage) -> bool:
        return stored.reply_to == question or (stored.reply_to is None and stored.message.role in ("assistant", "tool"))

    return list(itertools.takewhile(belongs, following))


def reply_in(messages: Sequence[StoredMessage]) -> StoredMessage | None:
    """Return the reply among the messages of a turn, or None: the one that ended it, or an assistant's text."""
    for stored in messages[::-1]:
        is_text = stored.message.role == "assistant" and not stored.message.tool_calls
        if stored.cut_off is not None or (stored.reply_to is None and is_text):
            return stored
    return None


def stale(revision: int, now: int) -> exceptions.StaleRevision:
    """Return the error for an edit of an earlier revision."""
    return exceptions.StaleRevision(
        f"The session was changed: it is at revision {now}, not {revision}; load it again, and check whether the "
        "edit is still wanted."
    )


def id_taken() -> exceptions.IdempotencyConflict:
    """Return the error for a message whose id another message of the session has."""
    return exceptions.IdempotencyConflict(
        "The session has a message with this id already. Send a new id, or leave it out."
    )


def no_message(position: int, last: int) -> exceptions.UnknownMessage:
    """Return the error for a position without a message."""
    return exceptions.UnknownMessage(f"The session has no message at position {position}; its last one is at {last}.")


def redacted(position: int) -> exceptions.RedactedMessage:
    """Return the error for a change of a redacted message."""
    return exceptions.RedactedMessage(f"The message at position {position} is redacted, so its metadata stays empty.")


def no_owner(owner: object) -> exceptions.InvalidSession:
    """Return the error for an owner who is not a saved user."""
    return exceptions.InvalidSession(
        f"An object of type {type(owner).__name__} cannot own a session: an owner is a user of the "
        "site, who is saved. For somebody who is not logged in, give visitor=…, a random id that the site keeps in its "
        "own session."
    )


def no_session(name: SessionName) -> exceptions.InvalidSession:
    """Return the error for a fork of a missing session."""
    return exceptions.InvalidSession(f"There is no session {name.key!r} to copy.")


def gone(name: SessionName) -> exceptions.UnknownSession:
    """Return the error for a session that does not exist, or not any more."""
    return exceptions.UnknownSession(f"The session {name.key!r:.300} does not exist, or belongs to somebody else now.")


def session_exists(name: SessionName) -> exceptions.SessionExists:
    """Return the error for a new session whose name is taken."""
    return exceptions.SessionExists(f"A session with the key {name.key!r:.300} already exists. Choose another key.")


MAX_ALIAS_LENGTH = 100
MAX_KEY_LENGTH = 255
MAX_TITLE_LENGTH = 255
MAX_MODEL_NAME = 200
MAX_COUNTER_NAME = 100


def numbered(key: str, number: int) -> str:
    """Return ``key`` with a number after it, for a scope that has the key already."""
    suffix = f" ({number})"
    return key[: MAX_KEY_LENGTH - len(suffix)] + suffix


def free_name(name: SessionName, is_taken: Callable[[SessionName], bool]) -> SessionName:
    """Return ``name``, with the first number after its key that makes it free if it is taken."""
    free, number = name, 1
    while is_taken(free):
        number += 1
        free = dataclasses.replace(name, key=numbered(name.key, number))
    return free


def claimed(session: Any, summary: SummaryVersion | None, due_seconds: float) -> Claim:
    """Return the claim of a store's ``session``, whose lease was just taken."""
    return Claim(
        session_id=session.id,
        name=session.session_name,
        token=session.lease_token,
        epoch=session.epoch,
        last_version=session.last_version,
        attempts=session.attempts,
        due_seconds=max(0.0, due_seconds),
        counters=session.counters,
        summary=summary,
        public_id=str(session.public_id),
        window=session.fold_window,
    )


def building_line(versions: Iterable[Any], prompt_hash: str, base: int | None = None) -> dict[int, Any]:
    """Return the unfinished versions that a run can continue, by number. The first one was made from version ``base``.

    Each was made from the one before with this prompt. ``versions`` are the store's unfinished ones, in order.
    """
    line: dict[int, Any] = {}
    for version in versions:
        if version.parent_version == next(reversed(line), base) and version.prompt_hash == prompt_hash:
            line[version.value.version] = version
    return line


def continued(claim: Claim, line: dict[int, Any]) -> Claim:
    """Return the claim that continues the parts ``line`` of the next exchange, from the claim of the session."""
    parts = [version.value for version in line.values()]
    return dataclasses.replace(claim, summary=parts[-1], parts=len(parts)) if parts else claim


def rebuild_of(
    claim: Claim, unfinished: Iterable[Any], stand_in: Any, get: Callable[[int], Any], *, prompt_hash: str, whole: bool
) -> tuple[Claim, dict[int, Any]] | None:
    """Return the claim of a rebuild, from the claim of the session, or None if there is nothing to make again.

    ``stand_in`` is the first finished version that the fallback made, or None, and ``unfinished`` are the versions that
    are not finished, in order. Those after which the rebuild goes on are returned too, by number. ``get`` returns a
    finished version by its number, or None. ``whole``: it begins at the first message. Otherwise it goes on with a
    rebuild that began there, or begins before the first stand-in.
    """
    base, first = _before(stand_in, get) if stand_in else (None, None)
    rows = [version for version in unfinished if _may_continue(version, claim.counters.covered_position)]
    line = building_line(rows, prompt_hash)
    if line or whole:
        base = None
    elif first is None:
        return None
    elif base:
        line = building_line(rows, prompt_hash, base.value.version)
    return rebuilding(claim, base, line, first), line


def rebuilding(claim: Claim, base: Any, line: dict[int, Any], first: Any) -> Claim:
    """Return the claim of a rebuild that begins after the version ``base``, or at the first message if that is None.

    It goes on after the unfinished versions ``line``. ``first`` is the first version that it replaces because the
    fallback made it, or None. Its counters are those of a session that ends where the current summary ends.
    """
    newest = next(reversed(line.values()), base)
    finished = [version for version in line.values() if not _is_part(version)]
    covered = finished[-1].covered if finished else base.covered if base else Covered()
    counters = Counters(
        last_position=claim.counters.covered_position,
        unpinned_count=claim.counters.covered_count,
        unpinned_tokens=claim.counters.covered_tokens,
        **covered._asdict(),
    )
    return dataclasses.replace(
        claim,
        counters=counters,
        summary=newest and newest.value,
        rebuilding=True,
        replaces=first.value.version if first else 0,
        parts=len(list(itertools.takewhile(_is_part, reversed(line.values())))),
    )


def _may_continue(version: Any, covered: int) -> bool:
    """Whether a rebuild of the messages through ``covered`` may continue after the unfinished ``version``.

    Something must be left to fold: what a rebuild publishes last becomes current. A truncation may have removed it.
    """
    last: int = version.value.last_position
    return last < covered or (last == covered and _is_part(version))


def _before(first: Any, get: Callable[[int], Any]) -> tuple[Any, Any]:
    """Return the version after which a rebuild begins that replaces ``first``, and the first version that it replaces.

    If ``first`` was made from a part of a long exchange, the rebuild makes the other parts of the exchange again, too:
    a summary may not begin within an exchange.
    """
    base = get(first.parent_version) if first.parent_version else None
    while base is not None and _is_part(base):
        first, base = base, get(base.parent_version) if base.parent_version else None
    return base, first


def _is_part(version: Any) -> bool:
    return version.value.part_end is not None


def is_final(claim: Claim, version: NewVersion) -> bool:
    """Whether ``version`` is shown when it is published: it is no part, and a rebuild ends with it."""
    if version.part_end is not None:
        return False
    return not claim.rebuilding or version.last_position >= claim.counters.last_position


def covered_by(claim: Claim) -> int:
    """Return the position that the session's summary must end with. Otherwise the claim cannot publish."""
    return claim.counters.last_position if claim.rebuilding else claim.counters.covered_position


def after_publishing(claim: Claim, version: NewVersion, number: int) -> Claim:
    """Return the claim as it is after ``version`` is published."""
    is_part = version.part_end is not None
    return dataclasses.replace(
        claim,
        last_version=number,
        attempts=0,
        counters=claim.counters if is_part else claim.counters.covering(version.covered),
        summary=SummaryVersion.of(number, version),
        parts=claim.parts + 1 if is_part else 0,
    )


def late_result(call_id: str, calling: int, closing: int | None) -> exceptions.ToolResultRefused:
    """Return the error for a tool result that comes too late. It names the message that closed the exchange."""
    reason = "every call of that message has a result"
    if closing:
        reason = f"the assistant message at position {closing} closed its exchange"
    return exceptions.ToolResultRefused(
        f"The call {call_id!r:.100} was made by the assistant message at position {calling}, and {reason}. It is too "
        "late for a result. Store results before the next assistant message, or leave them out.",
        call_id,
    )


class Attempted(NamedTuple):
    """An attempt in the in-memory store, for tests. ``fallback``: the fallback made the version."""

    session_id: int
    alias: str
    started_at: float
    record: AttemptRecord
    fallback: bool
