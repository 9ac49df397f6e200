"""The counters of a session, and how an append changes them.

:meth:`Counters.append` is the definition. If one UPDATE can do it, the ORM store computes the same in SQL. Then an
append reads nothing before it writes. :class:`Batch` prepares the numbers for this UPDATE.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django_convmemory.core.strategies import Threshold
from django_convmemory.exceptions import ToolResultRefused, TooManyPinned
from django_convmemory.messages import ChatMessage

MAX_PINNED = 64


class Pinned(NamedTuple):
    """The position and the tokens of a pinned message."""

    position: int
    tokens: int


class Entry(NamedTuple):
    """A message to be stored, with its tokens and the usage that the provider reported for it.

    ``created_at`` is the time of the message in UTC. None means now.
    """

    message: ChatMessage
    tokens: int
    usage: Mapping[str, Any] | None = None
    created_at: dt.datetime | None = None


class Row(NamedTuple):
    """Where an entry goes: its position, the running total through it, and the position of the call that it answers."""

    position: int
    tokens_through: int
    answers: int | None


class Covered(NamedTuple):
    """What a summary covers: its last position, and the unpinned messages and their tokens through it."""

    covered_position: int = 0
    covered_count: int = 0
    covered_tokens: int = 0


class Counters(NamedTuple):
    """The counters of a session.

    - ``unpinned_*`` count the unpinned messages and their tokens.
    - ``covered_*`` count those of them that the current summary covers.
    - ``settled_tokens`` are the unpinned tokens before the newest exchange. It begins at ``newest_position``.
    - ``call_position`` is the position of the newest assistant message if that made calls, or 0.
    - ``exchange_calls`` has the hashed ids of these calls.
    - ``open_calls`` has those without a result. If it is empty, no exchange is open.
    """

    last_position: int = 0
    unpinned_count: int = 0
    unpinned_tokens: int = 0
    settled_tokens: int = 0
    newest_position: int = 0
    pinned: tuple[Pinned, ...] = ()
    call_position: int = 0
    exchange_calls: str = ""
    open_calls: str = ""
    covered_position: int = 0
    covered_count: int = 0
    covered_tokens: int = 0

    @property
    def open_position(self) -> int:
        """The position at which the open exchange begins, or 0."""
        return self.call_position if self.open_calls else 0

    @property
    def first_unfoldable(self) -> int:
        """The first position that no summary may cover: the open exchange begins there, or the session ends before."""
        return self.open_position or self.last_position + 1

    @property
    def tail_tokens(self) -> int:
        return self.unpinned_tokens - self.covered_tokens

    @property
    def tail_count(self) -> int:
        return self.unpinned_count - self.covered_count

    def covering(self, covered: Covered) -> Counters:
        """Return the counters with a summary that covers ``covered``."""
        return self._replace(**covered._asdict())

    def due(self, threshold: Threshold, *, indexed_position: int) -> bool:
        """Whether the tail is due for compaction, or the session for indexing.

        The messages through ``indexed_position`` are in the index of recall.
        """
        return threshold.exceeded(
            tokens=self.tail_tokens,
            messages=self.tail_count,
            settled=self.settled_tokens > self.covered_tokens,
            unindexed=self.newest_position - indexed_position,
        )

    def append(self, entries: Sequence[Entry]) -> tuple[Counters, list[Row]]:
        """Return the counters after ``entries``, and the row of each entry.

        Raises :class:`~django_convmemory.exceptions.ToolResultRefused` for a tool result outside its open exchange and
        :class:`~django_convmemory.exceptions.TooManyPinned`.
        """
        counters, rows = self, []
        for entry in entries:
            counters, row = counters.append_one(entry.message, entry.tokens)
            rows.append(row)
        return counters, rows

    def append_one(self, message: ChatMessage, tokens: int) -> tuple[Counters, Row]:
        """Do the same as :meth:`append` for a single message."""
        position = self.last_position + 1
        if message.pinned:
            if len(self.pinned) >= MAX_PINNED:
                raise TooManyPinned(
                    f"The session holds {MAX_PINNED} system and developer messages, and no more are kept. "
                    "Give the site's own prompt to load(system=…) instead of storing it."
                )
            pinned = (*self.pinned, Pinned(position, tokens))
            return (
                self._replace(last_position=position, pinned=pinned),
                Row(position, self.unpinned_tokens, None),
            )
        through = self.unpinned_tokens + tokens
        changes: dict[str, Any] = {}
        answers = None
        if message.role == "tool":
            call = call_mark(message.tool_call_id or "")
            if not self.open_calls or call not in self.exchange_calls:
                raise ToolResultRefused(
                    f"No open exchange has a call with the id {message.tool_call_id!r:.100}. Store a tool result after "
                    "the assistant message that made the call and before the next assistant message.",
                    message.tool_call_id or "",
                )
            answers = self.call_position
            changes = {"open_calls": self.open_calls.replace(call, "")}
        elif message.role == "assistant" or not self.open_calls:
            changes = {"settled_tokens": self.unpinned_tokens, "newest_position": position}
            if message.role == "assistant":
                calls = call_marks(message.call_ids)
                call_position = position if calls else 0
                changes |= {"exchange_calls": calls, "open_calls": calls, "call_position": call_position}
        return (
            self._replace(
                last_position=position,
                unpinned_count=self.unpinned_count + 1,
                unpinned_tokens=through,
                **changes,
            ),
            Row(position, through, answers),
        )


_EMPTY = Counters()


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """An unpinned message near the end of a conversation: its position, its tokens, and the total through it."""

    position: int
    tokens: int
    tokens_through: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How the messages through ``last_position`` end: everything that the counters there depend on.

    ``last`` is the last unpinned message, and ``spoke`` the last assistant message, which made the calls ``call_ids``.
    ``results`` are the results of these calls, in order: the position of each, and the id of its call.
    """

    last_position: int
    last: Standing | None = None
    spoke: Standing | None = None
    call_ids: tuple[str, ...] = ()
    results: Sequence[tuple[int, str]] = ()


def rewound(before: Counters, ending: Ending) -> Counters:
    """Return the counters of the session with the counters ``before`` if it is cut at ``ending``, without a summary."""
    pinned = tuple(message for message in before.pinned if message.position <= ending.last_position)
    last, spoke = ending.last, ending.spoke
    if last is None:
        return Counters(last_position=ending.last_position, pinned=pinned)
    calls = call_marks(ending.call_ids)
    open_calls = calls
    for _, call_id in ending.results:
        open_calls = open_calls.replace(call_mark(call_id), "")
    # The exchange of the calls is the newest one if nothing came after its last result.
    newest = last
    if spoke is not None and calls and (open_calls or ending.results[-1][0] == last.position):
        newest = spoke
    return Counters(
        last_position=ending.last_position,
        unpinned_count=ending.last_position - len(pinned),
        unpinned_tokens=last.tokens_through,
        settled_tokens=newest.tokens_through - newest.tokens,
        newest_position=newest.position,
        pinned=pinned,
        call_position=spoke.position if spoke is not None and calls else 0,
        exchange_calls=calls,
        open_calls=open_calls,
    )


@functools.lru_cache(maxsize=4096)
def call_mark(call_id: str) -> str:
    """Return a hash of a tool call's id, in the form that the counters have. It has a fixed length and no wildcards.

    Every database can find it in a text of many with REPLACE and LIKE.
    """
    return "|" + hashlib.sha256(call_id.encode()).hexdigest()[:16]


def call_marks(call_ids: Iterable[str]) -> str:
    """Return the marks of all ``call_ids``, each once."""
    return "".join(dict.fromkeys(map(call_mark, call_ids)))


class Batch:
    """Entries that are appended together, with their effect on the counters of a session that nobody has read yet.

    Raises the errors of :meth:`Counters.append` if no session could take the entries.
    """

    def __init__(self, entries: Sequence[Entry], *, idempotency_key: str | None = None) -> None:
        self.entries = tuple(entries)
        self.key_hash = None if idempotency_key is None else hashlib.sha256(idempotency_key.encode()).hexdigest()
        self.tokens = sum(entry.tokens for entry in self.entries)
        roles = [entry.message.role for entry in self.entries]
        self.has_assistant = "assistant" in roles
        first_assistant = roles.index("assistant") if self.has_assistant else len(roles)
        # The results of calls from before the batch.
        self.leading_results = tuple(
            call_mark(entry.message.tool_call_id)
            for entry in self.entries[:first_assistant]
            if entry.message.tool_call_id is not None
        )
        # The effect of the entries after the first assistant message does not depend on the session.
        known = self.entries
        if self.leading_results:
            known = tuple(
                Entry(ChatMessage.human(""), entry.tokens) if role == "tool" and index < first_assistant else entry
                for index, (role, entry) in enumerate(zip(roles, known, strict=True))
            )
        self.after, self.rows = _EMPTY.append(known)

    @property
    def ends_with_result(self) -> bool:
        """Whether the last unpinned entry is a tool result."""
        unpinned = [entry.message.role for entry in self.entries if not entry.message.pinned]
        return bool(unpinned) and unpinned[-1] == "tool"

    @functools.cached_property
    def payload_hash(self) -> str:
        """The SHA-256 of the content. It tells a retry from another use of the same key."""
        content = [
            [entry.message.to_openai(), entry.message.kind, entry.message.metadata, entry.usage]
            for entry in self.entries
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
