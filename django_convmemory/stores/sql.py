"""The statements of ``append`` and ``load``, as text.

They are the app's hot path. An append through one data-modifying statement costs about what the driver's own
transaction costs; the ORM's way costs three times that. Every name here is a constant, every value a parameter.

PostgreSQL appends in one statement, SQLite in two: an UPDATE that advances the counters and returns them, and an
INSERT. The arithmetic is that of :meth:`.ledger.Ledger.append`, in SQL, and a test compares the two. MariaDB, whose
UPDATE returns nothing and assigns from left to right, locks the row and computes in Python.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from django_convmemory import clock
from django_convmemory.ledger import MAX_PINNED, Batch
from django_convmemory.messages import ChatMessage, FrozenDict, dumps, frozen_json
from django_convmemory.stores.values import Payload, SessionName
from django_convmemory.strategies import Threshold, View

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
    """What the update of an append returns."""

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


class _SQL(NamedTuple):
    """A piece of a statement with its parameters."""

    text: str
    params: tuple[Any, ...] = ()


def _plus(column: str, amount: int) -> _SQL:
    return _SQL(f"{column} + %s", (amount,)) if amount else _SQL(column)


def advance(
    vendor: str, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
) -> tuple[str, list[Any]]:
    """Return the UPDATE that moves a session's counters past ``batch``, and marks it due when ``threshold`` says so.

    It changes no row where there is no such session, or where the session cannot take the batch.
    """
    now = _SQL(clock.sql(vendor))
    settled, newest = _newest_exchange(batch)
    columns = {
        **_due_mark(threshold, batch, settled, now, hint=hint),
        "last_position": _plus("last_position", len(batch.entries)),
        "unpinned_count": _plus("unpinned_count", batch.unpinned_count),
        "unpinned_tokens": _plus("unpinned_tokens", batch.unpinned_tokens),
        "settled_tokens": settled,
        "newest_position": newest,
        **_pins(batch),
        "answered_position": _SQL("call_position"),
        **_calls(batch),
        "counter": _SQL("%s", (counter,)),
        "revision": _SQL("revision + 1"),
        "updated_at": now,
    }
    conditions = [_SQL("handle = %s", (name.handle,)), *_conditions(batch)]
    if name.row_id is not None:
        conditions.append(_SQL("id = %s", (name.row_id,)))
    # Of PostgreSQL's, the driver need not read a time. SQLite 3.40 finds NULL to be NOT NULL where it returns it.
    due = "due_since IS NOT NULL" if vendor == "postgresql" else "due_since"
    statement = (
        f"UPDATE {SESSION} SET {', '.join(f'{column} = {value.text}' for column, value in columns.items())} "
        f"WHERE {' AND '.join(condition.text for condition in conditions)} "
        f"RETURNING id, last_position, unpinned_tokens, answered_position, {due} AS due, "
        "due_revision = revision AS turned_due"
    )
    return statement, [param for piece in (*columns.values(), *conditions) for param in piece.params]


def _without(marks: Sequence[str]) -> _SQL:
    """The open calls less those that are answered."""
    text, params = "open_calls", tuple(dict.fromkeys(marks))
    for _ in params:
        text = f"REPLACE({text}, %s, '')"
    return _SQL(text, params)


def _newest_exchange(batch: Batch) -> tuple[_SQL, _SQL]:
    """The tokens before the newest exchange, and where it begins."""
    tokens = _plus("unpinned_tokens", batch.after.settled_tokens)
    position = _plus("last_position", batch.after.newest_position)
    if batch.has_assistant:
        return tokens, position
    if not batch.unpinned_count or batch.ends_with_result:
        return _SQL("settled_tokens"), _SQL("newest_position")
    # A user's turn: inside of the open exchange, or an exchange of its own.
    left = _without(batch.leading_results)
    return (
        _SQL(f"CASE WHEN {left.text} = '' THEN {tokens.text} ELSE settled_tokens END", (*left.params, *tokens.params)),
        _SQL(
            f"CASE WHEN {left.text} = '' THEN {position.text} ELSE newest_position END",
            (*left.params, *position.params),
        ),
    )


def _due_mark(threshold: Threshold, batch: Batch, settled: _SQL, now: _SQL, *, hint: bool) -> dict[str, _SQL]:
    over = []
    if threshold.tokens is not None:
        over.append(_SQL("unpinned_tokens - covered_tokens > %s", (threshold.tokens - batch.unpinned_tokens,)))
    if threshold.messages is not None:
        over.append(_SQL("unpinned_count - covered_count > %s", (threshold.messages - batch.unpinned_count,)))
    if not over:
        return {}
    condition = f"due_since IS NULL AND ({' OR '.join(one.text for one in over)}) AND {settled.text} > covered_tokens"
    params = (*(param for one in over for param in one.params), *settled.params)
    return {
        column: _SQL(f"CASE WHEN {condition} THEN {value} ELSE {column} END", params)
        for column, value in (
            ("due_revision", "revision + 1"),
            ("hinted_at", now.text if hint else "NULL"),
            ("due_since", now.text),
        )
    }


def _pins(batch: Batch) -> dict[str, _SQL]:
    if not batch.pinned:
        return {}
    texts = " || ".join("' ' || CAST(last_position + %s AS VARCHAR(20)) || %s" for _ in batch.pinned)
    return {
        "pinned": _SQL(
            f"pinned || {texts}", tuple(part for one in batch.pinned for part in (one.position, f":{one.tokens}"))
        ),
        "pinned_count": _SQL("pinned_count + %s", (len(batch.pinned),)),
        "pinned_tokens": _SQL("pinned_tokens + %s", (sum(one.tokens for one in batch.pinned),)),
    }


def _calls(batch: Batch) -> dict[str, _SQL]:
    after = batch.after
    if not batch.has_assistant:
        return {"open_calls": _without(batch.leading_results)} if batch.leading_results else {}
    return {
        "exchange_calls": _SQL("%s", (after.exchange_calls,)),
        "open_calls": _SQL("%s", (after.open_calls,)),
        "call_position": _SQL("last_position + %s", (after.call_position,)) if after.call_position else _SQL("0"),
    }


def _conditions(batch: Batch) -> list[_SQL]:
    """What must hold for the session to take the batch."""
    conditions = []
    if batch.leading_results:
        # Open until before the last of the results, and each of them answers a call of the exchange.
        left = _without(batch.leading_results[:-1])
        conditions.append(_SQL(f"{left.text} <> ''", left.params))
        conditions += [_SQL("exchange_calls LIKE %s", (f"%{mark}%",)) for mark in dict.fromkeys(batch.leading_results)]
    if batch.pinned:
        conditions.append(_SQL("pinned_count <= %s", (MAX_PINNED - len(batch.pinned),)))
    return conditions


def append_in_one(
    name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool
) -> tuple[str, list[Any]]:
    """Return the one statement that appends the first ``ROWS_PER_INSERT`` messages of ``batch`` (PostgreSQL)."""
    update, params = advance("postgresql", name, batch, threshold, counter=counter, hint=hint)
    added, values = _added_one(batch) if len(batch.entries) == 1 else _added(batch)
    return (
        f"WITH advanced AS ({update}), added AS (INSERT INTO {MESSAGE} {added}) SELECT * FROM advanced",
        params + values,
    )


def _added_one(batch: Batch) -> tuple[str, list[Any]]:
    """The rest of the INSERT of a batch of one message, which stands where the session ends now.

    What is None is left out: the statement is read and planned each time, and takes half as long for half as much.
    """
    values = dict(zip(_NAMES, row_values(batch, 0), strict=True))
    columns = {
        "session_id": "id",
        "tokens_through": "unpinned_tokens",
        "position": "last_position",
        "created_at": "STATEMENT_TIMESTAMP()",
    }
    if values.pop("answers") is not None:
        columns["answers"] = "answered_position"
    del values["tokens_through"], values["position"]
    given = {column: value for column, value in values.items() if value is not None}
    columns |= dict.fromkeys(given, "%s")
    # In the order of their values, of those that have one.
    return f"({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM advanced", [
        given[column] for column in columns if column in given
    ]


_TYPES = (*["text"] * 6, "int", *["bigint"] * 3, *["text"] * 2, "timestamptz")


def _added(batch: Batch) -> tuple[str, list[Any]]:
    """The rest of the INSERT of a batch of several messages."""
    rows = [row_values(batch, index) for index in range(len(batch.entries[:ROWS_PER_INSERT]))]
    # An array for each column, and not a placeholder for each value, which the driver would take longer to find.
    columns = ", ".join(f"%s::{kind}[]" for kind in _TYPES)
    params: list[Any] = [
        batch.unpinned_tokens,
        len(batch.entries),
        len(batch.entries),
        *map(list, zip(*rows, strict=True)),
    ]
    return (
        f"(session_id, {_COLUMNS}) "
        "SELECT advanced.id, batch.role, batch.kind, batch.content, batch.wire, batch.metadata, batch.usage, "
        "batch.tokens, advanced.unpinned_tokens - %s + batch.tokens_through, "
        "advanced.last_position - %s + batch.position, "
        f"CASE WHEN batch.answers = {LEADING} THEN advanced.answered_position "
        "ELSE advanced.last_position - %s + batch.answers END, "
        "batch.idempotency_key, batch.payload_hash, COALESCE(batch.created_at, STATEMENT_TIMESTAMP()) "
        f"FROM advanced, UNNEST({columns}) AS batch ({_COLUMNS})"
    ), params


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
) -> tuple[str, list[Any]]:
    """Return the INSERT of the entries from ``start`` to ``stop``, in the place that ``advanced`` made for them."""
    position = advanced.last_position - len(batch.entries)
    through = advanced.unpinned_tokens - batch.unpinned_tokens
    params: list[Any] = []
    rows = range(start, len(batch.entries) if stop is None else min(stop, len(batch.entries)))
    for index in rows:
        values = row_values(batch, index)
        values[_THROUGH] += through
        values[_POSITION] += position
        if values[_ANSWERS] == LEADING:
            values[_ANSWERS] = advanced.answered_position
        elif values[_ANSWERS] is not None:
            values[_ANSWERS] += position
        params += [advanced.session_id, *values]
    row = f"(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, {clock.sql(vendor)}))"
    return f"INSERT INTO {MESSAGE} (session_id, {_quoted(vendor)}) VALUES {', '.join([row] * len(rows))}", params


_THROUGH, _POSITION, _ANSWERS = 7, 8, 9


def _quoted(vendor: str) -> str:
    # USAGE is a reserved word of MariaDB.
    return _COLUMNS.replace("usage", "`usage`") if vendor == "mysql" else _COLUMNS


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
    columns = _COPIED.replace("usage", "`usage`") if vendor == "mysql" else _COPIED
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
    none = "CAST(NULL AS UNSIGNED)" if vendor == "mysql" else "NULL"
    # A small number in the place of a parameter is a small integer, to PostgreSQL, and so would be a sum with it.
    given = "%s::bigint" if vendor == "postgresql" else "%s"
    greatest, least = ("MAX", "MIN") if vendor == "sqlite" else ("GREATEST", "LEAST")
    first, covered = ("covered_position + 1", "covered_tokens") if summary else ("1", "0")
    # The arithmetic of values.view_bound, without a difference below zero, which MariaDB refuses.
    if messages:
        # As if all that are pinned stood among the last ones.
        last = f"last_position + 1 - {least}({given} + pinned_count, last_position)"
        column, bound = "m.position", f">= (SELECT {greatest}({first}, {least}({last}, newest_position))"
    elif tokens:
        left_out = f"{least}(unpinned_tokens - {least}({given}, unpinned_tokens), settled_tokens)"
        column, bound = "m.tokens_through", f"> (SELECT {greatest}({covered}, {left_out})"
    else:
        column, bound = "m.position", f">= (SELECT {first}"
    # Values of subqueries, not joins nor a common table, which are planned for longer: PostgreSQL does that each time.
    session = f"FROM {SESSION} s WHERE s.handle = %s"
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
    handle = name.handle
    return text, [handle, *[min(bound, _MOST) for bound in bounds[:1]], handle, handle]


def placed(session_id: int, positions: Sequence[int]) -> tuple[str, list[Any]]:
    """Return the SELECT of the session's epoch, once at least, and of the messages at ``positions`` beside it."""
    places = ", ".join(["%s"] * len(positions))
    return (
        f"SELECT s.epoch, {_PLACED} FROM {SESSION} s "
        f"LEFT JOIN {MESSAGE} m ON m.session_id = s.id AND m.position IN ({places}) WHERE s.id = %s"
    ), [*positions, session_id]
