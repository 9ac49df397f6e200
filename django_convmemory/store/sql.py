"""The statements of ``append``, ``load`` and ``fork`` as text.

An append through one data-modifying statement costs about as much as the driver's own transaction. Through the ORM it
costs three times as much. All names in the statements are constants, and all values are parameters. The columns of a
message come from the table in :mod:`.columns`. ``tests/golden`` shows every statement.

PostgreSQL appends in one statement. SQLite needs two: an UPDATE that advances the counters and returns them, and an
INSERT. If the session becomes due, a third statement marks it. The arithmetic is that of :meth:`.Counters.append`, and
a test compares the two. On MariaDB an UPDATE returns nothing and assigns from left to right. There the store locks the
row and computes the counters in Python. It does so everywhere for a batch that is unusual.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django_convmemory import clock
from django_convmemory.rules.counters import MAX_PINNED, REPEATED, Batch, Counters, Row
from django_convmemory.rules.strategies import Threshold, View
from django_convmemory.rules.turns import Does
from django_convmemory.rules.values import SessionName
from django_convmemory.store import columns
from django_convmemory.store.columns import APPENDED, LEADING, Kind

SESSION = "convmemory_session"
MESSAGE = "convmemory_message"
SUMMARY = "convmemory_summary"
USED_KEY = "convmemory_usedkey"

# PostgreSQL takes 65 535 parameters in a statement, SQLite 32 766.
ROWS_PER_INSERT = 1000
# MariaDB takes 16 MiB in a statement by default, and quoting can double the length of a text.
BYTES_PER_INSERT = 4 * 1024 * 1024

# With more tool results at the beginning of a batch, the statement would be nested too deeply.
_MAX_RESULTS = 8


class Advanced(NamedTuple):
    """What the UPDATE of an append returns."""

    session_id: int
    last_position: int
    unpinned_tokens: int
    answered_position: int
    due: bool
    turned_due: bool
    epoch: int = -1


# Appending: the counters.


class _Shape(NamedTuple):
    """What decides the text of the UPDATE of an append. Everything else is a parameter."""

    vendor: str
    several: bool  # Otherwise the numbers of messages are known: there is one.
    by_tokens: bool  # The threshold has a limit of tokens.
    by_messages: bool  # The threshold has a limit of messages.
    by_unindexed: bool  # The threshold has a limit of messages that are not indexed.
    by_id: bool  # The id of the row is given too.
    speaks: bool  # There is an assistant message.
    calls: bool  # The last assistant message makes calls.
    starts_exchange: bool  # The last unpinned message is not a tool result.
    pinned: int
    results: int  # The number of calls from before the batch that get a result.
    turn: Does | None  # What the append does with the session's turn.
    at_state: bool  # The epoch and the last position are given too.


@dataclasses.dataclass(frozen=True, slots=True)
class Append:
    """What is appended to the session ``name``, and the statements that do it.

    ``counter`` is the name of the token counter. ``content`` is the HMAC of the batch if the batch has a key. A batch
    that :attr:`is_unusual` goes to places that are computed in Python.
    """

    vendor: str
    name: SessionName
    batch: Batch
    threshold: Threshold
    counter: str
    content: str | None = None

    @property
    def is_unusual(self) -> bool:
        """Whether no UPDATE computes the counters: it has items, or begins with repeated or many tool results."""
        results = self.batch.leading_results
        return self.batch.has_items or len(results) > _MAX_RESULTS or len(set(results)) < len(results)

    def advance(self) -> tuple[str, dict[str, Any]]:
        """Return the UPDATE that adds the batch to the session's counters, and marks the session due by the threshold.

        It changes no row if there is no such session, or if the session cannot take the batch.
        """
        return _advance(self._shape()), self._params()

    def in_one(self) -> tuple[str, dict[str, Any]]:
        """Return the one statement that appends the batch, and stores its key (PostgreSQL)."""
        batch, params = self.batch, self._params()
        values = [columns.row_values(*row) for row in zip(batch.entries, _relative_rows(batch), batch.ids, strict=True)]
        filled: tuple[str, ...] | None = None
        if len(values) == 1:
            # Without the columns that are NULL. PostgreSQL plans the statement each time, until it is prepared. Half as
            # many columns take half as long.
            added = {name: value for name, value in values[0].items() if value is not None}
            filled = tuple(added)
            params |= added
        else:
            params |= {name: [row[name] for row in values] for name in _APPENDED_NAMES}
        if self.content is not None:
            params |= {"key_hash": batch.key_hash, "key_content": self.content}
        keyed_by_question = None if self.content is None else batch.is_keyed_by_question
        return _append_in_one(self._shape(), filled, keyed_by_question), params

    def use_key(self, advanced: Advanced) -> tuple[str, dict[str, Any]]:
        """Return the INSERT of the batch's key, after ``advanced`` has made room for the messages."""
        place = self.batch.key_place(advanced.last_position)
        row = (advanced.session_id, self.batch.key_hash, *place, self.content)
        return _USE_KEY, dict(zip(_KEY_NAMES, row, strict=True))

    def inserts(self, advanced: Advanced) -> list[tuple[str, Any]]:
        """Return the INSERTs of the messages, after ``advanced`` has made room for them."""
        position = advanced.last_position - len(self.batch.entries)
        total = advanced.unpinned_tokens - self.batch.after.unpinned_tokens
        places = []
        for row in _relative_rows(self.batch):
            answers = row.answers
            if answers is not None:
                answers = advanced.answered_position if answers == LEADING else answers + position
            places.append(Row(row.position + position, row.tokens_through + total, answers))
        return self.inserts_at(advanced.session_id, places)

    def inserts_at(self, session_id: int, places: Sequence[Row]) -> list[tuple[str, Any]]:
        """Return the INSERTs of the messages at their ``places``."""
        rows = [
            {"session_id": session_id, **columns.row_values(*row)}
            for row in zip(self.batch.entries, places, self.batch.ids, strict=True)
        ]
        if len(rows) == 1:
            # Django finds SQLite's named parameters faster than positional ones.
            values = {name: value for name, value in rows[0].items() if value is not None}
            return [(_insert_one(self.vendor, tuple(values)), values)]
        text, places_of_row = _insert_several(self.vendor)
        return [
            (text + ", ".join([places_of_row] * len(portion)), [value for row in portion for value in row])
            for portion in _portions([list(row.values()) for row in rows])
        ]

    def _shape(self) -> _Shape:
        batch, threshold = self.batch, self.threshold
        after = batch.after
        return _Shape(
            self.vendor,
            len(batch.entries) > 1,
            threshold.tokens is not None,
            threshold.messages is not None,
            threshold.unindexed is not None,
            self.name.row_id is not None,
            batch.has_assistant,
            after.call_position > 0,
            after.unpinned_count > 0 and not batch.ends_with_result,
            len(after.pinned),
            len(batch.leading_results),
            batch.step and batch.step.does,
            batch.step is not None and batch.step.epoch >= 0,
        )

    def _params(self) -> dict[str, Any]:
        """Return the parameters of the UPDATE."""
        after, step, threshold = self.batch.after, self.batch.step, self.threshold
        params: dict[str, Any] = {
            "name_hash": self.name.name_hash,
            "id": self.name.row_id,
            "counter": self.counter,
            "added_tokens": after.unpinned_tokens,
            "max_tokens": threshold.tokens,
            "max_messages": threshold.messages,
            "max_unindexed": threshold.unindexed,
            "exchange_calls": after.exchange_calls,
            "open_calls": after.open_calls,
        }
        if len(self.batch.entries) > 1:
            params |= {
                "added": len(self.batch.entries),
                "added_unpinned": after.unpinned_count,
                "settled": after.settled_tokens,
                "newest": after.newest_position,
                "call_position": after.call_position,
            }
        if step is not None:
            params |= {"turn": step.token, "turn_seconds": clock.later(self.vendor, step.seconds)}
            params |= {"epoch": step.epoch, "at_position": step.last_position, "question": step.question}
        if self.batch.leading_results:
            params["repeated"] = f"%{REPEATED}%"
        for number, mark in enumerate(self.batch.leading_results):
            params |= {f"result{number}": mark, f"like{number}": f"%{mark}%"}
        if after.pinned:
            params |= {
                "added_pinned": len(after.pinned),
                "pinned_tokens": sum(pinned.tokens for pinned in after.pinned),
                "max_pinned": MAX_PINNED - len(after.pinned),
            }
        for number, pinned in enumerate(after.pinned):
            params |= {f"pinned{number}": pinned.position, f"tokens{number}": f":{pinned.tokens}"}
        return params


def mark_due(session_id: int) -> tuple[str, list[Any]]:
    """Return the UPDATE that marks a session due from now on (SQLite)."""
    now = clock.sql("sqlite")
    return f"UPDATE {SESSION} SET due_since = {now}, due_revision = revision WHERE id = %s", [session_id]


def _without(results: int) -> str:
    """Return the open calls without those that get the first ``results`` results of the batch."""
    text = "open_calls"
    for number in range(results):
        text = f"REPLACE({text}, %(result{number})s, '')"
    return text


@functools.lru_cache(maxsize=256)
def _advance(shape: _Shape) -> str:
    now = clock.sql(shape.vendor)
    assignments = {
        "last_position": _plus(shape, "last_position", "added", 1),
        "unpinned_count": _plus(shape, "unpinned_count", "added_unpinned", 1 - shape.pinned),
        "unpinned_tokens": "unpinned_tokens + %(added_tokens)s",
        "settled_tokens": _if_exchange_starts(shape, _plus(shape, "unpinned_tokens", "settled", 0), "settled_tokens"),
        "newest_position": _if_exchange_starts(shape, _plus(shape, "last_position", "newest", 1), "newest_position"),
        **_pins(shape),
        "answered_position": "call_position",
        **_calls(shape),
        **_turn(shape),
        # If another counter counted earlier messages, no name is right. A recount finds the session by that.
        "counter": "CASE WHEN last_position = 0 OR counter = %(counter)s THEN %(counter)s ELSE '' END",
        "revision": "revision + 1",
        "updated_at": now,
    }
    if shape.vendor == "sqlite":
        # SQLite rewrites an index entry even if the value is unchanged. So only mark_due() sets due_since.
        # due_since is returned as text: SQLite 3.40 returns that NULL IS NOT NULL, and the driver would parse a time.
        due, turned_due = "due_since || ''", _over(shape, {})
    else:
        assignments |= _due_mark(shape, assignments, now)
        due, turned_due = "due_since IS NOT NULL", "due_revision = revision"
    return (
        f"UPDATE {SESSION} SET {', '.join(f'{column} = {value}' for column, value in assignments.items())} "
        f"WHERE {' AND '.join(_conditions(shape))} "
        f"RETURNING id, last_position, unpinned_tokens, answered_position, {due} AS due, {turned_due} AS turned_due"
        + (", epoch" if shape.turn else "")
    )


def _plus(shape: _Shape, column: str, name: str, of_one: int) -> str:
    """Return ``column`` plus the number ``name`` of the batch, which is ``of_one`` for a batch of one message."""
    if shape.several:
        return f"{column} + %({name})s"
    return f"{column} + {of_one}" if of_one else column


def _if_exchange_starts(shape: _Shape, value: str, column: str) -> str:
    """Return ``value`` if the batch begins the newest exchange, otherwise ``column``, which stays as it is."""
    if shape.speaks:
        return value
    if not shape.starts_exchange:
        return column
    # A message of the user belongs to the open exchange. If there is none, the message is an exchange by itself.
    return f"CASE WHEN {_without(shape.results)} = '' THEN {value} ELSE {column} END"


def _over(shape: _Shape, assigned: Mapping[str, str]) -> str:
    """Return the condition that the session exceeds the threshold. ``assigned`` has new values of its columns."""
    tokens, messages, settled, newest = (
        assigned.get(column, column)
        for column in ("unpinned_tokens", "unpinned_count", "settled_tokens", "newest_position")
    )
    over = []
    if shape.by_tokens:
        over.append(f"{tokens} - covered_tokens > %(max_tokens)s")
    if shape.by_messages:
        over.append(f"{messages} - covered_count > %(max_messages)s")
    folds = f"({' OR '.join(over)}) AND {settled} > covered_tokens" if over else ""
    indexes = f"{newest} - indexed_position > %(max_unindexed)s" if shape.by_unindexed else ""
    return f"({folds} OR {indexes})" if folds and indexes else folds or indexes or "1 = 0"


def _due_mark(shape: _Shape, assignments: Mapping[str, str], now: str) -> dict[str, str]:
    if not (shape.by_tokens or shape.by_messages or shape.by_unindexed):
        return {}
    condition = f"due_since IS NULL AND {_over(shape, assignments)}"
    return {
        column: f"CASE WHEN {condition} THEN {value} ELSE {column} END"
        for column, value in (("due_revision", "revision + 1"), ("due_since", now))
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
    if shape.speaks and not shape.calls:
        return {"exchange_calls": "''", "open_calls": "''", "call_position": "0"}
    if shape.speaks:
        return {
            "exchange_calls": "%(exchange_calls)s",
            "open_calls": "%(open_calls)s",
            "call_position": _plus(shape, "last_position", "call_position", 1),
        }
    return {"open_calls": _without(shape.results)} if shape.results else {}


def _turn(shape: _Shape) -> dict[str, str]:
    later = clock.sql_later(shape.vendor, "turn_seconds")
    match shape.turn:
        case Does.BEGINS:
            question = _plus(shape, "last_position", "added", 1)
            begun = {"turn_token": "%(turn)s", "turn_question": question, "turn_stopped": "(1 = 0)"}
            return begun | {"turn_expires_at": later}
        case Does.GOES_ON:
            return {"turn_expires_at": later}
        case Does.ENDS:
            return {"turn_token": "''", "turn_expires_at": "NULL", "turn_question": "0"}
    return {}


def _conditions(shape: _Shape) -> list[str]:
    """Return the conditions under which the session can take the batch."""
    conditions = ["name_hash = %(name_hash)s"]
    if shape.turn is Does.BEGINS:
        conditions.append(f"(turn_token = '' OR turn_expires_at <= {clock.sql(shape.vendor)})")
    elif shape.turn:
        conditions.append("turn_token = %(turn)s")
    if shape.at_state:
        conditions.append("epoch = %(epoch)s AND last_position = %(at_position)s")
    if shape.results:
        # The exchange is open until before the last result, and each result answers a call of the exchange.
        conditions.append(f"{_without(shape.results - 1)} <> ''")
        conditions += [f"exchange_calls LIKE %(like{number})s" for number in range(shape.results)]
        # Which of several calls with one id a result answers is not computed here.
        conditions.append("exchange_calls NOT LIKE %(repeated)s")
    if shape.pinned:
        conditions.append("pinned_count <= %(max_pinned)s")
    if shape.by_id:
        conditions.append("id = %(id)s")
    return conditions


# Appending: the rows.


@functools.lru_cache(maxsize=1024)
def _append_in_one(shape: _Shape, filled: tuple[str, ...] | None, keyed_by_question: bool | None) -> str:
    """Return the statement for one message with the parameters ``filled``, or for several.

    It stores the key of the batch with the question or with the messages, unless ``keyed_by_question`` is None.
    """
    used = ""
    if keyed_by_question is not None:
        # See Batch.key_place().
        first, size = ("%(question)s" if keyed_by_question else "last_position"), "1"
        if shape.several and not keyed_by_question:
            first, size = "last_position - %(added)s + 1", "%(added)s"
        used = (
            f"used AS (INSERT INTO {USED_KEY} ({', '.join(_KEY_NAMES)}) SELECT id, %(key_hash)s, {first}, {size}, "
            "%(key_content)s FROM advanced), "
        )
    added = _ADDED if filled is None else _added_one(filled)
    return (
        f"WITH advanced AS ({_advance(shape)}), {used}added AS (INSERT INTO {MESSAGE} {added}) SELECT * FROM advanced"
    )


_KEY_NAMES = ("session_id", "key_hash", "first_position", "size", "content")
_USE_KEY = (
    f"INSERT INTO {USED_KEY} ({', '.join(_KEY_NAMES)}) VALUES ({', '.join(f'%({name})s' for name in _KEY_NAMES)})"
)

_APPENDED_NAMES = [column.name for column in APPENDED]
_INSERTED = ["session_id", *_APPENDED_NAMES]
# The values that the statement itself knows, for a batch of one message, which goes to the new end of the session.
_AT_END = {
    Kind.TOTAL: "unpinned_tokens",
    Kind.POSITION: "last_position",
    Kind.TIME: clock.sql("postgresql"),
    Kind.CALL: "answered_position",
}
# The same for a batch of several messages: {0} is the value relative to the batch.
_RELATIVE = {
    Kind.TOTAL: "advanced.unpinned_tokens - %(added_tokens)s + {0}",
    Kind.POSITION: "advanced.last_position - %(added)s + {0}",
    Kind.TIME: f"COALESCE({{0}}, {clock.sql('postgresql')})",
    Kind.CALL: f"CASE WHEN {{0}} = {LEADING} THEN advanced.answered_position "
    "ELSE advanced.last_position - %(added)s + {0} END",
}
_LISTED = ", ".join(_APPENDED_NAMES)
# Each column comes as an array. The driver would take longer to find a placeholder for each value.
_ADDED = (
    f"(session_id, {_LISTED}) SELECT advanced.id, "
    + ", ".join(_RELATIVE.get(column.kind, "{0}").format(f"batch.{column.name}") for column in APPENDED)
    + " FROM advanced, UNNEST("
    + ", ".join(f"%({column.name})s::{column.type}[]" for column in APPENDED)
    + f") AS batch ({_LISTED})"
)


def _added_one(filled: tuple[str, ...]) -> str:
    """Return the rest of the INSERT of a batch of one message."""
    values = {"session_id": "id"}
    for kind, value in _AT_END.items():
        for column in APPENDED:
            if column.kind is kind and (column.name in filled or kind is Kind.TIME):
                values[column.name] = value
    # A time that is given replaces the database's.
    values |= {name: f"%({name})s" for name in filled if name == "created_at" or name not in values}
    return f"({', '.join(values)}) SELECT {', '.join(values.values())} FROM advanced"


def _relative_rows(batch: Batch) -> Sequence[Row]:
    """Return where the messages go, relative to a session that nobody has read yet."""
    if not batch.leading_results:
        return batch.rows
    return [
        row._replace(answers=LEADING) if entry.message.role == "tool" and row.answers is None else row
        for entry, row in zip(batch.entries, batch.rows, strict=True)
    ]


def _portions(rows: list[list[Any]]) -> list[list[list[Any]]]:
    """Divide ``rows`` into those of one INSERT each."""
    portions: list[list[list[Any]]] = []
    size = 0
    for row in rows:
        length = sum(len(value.encode()) for value in row if isinstance(value, str))
        if not portions or len(portions[-1]) == ROWS_PER_INSERT or size + length > BYTES_PER_INSERT:
            portions.append([])
            size = 0
        portions[-1].append(row)
        size += length
    return portions


@functools.lru_cache(maxsize=256)
def _insert_one(vendor: str, names: tuple[str, ...]) -> str:
    values = {name: f"%({name})s" for name in names}
    for column in APPENDED:
        if column.kind is Kind.TIME:
            values.setdefault(column.name, clock.sql(vendor))
    return f"INSERT INTO {MESSAGE} ({_quoted(vendor, values)}) VALUES ({', '.join(values.values())})"


@functools.cache
def _insert_several(vendor: str) -> tuple[str, str]:
    """Return the beginning of the INSERT, and the placeholders of a row."""
    now = clock.sql(vendor)
    marks = [f"COALESCE(%s, {now})" if column.kind is Kind.TIME else "%s" for column in APPENDED]
    return f"INSERT INTO {MESSAGE} ({_quoted(vendor, _INSERTED)}) VALUES ", f"(%s, {', '.join(marks)})"


def _quoted(vendor: str, names: Iterable[str]) -> str:
    """Return the names in a list. ``usage`` is a reserved word of MariaDB."""
    return ", ".join(f"`{name}`" if vendor == "mysql" and name == "usage" else name for name in names)


# Copying.

_COPIED_SUMMARY = (
    "version, parent_version, first_position, last_position, covered_count, covered_tokens, text, tokens, model, "
    "shortened, fallback, stand_in, carried, cut, building, part_end, prompt_hash, identifiers, model_length, "
    "created_at"
)


def copy_messages(vendor: str, source: int, target: int, last_position: int) -> tuple[str, list[Any]]:
    """Return the INSERT that copies a session's messages through ``last_position`` into another session."""
    names = _quoted(vendor, [column.name for column in columns.MESSAGE_COLUMNS])
    return (
        f"INSERT INTO {MESSAGE} (session_id, {names}) SELECT %s, {names} FROM {MESSAGE} "
        "WHERE session_id = %s AND position <= %s"
    ), [target, source, last_position]


def copy_summaries(source: int, target: int, last_position: int) -> tuple[str, list[Any]]:
    """Return the INSERT that copies a session's valid summaries through ``last_position`` into another session."""
    return (
        f"INSERT INTO {SUMMARY} (session_id, {_COPIED_SUMMARY}) SELECT %s, {_COPIED_SUMMARY} FROM {SUMMARY} "
        "WHERE session_id = %s AND last_position <= %s AND invalidated_at IS NULL AND building = %s"
    ), [target, source, last_position, False]


# Reading.

_SESSION = "s.id, s.epoch, s.revision, s.due_since IS NOT NULL, " + ", ".join(f"s.{name}" for name in Counters._fields)
_SUMMARY = "v.version, v.first_position, v.last_position, v.text, v.tokens"
# The columns of a message that is shown. Of the time of its redaction only NULL or not NULL counts.
PLACED_NAMES = (
    *("position", "role", "kind", "content", "wire", "metadata", "tokens", "answers", "redacted_at"),
    *columns.MORE_NAMES,
)
_SHOWN = ", ".join(f"m.{name}" for name in PLACED_NAMES).replace("m.redacted_at", "m.redacted_at IS NOT NULL")
# Where the row without a position has the session and the summary.
AT_SESSION, AT_SUMMARY = PLACED_NAMES.index("wire"), PLACED_NAMES.index("metadata")
# More than a session holds, and small enough for every database to add to a session's counters.
_LARGEST = 2**53


@functools.lru_cache(maxsize=64)
def _load(vendor: str, *, messages: bool, tokens: bool, summary: bool, by_id: bool) -> str:
    array, text = ("JSON_BUILD_ARRAY", "::text") if vendor == "postgresql" else ("JSON_ARRAY", "")
    greatest, least = ("MAX", "MIN") if vendor == "sqlite" else ("GREATEST", "LEAST")
    first, covered = ("covered_position + 1", "covered_tokens") if summary else ("1", "0")
    # The arithmetic of values.view_bound(), as if all pinned messages were among the last ones.
    if messages:
        last = f"{least}(last_position + 1 - pinned_count - %(bound)s, newest_position)"
        column, bound = "m.position", f">= (SELECT {greatest}({first}, {last})"
    elif tokens:
        left_out = f"{least}(unpinned_tokens - %(bound)s, settled_tokens)"
        column, bound = "m.tokens_through", f"> (SELECT {greatest}({covered}, {left_out})"
    else:
        column, bound = "m.position", f">= (SELECT {first}"
    # PostgreSQL plans the statement each time. It plans subqueries faster than joins or a common table expression.
    session = f"FROM {SESSION} s WHERE s.name_hash = %(name_hash)s"
    session_id = "%(session_id)s" if by_id else f"(SELECT s.id {session})"
    messages_of_view = (
        f"SELECT {_shown(vendor)} FROM {MESSAGE} m WHERE m.session_id = {session_id} AND {column} {bound} {session})"
    )
    if vendor == "postgresql":
        # With one bound, and rows in the order of its index, the planner takes that index. Otherwise, if most sessions
        # have one message, it could take another index.
        messages_of_view = f"({messages_of_view} ORDER BY {column})"
    row = {name: _null(vendor, name) for name in PLACED_NAMES} | {
        "wire": f"{array}({_SESSION}){text}",
        "metadata": f"(SELECT {array}({_SUMMARY}){text} FROM {SUMMARY} v WHERE v.session_id = s.id AND v.version = "
        "s.current_version)",
    }
    return f"{messages_of_view} UNION ALL SELECT {', '.join(row.values())} {session}"


_TYPES = {column.name: column.type for column in columns.MESSAGE_COLUMNS}


def _shown(vendor: str) -> str:
    if vendor != "postgresql":
        return _SHOWN
    # PostgreSQL refuses a prepared statement if its result has other types since a migration. So it always has these.
    return ", ".join(
        column if name == "redacted_at" else f"{column}::{'bigint' if _TYPES[name] == 'int' else _TYPES[name]}"
        for name, column in zip(PLACED_NAMES, _SHOWN.split(", "), strict=True)
    )


def _null(vendor: str, name: str) -> str:
    # MariaDB turns the numbers of a UNION into decimals if another part has a plain NULL in their place.
    return "CAST(NULL AS SIGNED)" if vendor == "mysql" and _TYPES[name].endswith("int") else "NULL"


def load(vendor: str, name: SessionName, view: View, session_id: int | None = None) -> tuple[str, dict[str, Any]]:
    """Return the SELECT of a session as it is at one moment: one row for the session, and the messages of ``view``.

    The session's row has no position. Its column ``AT_SESSION`` is a JSON array of the values in ``_SESSION``. Its
    column ``AT_SUMMARY`` is a JSON array of those in ``_SUMMARY``, or NULL. The messages are at least those within
    :func:`.values.view_bound`, with the pinned ones among them. If the view has limits of messages and of tokens, the
    limit of messages counts.

    With ``session_id`` the messages are those of that session, so that one partition is planned. They belong to the
    session's row only if this has the same id.
    """
    messages, tokens, by_id = view.messages is not None, view.tokens is not None, session_id is not None
    text = _load(vendor, messages=messages, tokens=tokens, summary=view.summary, by_id=by_id)
    params: dict[str, Any] = {"name_hash": name.name_hash}
    if by_id:
        params["session_id"] = session_id
    bound = view.messages if messages else view.tokens
    if bound is not None:
        params["bound"] = min(bound, _LARGEST)
    # Django finds SQLite's named parameters faster than positional ones.
    return text, params


def placed(session_id: int, positions: Sequence[int]) -> tuple[str, list[Any]]:
    """Return the SELECT of the messages at ``positions``, each with the session's epoch before it.

    If there are none of these messages, the session's epoch comes in a row by itself.
    """
    places = ", ".join(["%s"] * len(positions))
    return (
        f"SELECT s.epoch, {_SHOWN} FROM {SESSION} s "
        f"LEFT JOIN {MESSAGE} m ON m.session_id = s.id AND m.position IN ({places}) WHERE s.id = %s"
    ), [*positions, session_id]
