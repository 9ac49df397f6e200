"""The statements of ``append`` and ``load``, as text.

They are the app's hot path. An append through one data-modifying statement costs about what the driver's own
transaction costs; the ORM's way costs three times that. Every name here is a constant, every value a parameter.

PostgreSQL appends in one statement, SQLite in two: an UPDATE that advances the counters and returns them, and an
INSERT; and one more where the session becomes due. The arithmetic is that of :meth:`.Counters.append`, in SQL, and a
test compares the two. MariaDB, whose UPDATE returns nothing and assigns from left to right, locks the row and
computes in Python.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from django_convmemory import clock
from django_convmemory.core.counters import MAX_PINNED, Batch
from django_convmemory.core.strategies import Threshold, View
from django_convmemory.core.values import Payload, SessionName
from django_convmemory.messages import ChatMessage, FrozenDict, dumps, frozen_json

SESSION = "convmemory_session"
MESSAGE = "convmemory_message"
SUMMARY = "convmemory_summary"

# PostgreSQL takes 65 535 parameters in a statement, SQLite 32 766.
ROWS_PER_INSERT = 1000
# MariaDB takes 16 MiB in a statement unless told otherwise, and a quoted text may be twice as long.
BYTES_PER_INSERT = 4 * 1024 * 1024
# In the place of a position: the call is one from before the batch.
LEADING = -1

_COLUMNS = (
    "role, kind, content, wire, metadata, usage, tokens, tokens_through, position, answers, "
    "idempotency_key, payload_hash, created_at"
)
_NAMES = _COLUMNS.split(", ")


class Advanced(NamedTuple):
    """What the update of an append returns.

    On SQLite ``turned_due`` is whether the tail exceeds the threshold, and nothing is marked yet.
    """

    session_id: int
    last_position: int
    unpinned_tokens: int
    answered_position: int
    due: bool
    turned_due: bool

    @classmethod
    def of(cls, row: Sequence[Any] | None) -> Self | None:
        """Return what the update says, or None where it changed no row."""
        if row is None:
            return None
        session_id, last_position, unpinned_tokens, answered_position, due, turned_due = row
        return cls(session_id, last_position, unpinned_tokens, answered_position, bool(due), bool(turned_due))


class _Shape(NamedTuple):
    """What of an append decides how its UPDATE reads; the rest is in its parameters."""

    vendor: str
    by_tokens: bool  # The threshold has a limit of tokens.
    by_messages: bool
    hint: bool
    by_id: bool  # The row is named, too.
    speaks: bool  # There is an assistant message.
    calls: bool  # The last assistant message makes calls.
    starts_exchange: bool  # The last message is no result.
    pinned: int
    results: int  # To how many calls from before the batch there are results.
    repeats: bool  # The last of them answers a call that another one answers, too.

    @property
    def open_calls(self) -> str:
        """The open calls less those that are answered."""
        return _without(self.results)

    @property
    def settled_tokens(self) -> str:
        """The tokens before the newest exchange."""
        return self._where_exchange_starts("unpinned_tokens + %(settled)s", "settled_tokens")

    @property
    def newest_position(self) -> str:
        """Where the newest exchange begins."""
        return self._where_exchange_starts("last_position + %(newest)s", "newest_position")

    def _where_exchange_starts(self, value: str, column: str) -> str:
        if self.speaks:
            return value
        if not self.starts_exchange:
            return column
        # A user's turn: inside of the open exchange, or an exchange of its own.
        return f"CASE WHEN {self.open_calls} = '' THEN {value} ELSE {column} END"


def _without(results: int) -> str:
    text = "open_calls"
    for number in range(results):
        text = f"REPLACE({text}, %(result{number})s, '')"
    return text


def advance(
    vendor: str, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
) -> tuple[str, dict[str, Any]]:
    """Return the UPDATE that moves a session's counters past ``batch``, and marks it due when ``threshold`` says so.

    It changes no row where there is no such session, or where the session cannot take the batch.
    """
    after = batch.after
    results = tuple(dict.fromkeys(batch.leading_results))
    shape = _Shape(
        vendor=vendor,
        by_tokens=threshold.tokens is not None,
        by_messages=threshold.messages is not None,
        hint=hint,
        by_id=name.row_id is not None,
        speaks=batch.has_assistant,
        calls=after.call_position > 0,
        starts_exchange=batch.unpinned_count > 0 and not batch.ends_with_result,
        pinned=len(batch.pinned),
        results=len(results),
        repeats=bool(results) and batch.leading_results[-1] in batch.leading_results[:-1],
    )
    params = {
        "name_hash": name.name_hash,
        "id": name.row_id,
        "counter": counter,
        "added": len(batch.entries),
        "added_unpinned": batch.unpinned_count,
        "added_tokens": batch.unpinned_tokens,
        "most_tokens": threshold.tokens,
        "most_messages": threshold.messages,
        "settled": after.settled_tokens,
        "newest": after.newest_position,
        "exchange_calls": after.exchange_calls,
        "open_calls": after.open_calls,
        "call_position": after.call_position,
    }
    for number, mark in enumerate(results):
        params |= {f"result{number}": mark, f"like{number}": f"%{mark}%"}
    if batch.pinned:
        params |= {
            "added_pinned": len(batch.pinned),
            "pinned_tokens": sum(one.tokens for one in batch.pinned),
            "most_pinned": MAX_PINNED - len(batch.pinned),
        }
        for number, one in enumerate(batch.pinned):
            params |= {f"pinned{number}": one.position, f"tokens{number}": f":{one.tokens}"}
    return _advance(shape), params


def mark_due(session_id: int, *, hint: bool) -> tuple[str, list[Any]]:
    """Return the UPDATE that marks a session due from now on (SQLite)."""
    now = clock.sql("sqlite")
    return (
        f"UPDATE {SESSION} SET due_since = {now}, due_revision = revision, "
        f"hinted_at = {now if hint else 'NULL'} WHERE id = %s"
    ), [session_id]


@functools.lru_cache(maxsize=256)
def _advance(shape: _Shape) -> str:
    now = clock.sql(shape.vendor)
    columns = {
        "last_position": "last_position + %(added)s",
        "unpinned_count": "unpinned_count + %(added_unpinned)s",
        "unpinned_tokens": "unpinned_tokens + %(added_tokens)s",
        "settled_tokens": shape.settled_tokens,
        "newest_position": shape.newest_position,
        **_pins(shape),
        "answered_position": "call_position",
        **_calls(shape),
        "counter": "%(counter)s",
        "revision": "revision + 1",
        "updated_at": now,
    }
    if shape.vendor == "sqlite":
        # An index is written to where its column is set, be it to what it is: mark_due sets it when it has to change.
        # As a text: SQLite 3.40 finds NULL to be NOT NULL where it returns it, and the driver reads a time of a column.
        due, turned_due = "due_since || ''", _over(shape, "unpinned_tokens", "unpinned_count", "settled_tokens")
    else:
        columns |= _due_mark(shape, columns, now)
        due, turned_due = "due_since IS NOT NULL", "due_revision = revision"
    return (
        f"UPDATE {SESSION} SET {', '.join(f'{column} = {value}' for column, value in columns.items())} "
        f"WHERE {' AND '.join(_conditions(shape))} "
        f"RETURNING id, last_position, unpinned_tokens, answered_position, {due} AS due, {turned_due} AS turned_due"
    )


def _over(shape: _Shape, tokens: str, messages: str, settled: str) -> str:
    """Whether the tail exceeds the threshold."""
    over = []
    if shape.by_tokens:
        over.append(f"{tokens} - covered_tokens > %(most_tokens)s")
    if shape.by_messages:
        over.append(f"{messages} - covered_count > %(most_messages)s")
    return f"({' OR '.join(over)}) AND {settled} > covered_tokens" if over else "1 = 0"


def _due_mark(shape: _Shape, columns: Mapping[str, str], now: str) -> dict[str, str]:
    if not (shape.by_tokens or shape.by_messages):
        return {}
    over = _over(shape, columns["unpinned_tokens"], columns["unpinned_count"], columns["settled_tokens"])
    condition = f"due_since IS NULL AND {over}"
    return {
        column: f"CASE WHEN {condition} THEN {value} ELSE {column} END"
        for column, value in (
            ("due_revision", "revision + 1"),
            ("hinted_at", now if shape.hint else "NULL"),
            ("due_since", now),
        )
    }


def _pins(shape: _Shape) -> dict[str, str]:
    if not shape.pinned:
        return {}
    texts = " || ".join(
        f"' ' || CAST(last_position + %(pinned{number})s AS VARCHAR(20)) || %(tokens{number})s"
        for number in range(shape.pinned)
    )
    return {
        "pinned": f"pinned || {texts}",
        "pinned_count": "pinned_count + %(added_pinned)s",
        "pinned_tokens": "pinned_tokens + %(pinned_tokens)s",
    }


def _calls(shape: _Shape) -> dict[str, str]:
    if shape.speaks:
        return {
            "exchange_calls": "%(exchange_calls)s",
            "open_calls": "%(open_calls)s",
            "call_position": "last_position + %(call_position)s" if shape.calls else "0",
        }
    return {"open_calls": shape.open_calls} if shape.results else {}


def _conditions(shape: _Shape) -> list[str]:
    """What must hold for the session to take the batch."""
    conditions = ["name_hash = %(name_hash)s"]
    if shape.results:
        # Open until before the last of the results, and each of them answers a call of the exchange.
        before = shape.results if shape.repeats else shape.results - 1
        conditions.append(f"{_without(before)} <> ''")
        conditions += [f"exchange_calls LIKE %(like{number})s" for number in range(shape.results)]
    if shape.pinned:
        conditions.append("pinned_count <= %(most_pinned)s")
    if shape.by_id:
        conditions.append("id = %(id)s")
    return conditions


def append_in_one(
    name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
) -> tuple[str, dict[str, Any]]:
    """Return the one statement that appends the first ``ROWS_PER_INSERT`` messages of ``batch`` (PostgreSQL)."""
    update, params = advance("postgresql", name, batch, threshold, counter=counter, hint=hint)
    added, values = _added_one(batch) if len(batch.entries) == 1 else _added(batch)
    return (
        f"WITH advanced AS ({update}), added AS (INSERT INTO {MESSAGE} {added}) SELECT * FROM advanced",
        params | values,
    )


def _added_one(batch: Batch) -> tuple[str, dict[str, Any]]:
    """The rest of the INSERT of a batch of one message, which stands where the session ends now.

    What is None is left out: the statement is read and planned each time, and takes half as long for half as much.
    """
    row = dict(zip(_NAMES, row_values(batch, 0), strict=True))
    answers = row.pop("answers") is not None
    del row["tokens_through"], row["position"]
    given = _given(row)
    return _added_one_text(tuple(given), answers=answers), {f"new_{column}": value for column, value in given.items()}


def _given(row: Mapping[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in row.items() if value is not None}


@functools.lru_cache(maxsize=256)
def _added_one_text(given: tuple[str, ...], *, answers: bool) -> str:
    columns = {
        "session_id": "id",
        "tokens_through": "unpinned_tokens",
        "position": "last_position",
        "created_at": "STATEMENT_TIMESTAMP()",
        **({"answers": "answered_position"} if answers else {}),
        **{column: f"%(new_{column})s" for column in given},
    }
    return f"({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM advanced"


def _added(batch: Batch) -> tuple[str, dict[str, Any]]:
    """The rest of the INSERT of a batch of several messages."""
    rows = [row_values(batch, index) for index in range(len(batch.entries[:ROWS_PER_INSERT]))]
    return _ADDED, dict(zip(_NEW, map(list, zip(*rows, strict=True)), strict=True))


_NEW = [f"new_{column}" for column in _NAMES]
_TYPES = (*["text"] * 6, "int", *["bigint"] * 3, *["text"] * 2, "timestamptz")
# An array for each column, and not a placeholder for each value, which the driver would take longer to find.
_ARRAYS = ", ".join(f"%({name})s::{kind}[]" for name, kind in zip(_NEW, _TYPES, strict=True))
_ADDED = (
    f"(session_id, {_COLUMNS}) "
    "SELECT advanced.id, batch.role, batch.kind, batch.content, batch.wire, batch.metadata, batch.usage, "
    "batch.tokens, advanced.unpinned_tokens - %(added_tokens)s + batch.tokens_through, "
    "advanced.last_position - %(added)s + batch.position, "
    f"CASE WHEN batch.answers = {LEADING} THEN advanced.answered_position "
    "ELSE advanced.last_position - %(added)s + batch.answers END, "
    "batch.idempotency_key, batch.payload_hash, COALESCE(batch.created_at, STATEMENT_TIMESTAMP()) "
    f"FROM advanced, UNNEST({_ARRAYS}) AS batch ({_COLUMNS})"
)


def portions(batch: Batch, start: int) -> Iterator[tuple[int, int]]:
    """Return the entries from ``start`` on in portions that one INSERT takes: where each begins, and where it ends."""
    if len(batch.entries) - start == 1:
        yield start, start + 1
        return
    first, size = start, 0
    for index in range(start, len(batch.entries)):
        message = batch.entries[index].message
        length = len(message.text.encode()) + len(wire_of(message) or "") + len(dumps(message.metadata))
        if index > first and (index - first >= ROWS_PER_INSERT or size + length > BYTES_PER_INSERT):
            yield first, index
            first, size = index, 0
        size += length
    if first < len(batch.entries):
        yield first, len(batch.entries)


def insert(
    vendor: str, batch: Batch, advanced: Advanced, start: int = 0, stop: int | None = None
) -> tuple[str, list[Any] | dict[str, Any]]:
    """Return the INSERT of the entries from ``start`` to ``stop``, in the place that ``advanced`` made for them."""
    position = advanced.last_position - len(batch.entries)
    through = advanced.unpinned_tokens - batch.unpinned_tokens
    rows = []
    for index in range(start, len(batch.entries) if stop is None else min(stop, len(batch.entries))):
        row = row_values(batch, index)
        row[_THROUGH] += through
        row[_POSITION] += position
        if row[_ANSWERS] == LEADING:
            row[_ANSWERS] = advanced.answered_position
        elif row[_ANSWERS] is not None:
            row[_ANSWERS] += position
        rows.append([advanced.session_id, *row])
    if len(rows) == 1:
        # By names, in which Django finds the places of SQLite's parameters faster.
        given = _given(dict(zip(("session_id", *_NAMES), rows[0], strict=True)))
        return _insert_one(vendor, tuple(given)), given
    marks = f"(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, {clock.sql(vendor)}))"
    return (
        f"INSERT INTO {MESSAGE} (session_id, {_quoted(vendor, _COLUMNS)}) VALUES {', '.join([marks] * len(rows))}",
        [value for row in rows for value in row],
    )


@functools.lru_cache(maxsize=256)
def _insert_one(vendor: str, given: tuple[str, ...]) -> str:
    values = {column: f"%({column})s" for column in given}
    values.setdefault("created_at", clock.sql(vendor))
    columns = ", ".join(values)
    return f"INSERT INTO {MESSAGE} ({_quoted(vendor, columns)}) VALUES ({', '.join(values.values())})"


_THROUGH, _POSITION, _ANSWERS = 7, 8, 9


def _quoted(vendor: str, columns: str) -> str:
    # USAGE is a reserved word of MariaDB.
    return columns.replace("usage", "`usage`") if vendor == "mysql" else columns


def row_values(batch: Batch, index: int) -> list[Any]:
    """Return the columns of an entry, positions and totals relative to the batch.

    The one place where a value becomes a row.
    """
    entry, row = batch.entries[index], batch.rows[index]
    message = entry.message
    answers = row.answers
    if message.role == "tool" and answers is None:
        answers = LEADING
    keyed = index == 0 and batch.key_hash is not None
    return [
        message.role,
        message.kind,
        message.content if isinstance(message.content, str) else None,
        wire_of(message),
        dumps(message.metadata) if message.metadata else None,
        dumps(entry.usage) if entry.usage else None,
        entry.tokens,
        row.tokens_through,
        row.position,
        answers,
        batch.key_hash if keyed else None,
        Payload(batch.payload_hash, len(batch.entries)).text if keyed else "",
        entry.created_at,
    ]


def wire_of(message: ChatMessage) -> str | None:
    """Return as JSON what of the wire form has no column of its own, or None."""
    wire = wire_value(message)
    return dumps(wire) if wire else None


def wire_value(message: ChatMessage) -> dict[str, Any] | None:
    """Return what of the wire form has no column of its own, or None."""
    wire: dict[str, Any] = {}
    if isinstance(message.content, tuple):
        wire["content"] = message.content
    if message.name is not None:
        wire["name"] = message.name
    if message.tool_calls:
        wire["tool_calls"] = message.tool_calls
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.extra:
        wire["extra"] = message.extra
    return wire or None


_EMPTY = FrozenDict()
# What the column ``wire`` can hold.
WIRE_FIELDS = frozenset({"content", "name", "tool_calls", "tool_call_id", "extra"})


def message_of(role: str, kind: str, content: str | None, wire: Any, metadata: Any) -> ChatMessage:
    """Return the message that these columns hold: the one place where a row becomes a value.

    ``wire`` and ``metadata`` are JSON, as text from a cursor or as values from the ORM, or None.
    """
    if not wire and not metadata:
        return ChatMessage.restore(role, content, kind)
    rest = _frozen(wire) if wire else _EMPTY
    return ChatMessage.restore(
        role,
        rest.get("content") if content is None else content,
        kind,
        rest.get("name"),
        rest.get("tool_calls", ()),
        rest.get("tool_call_id"),
        _frozen(metadata) if metadata else _EMPTY,
        rest.get("extra", _EMPTY),
    )


def _frozen(value: Any) -> FrozenDict:
    frozen: FrozenDict = frozen_json(json.loads(value) if isinstance(value, str) else value)
    return frozen


# Copying.

_COPIED = (
    "position, role, kind, content, wire, metadata, usage, tokens, tokens_through, answers, created_at, redacted_at"
)
_COPIED_SUMMARY = (
    "version, parent_version, first_position, last_position, covered_count, covered_tokens, text, tokens, model, "
    "shortened, fallback, building, prompt_hash, created_at"
)


def copy_messages(vendor: str, source: int, target: int, last_position: int) -> tuple[str, list[Any]]:
    """Return the INSERT of a session's messages through ``last_position`` into another, without idempotency keys."""
    columns = _quoted(vendor, _COPIED)
    return (
        f"INSERT INTO {MESSAGE} (session_id, payload_hash, {columns}) SELECT %s, '', {columns} FROM {MESSAGE} "
        "WHERE session_id = %s AND position <= %s"
    ), [target, source, last_position]


def copy_summaries(source: int, target: int, last_position: int) -> tuple[str, list[Any]]:
    """Return the INSERT of a session's valid versions through ``last_position`` into another."""
    return (
        f"INSERT INTO {SUMMARY} (session_id, {_COPIED_SUMMARY}) SELECT %s, {_COPIED_SUMMARY} FROM {SUMMARY} "
        "WHERE session_id = %s AND last_position <= %s AND invalidated_at IS NULL AND building = %s"
    ), [target, source, last_position, False]


# Reading.

_SESSION = (
    "s.id, s.epoch, s.revision, s.due_since IS NOT NULL, s.last_position, s.unpinned_count, s.unpinned_tokens, "
    "s.settled_tokens, s.newest_position, s.pinned, s.call_position, s.exchange_calls, s.open_calls, "
    "s.covered_position, s.covered_count, s.covered_tokens"
)
_SUMMARY = "v.version, v.first_position, v.last_position, v.text, v.tokens"
_PLACED = "m.position, m.role, m.kind, m.content, m.wire, m.metadata, m.tokens, m.answers, m.redacted_at IS NOT NULL"
# The columns of the row that is the session.
AT_SESSION, AT_SUMMARY = 4, 5
# More than a session holds, and no more than a database can add to it.
_MOST = 2**53


@functools.lru_cache(maxsize=64)
def _load(vendor: str, *, messages: bool, tokens: bool, summary: bool) -> str:
    array, text = ("JSON_BUILD_ARRAY", "::text") if vendor == "postgresql" else ("JSON_ARRAY", "")
    # Beside a plain NULL the numbers of the other rows are decimal ones, to MariaDB.
    none = "CAST(NULL AS SIGNED)" if vendor == "mysql" else "NULL"
    greatest, least = ("MAX", "MIN") if vendor == "sqlite" else ("GREATEST", "LEAST")
    first, covered = ("covered_position + 1", "covered_tokens") if summary else ("1", "0")
    # The arithmetic of values.view_bound, as if all that are pinned stood among the last messages.
    if messages:
        last = f"{least}(last_position + 1 - pinned_count - %s, newest_position)"
        column, bound = "m.position", f">= (SELECT {greatest}({first}, {last})"
    elif tokens:
        left_out = f"{least}(unpinned_tokens - %s, settled_tokens)"
        column, bound = "m.tokens_through", f"> (SELECT {greatest}({covered}, {left_out})"
    else:
        column, bound = "m.position", f">= (SELECT {first}"
    # Values of subqueries, not joins nor a common table, which are planned for longer: PostgreSQL does that each time.
    session = f"FROM {SESSION} s WHERE s.name_hash = %s"
    shown = (
        f"SELECT {_PLACED} FROM {MESSAGE} m "
        f"WHERE m.session_id = (SELECT s.id {session}) AND {column} {bound} {session})"
    )
    if vendor == "postgresql":
        # One bound, for the planner to take the index that has it, and in its order, for where sessions of one message
        # are the rule it would take another for as good.
        shown = f"({shown} ORDER BY {column})"
    return (
        f"{shown} UNION ALL SELECT {none}, NULL, NULL, NULL, {array}({_SESSION}){text}, "
        f"(SELECT {array}({_SUMMARY}){text} FROM {SUMMARY} v WHERE v.session_id = s.id AND v.version = "
        f"s.current_version), {none}, {none}, NULL {session}"
    )


def load(vendor: str, name: SessionName, view: View) -> tuple[str, list[Any]]:
    """Return the SELECT of a session as it is at one moment: of itself in one row, and of what ``view`` asks for.

    The row of its own has no position. In the column ``AT_SESSION`` it has a JSON array of ``_SESSION``, and in
    ``AT_SUMMARY`` one of ``_SUMMARY``, or NULL. Of the messages there are at least those within
    :func:`.values.view_bound`, and pinned ones among them; of a view by messages and by tokens those by messages.
    """
    messages, tokens = view.messages is not None, view.tokens is not None
    text = _load(vendor, messages=messages, tokens=tokens, summary=view.summary)
    bounds = [bound for bound in (view.messages, view.tokens) if bound is not None]
    return text, [name.name_hash, *[min(bound, _MOST) for bound in bounds[:1]], name.name_hash, name.name_hash]


def placed(session_id: int, positions: Sequence[int]) -> tuple[str, list[Any]]:
    """Return the SELECT of the session's epoch, once at least, and of the messages at ``positions`` beside it."""
    places = ", ".join(["%s"] * len(positions))
    return (
        f"SELECT s.epoch, {_PLACED} FROM {SESSION} s "
        f"LEFT JOIN {MESSAGE} m ON m.session_id = s.id AND m.position IN ({places}) WHERE s.id = %s"
    ), [*positions, session_id]
