"""The counters of a session, and how an append changes them.

:meth:`Counters.append` is the definition. If one UPDATE can do it, the ORM store computes the same in SQL. Then an
append reads nothing before it writes. :class:`Batch` prepares the numbers for this UPDATE.
"""

from __future__ import annotations

import bisect
import copy
import datetime as dt
import functools
import hashlib
import itertools
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django_convmemory.exceptions import InvalidMessage, ToolResultRefused, TooManyPinned
from django_convmemory.messages import CHAT, PINNED_ROLES, REASONING, RESPONSES, ChatMessage
from django_convmemory.rules.exchanges import MessageRef
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.turns import Step

MAX_PINNED = 64


class Pinned(NamedTuple):
    """The position and the tokens of a pinned message."""

    position: int
    tokens: int


class Entry(NamedTuple):
    """A message to be stored, with its tokens and the usage that the provider reported for it.

    ``created_at`` is the time of the message in UTC. None means now. ``reply_to`` and ``cut_off`` are those of
    :class:`.StoredMessage`.
    """

    message: ChatMessage
    tokens: int
    usage: Mapping[str, Any] | None = None
    created_at: dt.datetime | None = None
    reply_to: int | None = None
    cut_off: str | None = None


class Row(NamedTuple):
    """Where an entry goes: its position, the running total through it, and where the exchange begins that it continues.

    ``answers`` is the position of the message whose call a tool result answers, or of the first item of a run of the
    assistant's items. None: the entry begins an exchange, or stands inside an open one and answers nothing.
    """

    position: int
    tokens_through: int
    answers: int | None


class Previous(NamedTuple):
    """The message at the end of a session, as far as the next item of the same format depends on it.

    ``begins`` is the position at which its exchange begins. ``continues`` says that it does not begin there itself.
    """

    format: str
    role: str
    kind: str
    begins: int
    continues: bool = False

    @classmethod
    def of(cls, message: Any, position: int, answers: int | None) -> Previous:
        """Return the ``message`` at this position, a message or its row."""
        begins = position if answers is None else answers
        return cls(message.format, message.role, message.kind, begins, answers is not None)


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
    - ``exchange_calls`` has the hashed ids of these calls: see :func:`call_marks`.
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

    def append(self, entries: Sequence[Entry], previous: Previous | None = None) -> tuple[Counters, list[Row]]:
        """Return the counters after ``entries``, and the row of each entry.

        ``previous`` is the last message of the session. Only items depend on it.
        Raises :class:`~django_convmemory.exceptions.ToolResultRefused` for a tool result outside its open exchange and
        :class:`~django_convmemory.exceptions.TooManyPinned`.
        """
        counters, rows = self, []
        for entry in entries:
            message = entry.message
            counters, row = counters.append_one(message, entry.tokens, previous)
            previous = None if message.format == CHAT else Previous.of(message, row.position, row.answers)
            rows.append(row)
        return counters, rows

    def append_one(self, message: ChatMessage, tokens: int, previous: Previous | None = None) -> tuple[Counters, Row]:
        """Do the same as :meth:`append` for a single message."""
        position = self.last_position + 1
        if message.role in PINNED_ROLES:
            if len(self.pinned) >= MAX_PINNED:
                raise TooManyPinned(
                    f"The session holds {MAX_PINNED} system and developer messages, and no more are kept. "
                    "Give the site's own prompt to load(system=…) instead of storing it."
                )
            pinned = (*self.pinned, Pinned(position, tokens))
            return self._replace(last_position=position, pinned=pinned), Row(position, self.unpinned_tokens, None)
        through = self.unpinned_tokens + tokens
        answers = None
        if message.role == "tool" or previous is not None:
            answers = self._continued(message, previous)
        settled, newest = self.settled_tokens, self.newest_position
        call_position, exchange_calls, open_calls = self.call_position, self.exchange_calls, self.open_calls
        if message.role == "tool" and answers is not None:
            open_calls = _without_answered(open_calls, exchange_calls, message.tool_call_id or "")
        elif answers is not None:
            calls = call_marks(message.call_ids, already=exchange_calls if open_calls else "")
            if calls and open_calls:
                exchange_calls, open_calls = exchange_calls + calls, open_calls + calls
            elif calls:
                call_position, exchange_calls, open_calls = answers, calls, calls
        elif message.role == "assistant" or not open_calls:
            settled, newest = self.unpinned_tokens, position
            if message.role == "assistant":
                exchange_calls = open_calls = call_marks(message.call_ids) if message.tool_calls else ""
                call_position = position if exchange_calls else 0
        changed = (position, self.unpinned_count + 1, through, settled, newest, self.pinned)
        # A summary covers what it covered.
        after = Counters(*changed, call_position, exchange_calls, open_calls, *self[-3:])
        return after, Row(position, through, answers)

    def _continued(self, message: ChatMessage, previous: Previous | None) -> int | None:
        """Return where the exchange begins that ``message`` continues, or None. A tool result answers its call there.

        Raises :class:`~django_convmemory.exceptions.ToolResultRefused` for a chat message. An item that answers no call
        is stored all the same: the framework that made it goes on without it otherwise.
        """
        if message.role == "tool":
            if self.open_calls and call_mark(message.tool_call_id or "") in self.exchange_calls:
                return self.call_position
            if message.format != CHAT:
                return None
            raise ToolResultRefused(
                f"No open exchange has a call with the id {message.tool_call_id!r:.100}. Store a tool result after "
                "the assistant message that made the call and before the next assistant message.",
                message.tool_call_id or "",
            )
        if previous is None or (message.format, message.role) != (RESPONSES, "assistant"):
            return None
        if (previous.format, previous.role) != (RESPONSES, "assistant"):
            return None
        # A thought belongs to what follows, also over a text or what the provider does. And what follows a call, before
        # its result, is of the same response.
        belongs = previous.kind == REASONING or previous.continues
        if belongs or (self.open_calls and previous.begins == self.call_position):
            return previous.begins
        return None


_EMPTY = Counters()
# In the place of a tool result whose call is not known.
_NO_RESULT = ChatMessage.human("")


def rewound(
    before: Counters,
    last_position: int,
    last: MessageRef | None,
    spoke: MessageRef | None,
    continuing: Sequence[MessageRef],
) -> Counters:
    """Return the counters of the session with the counters ``before`` if it ends at ``last_position``, unsummarized.

    Of the messages through there, ``last`` is the last unpinned one. ``spoke`` is the last assistant message that
    answers nothing, and ``continuing`` are the messages that answer it.
    """
    pinned = tuple(message for message in before.pinned if message.position <= last_position)
    if last is None:
        return Counters(last_position=last_position, pinned=pinned)
    items = [row for row in (spoke, *continuing) if row is not None and row.message.role == "assistant"]
    open_calls = calls = call_marks(call_id for row in items for call_id in row.message.call_ids)
    for row in continuing:
        if row.message.tool_call_id is not None:
            open_calls = _without_answered(open_calls, calls, row.message.tool_call_id)
    # The exchange that began last is the newest one if nothing came after what continues it.
    newest = last
    if spoke is not None and (open_calls or last.answers == spoke.position):
        newest = spoke
    return Counters(
        last_position=last_position,
        unpinned_count=last_position - len(pinned),
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


# Begins the mark of a call with an id that another one of the exchange has: some servers use the function's name.
REPEATED = "~"


def call_marks(call_ids: Iterable[str], already: str = "") -> str:
    """Return the marks of calls that join those in ``already``. The n-th call with an id has a mark of its own."""
    marks: dict[str, Iterator[str]] = {}
    found = []
    for call_id in call_ids:
        rest = marks.setdefault(call_id, map(functools.partial(_mark, call_id), itertools.count(1)))
        found.append(next(mark for mark in rest if mark not in already))
    return "".join(found)


def _mark(call_id: str, number: int) -> str:
    """Return the mark of the first, the second or a later call with this id."""
    return call_mark(call_id) if number == 1 else REPEATED + call_mark(f"{number} {call_id}")[1:]


def _without_answered(open_calls: str, exchange_calls: str, call_id: str) -> str:
    """Return the open calls of an exchange without the first one with this id: it has its result."""

    def is_open(number: int) -> bool:
        mark = _mark(call_id, number)
        return mark in open_calls or mark not in exchange_calls

    number = 1
    if not is_open(number):
        # They are answered in order. A message may have thousands of them.
        most = len(exchange_calls) // len(call_mark(""))
        number += bisect.bisect_left(range(1, most + 1), True, key=is_open)
    return open_calls.replace(_mark(call_id, number), "")


def new_ids(count: int) -> tuple[uuid.UUID, ...]:
    """Return ids for ``count`` messages: UUIDs of version 7. They begin with the time, and each is above the last."""
    # The time in 4096ths of a millisecond: 48 bits of milliseconds, and 12 bits that follow the version.
    now = time.time_ns() * 4096 // 1_000_000
    ids: list[uuid.UUID] = []
    for tick in range(now, now + count):
        ordered = tick >> 12 << 80 | 7 << 76 | (tick & 0xFFF) << 64
        ids.append(uuid.UUID(int=ordered | 2 << 62 | int.from_bytes(os.urandom(8)) >> 2))
    return tuple(ids)


class Batch:
    """Entries that are appended together, with their effect on the counters of a session that nobody has read yet.

    ``replaces`` is the position after which they replace all messages, or None if they replace nothing. ``ids`` are the
    ids of the messages. None: new ones. ``step`` is what the append does with the session's turn. ``asked`` is what the
    key stands for, if that is not the content.

    Raises the errors of :meth:`Counters.append` if no session could take the entries.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        *,
        idempotency_key: str | None = None,
        replaces: int | None = None,
        ids: Sequence[uuid.UUID] | None = None,
        step: Step | None = None,
        asked: Sequence[str] | None = None,
    ) -> None:
        self.entries = tuple(entries)
        self.step = step
        self.asked = asked
        self.ids = new_ids(len(self.entries)) if ids is None else tuple(ids)
        self.replaces = replaces
        self.key_hash = None if idempotency_key is None else hashlib.sha256(idempotency_key.encode()).hexdigest()
        tokens, has_items, has_assistant, ends_with_result = 0, False, False, False
        results, known = [], []
        self.has_own_ids = False
        for entry in self.entries:
            message, role = entry.message, entry.message.role
            if message.id is not None:
                self.has_own_ids = True
            tokens += entry.tokens
            if message.format != CHAT:
                has_items = True
            if role == "assistant":
                has_assistant = True
            if role not in PINNED_ROLES:
                ends_with_result = role == "tool"
            if role == "tool" and not has_assistant:
                results.append(call_mark(message.tool_call_id or ""))
                known.append(Entry(_NO_RESULT, entry.tokens))
            else:
                known.append(entry)
        if self.has_own_ids:
            self.ids = tuple([entry.message.id or new for entry, new in zip(self.entries, self.ids, strict=True)])
            if len(set(self.ids)) < len(self.ids):
                raise InvalidMessage("Two of the messages have the same id. Give each its own, or leave the ids out.")
        self.tokens = tokens
        # Where items go depends on the message before them. No statement computes it.
        self.has_items = has_items
        self.has_assistant = has_assistant
        # Whether the last unpinned entry is a tool result.
        self.ends_with_result = ends_with_result
        # The results of calls from before the batch.
        self.leading_results = tuple(results)
        # The effect of the entries after the first assistant message does not depend on the session.
        self.after, self.rows = (_EMPTY, []) if has_items else _EMPTY.append(known)

    def with_step(self, step: Step) -> Batch:
        """Return this batch with another step."""
        batch = copy.copy(self)
        batch.step = step
        return batch

    @property
    def is_keyed_by_question(self) -> bool:
        """Whether the key is stored with the question at ``step.question``, and not with these messages."""
        return self.asked is not None and self.step is not None and self.step.question > 0

    def key_place(self, last_position: int) -> tuple[int, int]:
        """Return the first position and the number of the messages with which the key is stored."""
        if self.is_keyed_by_question and self.step is not None:
            return self.step.question, 1
        return last_position - len(self.entries) + 1, len(self.entries)

    @functools.cached_property
    def payload_hash(self) -> str:
        """The SHA-256 of the content. It tells a retry from another use of the same key."""
        if self.asked is not None:
            return hashlib.sha256(json.dumps(list(self.asked)).encode()).hexdigest()
        content: list[Any] = []
        for entry in self.entries:
            message = entry.message
            content.append([message.as_stored(), message.kind, message.metadata, entry.usage])
            if message.format != CHAT:
                content[-1] += [message.format, message.item]
        if self.replaces is not None:
            content.append(["replaces", self.replaces])
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
