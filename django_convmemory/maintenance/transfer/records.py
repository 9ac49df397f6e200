"""Records: sessions as JSON, for import from other systems and export to them, and how a file of them is read.

A record is an object like this::

    {"key": "main", "messages": [{"role": "user", "content": "What is Rust?"}, …],
     "owner": "anna", "title": "Rust", "metadata": {…}, "created_at": "2024-05-01T10:00:00+00:00",
     "archived_at": "…", "starred_at": "…",
     "notes": {"2": {"kind": "plan", "metadata": {…}, "created_at": "…", "redacted": true,
                     "format": "responses", "item": {…}, "reply_to": 1, "cut_off": ""}},
     "ids": ["018f…", …],
     "used_keys": [{"key_hash": "…", "first_position": 1, "size": 1, "content": "…", "gone_at": "…"}]}

- ``key`` and ``messages`` are required. Messages are in chat-completions form.
- ``owner`` is what the user logs in with. A visitor's session has ``visitor`` instead, and nobody's session neither.
- ``created_at`` is the time of every message whose note has no other time.
- ``archived_at`` and ``starred_at`` are the times when the session was archived and starred.
- ``notes`` are keyed by the positions of messages. The first position is 1. ``item`` is the item of another framework
  for which the message stands, and ``format`` the name of its form. ``reply_to`` and ``cut_off`` are those of a message
  of a turn: see :class:`~django_convmemory.rules.values.StoredMessage`.
- ``ids`` has the id of each message. Without it, the messages get new ids.
- ``used_keys`` are the idempotency keys that have stored messages: the columns of
  :class:`~django_convmemory.models.UsedKey`. A retry is recognized on a site with the same ``SECRET_KEY``, and refused
  on others.

A file holds one record a line.

A record has no summaries and no usage that a provider reported. A redacted message is empty, and its note says
``redacted``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from django_convmemory.context.wire import forms
from django_convmemory.exceptions import ConvMemoryError, InvalidMessage
from django_convmemory.messages import ChatMessage, check_text, freeze

FIELDS = (
    *("key", "messages", "owner", "visitor", "title", "metadata", "created_at", "archived_at", "starred_at"),
    *("notes", "ids", "used_keys"),
)
NOTE_FIELDS = ("kind", "metadata", "created_at", "redacted", "format", "item", "reply_to", "cut_off")

# The longest line that is read without being asked to, in MB, and the characters of one.
MAX_LINE = 64
MB = 1_000_000

CUT_OFF = (None, "", "length", "stopped", "lost")

_MAX_TITLE = 255


class BadRecord(ConvMemoryError, ValueError):
    """A record that cannot be imported. The text begins with its place in the file: ``line 3``."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")


class RecordedMessage(NamedTuple):
    """A message, and its time, or None if that is not known. ``redacted`` says that it was redacted.

    ``reply_to`` and ``cut_off`` are those of a message of a turn.
    """

    message: ChatMessage
    created_at: dt.datetime | None
    redacted: bool = False
    reply_to: int | None = None
    cut_off: str | None = None


class RecordedKey(NamedTuple):
    """A used idempotency key. Its fields are the columns of :class:`~django_convmemory.models.UsedKey`."""

    key_hash: str
    first_position: int
    size: int
    content: str = ""
    gone_at: dt.datetime | None = None


class Record(NamedTuple):
    """A session of a file. ``place`` is its place in the file."""

    place: str
    key: str
    messages: Sequence[RecordedMessage]
    owner: str | None = None
    visitor: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    archived_at: dt.datetime | None = None
    starred_at: dt.datetime | None = None
    ids: Sequence[uuid.UUID] | None = None
    used_keys: Sequence[RecordedKey] = ()


# A file of records.


def read(file: TextIO, longest: int = MAX_LINE * MB) -> Iterator[Record]:
    """Yield the records of a file. They are JSON, one a line.

    A record of more than ``longest`` characters is refused before the rest of it is read.

    The file is opened as UTF-8 with ``errors="surrogateescape"``, so that an error can name the place of other bytes.
    Raises :class:`BadRecord`.
    """
    for number, line in enumerate(iter(lambda: file.readline(longest + 1), ""), 1):
        if line.strip():
            place = f"line {number}"
            try:
                record = parse(place, _value(line, longest))
            except ValueError as error:
                raise BadRecord(place, str(error)) from None
            yield record


def _value(line: str, longest: int) -> Any:
    """Return the JSON value of a line. Raises ValueError."""
    if len(line) > longest and not line.endswith("\n"):
        raise ValueError(
            f"this is longer than {longest // MB} MB, and reading it takes up to four times as much memory. If there "
            "is enough, give a greater --max-line-size. Otherwise make two records of it, with different keys."
        )
    if line.startswith("SQLite format 3\0"):
        raise ValueError("this is a SQLite database, not JSON: docs/guides/moving.md has a script.")
    try:
        line.isascii() or line.encode()
        return json.loads(line)
    except UnicodeEncodeError:
        raise ValueError("this is not UTF-8. Convert the file, with iconv for example.") from None
    except RecursionError:
        raise ValueError("this is nested too deeply. Flatten it.") from None
    except ValueError as error:
        raise ValueError(f"this is not JSON ({error}). Write one record a line.") from None


# A record.


def parse(place: str, value: Any) -> Record:
    """Return ``value``, decoded JSON, as a record. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(
            f"a record is an object with a key and messages, not {_type_name(value)}. Write one record a line."
        )
    _check_fields(value, FIELDS, "the record")
    for field in ("key", "messages"):
        if field not in value:
            raise ValueError(f"the record has no {field!r}. Add it.")
    given = [field for field in ("key", "owner", "visitor", "title") if field in value]
    texts: dict[str, Any] = {field: check_text(_typed(value[field], str, field), field) for field in given}
    if "owner" in texts and "visitor" in texts:
        raise ValueError("a session belongs to an owner or to a visitor. Remove one of them.")
    if len(texts.get("title", "")) > _MAX_TITLE:
        raise ValueError(f"the title has more than {_MAX_TITLE} characters. Shorten it.")
    metadata = _typed(value["metadata"], dict, "metadata") if "metadata" in value else None
    if metadata is not None:
        freeze(metadata, "metadata")
    messages, notes = _typed(value["messages"], list, "messages"), _typed(value.get("notes", {}), dict, "notes")
    for position in notes:
        if not re.fullmatch("[1-9][0-9]{0,9}", position) or int(position) > len(messages):
            raise ValueError(
                f"there is a note on position {position!r:.100}, but positions are 1 to {len(messages)}. "
                "Correct or remove it."
            )
    given = [field for field in ("created_at", "archived_at", "starred_at") if field in value]
    times: dict[str, Any] = {field: _time(value[field], field) for field in given}
    created_at = times.pop("created_at", None)
    numbered = enumerate(messages, 1)
    recorded = [_message(message, notes.get(str(number), {}), number, created_at) for number, message in numbered]
    ids = _ids(value["ids"], len(messages)) if "ids" in value else None
    keys = _used_keys(value.get("used_keys", []), [message.message.role for message in recorded])
    return Record(place=place, messages=recorded, metadata=metadata, ids=ids, used_keys=keys, **texts, **times)


def _ids(value: Any, count: int) -> list[uuid.UUID]:
    """Return the ids of ``count`` messages."""
    try:
        ids = [uuid.UUID(_typed(text, str, "an id")) for text in _typed(value, list, "ids")]
    except ValueError as error:
        raise ValueError(f"ids has a text that is no UUID ({error}). Correct it, or remove ids.") from None
    if not len(set(ids)) == len(ids) == count:
        raise ValueError(
            f"ids has {len(set(ids))} different ids for {count} messages. Give each message one, or remove ids."
        )
    return ids


def _used_keys(value: Any, roles: Sequence[str]) -> list[RecordedKey]:
    """Return the used keys of a session whose messages have these roles."""
    items = enumerate(_typed(value, list, "used_keys"), 1)
    keys = [_used_key(item, len(roles), f"used key {number}") for number, item in items]
    if len({key.key_hash for key in keys}) < len(keys):
        raise ValueError("used_keys has a key_hash twice. Remove one of them.")
    end = 0
    current = [key for key in keys if key.gone_at is None]
    for key in sorted(current, key=lambda key: (key.first_position, -key.size)):
        shared = roles[key.first_position - 1 : end]
        # The key of an answer has the place of its question, which may have been stored with a key.
        is_answers = key.size == 1 and shared[:1] == ["user"] and shared.count("user") == 1
        if shared and not is_answers:
            raise ValueError(
                "used_keys has two keys for one message. Correct their positions and sizes, or remove one."
            )
        end = max(end, key.first_position + key.size - 1)
    return keys


def _used_key(item: Any, last: int, where: str) -> RecordedKey:
    fields = dict(_typed(item, dict, where))
    _check_fields(fields, RecordedKey._fields, where)
    for name in ("key_hash", *(["content"] if "content" in fields else [])):
        if not re.fullmatch("[0-9a-f]{64}", _typed(fields.get(name), str, f"{name} of {where}")):
            raise ValueError(f"{name} of {where} must have 64 hex digits. Correct it, or remove the key.")
    gone_at = _time(fields["gone_at"], f"gone_at of {where}") if "gone_at" in fields else None
    first, size = fields.get("first_position", 0), fields.get("size", 0)
    is_range = all(type(number) is int and 0 < number < 2**31 for number in (first, size))
    # The messages of a key that is gone need not be there.
    if not is_range or (gone_at is None and first + size - 1 > last):
        raise ValueError(f"{where} is not of messages that are there. Correct first_position and size, or remove it.")
    return RecordedKey(fields["key_hash"], first, size, fields.get("content", ""), gone_at)


def _message(wire: Any, note: Any, position: int, created_at: dt.datetime | None) -> RecordedMessage:
    where = f"the note on position {position}"
    fields = dict(_typed(note, dict, where))
    _check_fields(fields, NOTE_FIELDS, where)
    if "created_at" in fields:
        created_at = _time(fields.pop("created_at"), f"created_at of {where}")
    reply_to, cut_off = fields.pop("reply_to", None), fields.pop("cut_off", None)
    if reply_to is not None and not (type(reply_to) is int and 0 < reply_to < position):
        raise ValueError(f"reply_to of {where} must be an earlier position. Correct or remove it.")
    if cut_off not in CUT_OFF:
        raise ValueError(f"cut_off of {where} must be one of {CUT_OFF[1:]}. Correct or remove it.")
    redacted = fields.pop("redacted", False)
    if not isinstance(redacted, bool):
        raise ValueError(
            f"redacted of {where} must be true or false, not {_type_name(redacted)}. Correct or remove it."
        )
    try:
        message, *others = forms.chat_messages([ChatMessage.from_openai(wire, **fields)])
        if others:
            raise InvalidMessage("It has results of tools in Anthropic's form. Write a tool message for each of them.")
        return RecordedMessage(message.emptied() if redacted else message, created_at, redacted, reply_to, cut_off)
    except InvalidMessage as error:
        raise ValueError(f"message {position}: {error}") from None


def _check_fields(value: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for field in value:
        if field not in known:
            raise ValueError(
                f"{where} has the unknown field {field!r:.100}. Remove it. The known fields are {', '.join(known)}."
            )


def _typed(value: Any, required: type[str | dict[str, Any] | list[Any]], where: str) -> Any:
    if not isinstance(value, required):
        raise ValueError(
            f"{where} must be {_type_name(required())}, not {_type_name(value)}. Correct it, or leave it out if it is "
            "optional."
        )
    return value


def _type_name(value: Any) -> str:
    names = {str: "a string", dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _time(value: Any, where: str) -> dt.datetime:
    # In UTC, because some database drivers drop the zone.
    with contextlib.suppress(ValueError, OverflowError):
        time = dt.datetime.fromisoformat(_typed(value, str, where))
        if time.utcoffset() is not None and 1000 < time.year < 9999:
            return time.astimezone(dt.UTC)
    raise ValueError(
        f"{where} is {value!r:.100}. Write a time with its zone in ISO 8601, like 2024-05-01T10:00:00+00:00."
    )
