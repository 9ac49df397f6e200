"""Conversations from other systems and to them, as records.

A record is a session as JSON::

    {"key": "main", "messages": [{"role": "user", "content": "What is Rust?"}, …],
     "owner": "anna", "title": "Rust", "metadata": {…}, "created_at": "2024-05-01T10:00:00+00:00",
     "notes": {"2": {"kind": "plan", "metadata": {…}, "created_at": "…", "redacted": true}}}

``messages`` are in chat-completions form; all but it and ``key`` may be left out. ``owner`` is what the user logs in
with; ``visitor`` stands in its place for somebody who does not, and neither for nobody. ``created_at`` is said of every
message, and ``notes`` of the message at a position, the first being 1. A file holds a record a line, or a list of them.

Summaries are no part of it, nor is what a provider reported as usage; a message that was redacted is an empty one, and
noted to be so.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django_convmemory.exceptions import ConvMemoryError, InvalidMessage
from django_convmemory.messages import ChatMessage, check_text, freeze

FIELDS = ("key", "messages", "owner", "visitor", "title", "metadata", "created_at", "notes")
NOTE_FIELDS = ("kind", "metadata", "created_at", "redacted")

_MAX_TITLE = 255


class BadRecord(ConvMemoryError, ValueError):
    """A record cannot be imported. Its text begins with the place in the file: ``line 3`` or ``item 3``."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")


class Said(NamedTuple):
    """A message, and when it was said; None where that is not known. ``redacted``: it was emptied."""

    message: ChatMessage
    created_at: dt.datetime | None
    redacted: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A session as a file has it, and where in the file."""

    place: str
    key: str
    said: Sequence[Said]
    owner: str | None = None
    visitor: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] | None = None


def parse(place: str, value: Any) -> Record:
    """Return the record that ``value`` is. Raises ValueError."""
    if not isinstance(value, dict):
        raise BadRecord(place, f"a record is an object with a key and messages, not {_kind(value)}.")
    _check_fields(value, FIELDS, "the record")
    for field in ("key", "messages"):
        if field not in value:
            raise BadRecord(place, f"the record has no {field!r}. Add it.")
    texts = {
        field: check_text(_typed(value[field], str, field), field)
        for field in ("key", "owner", "visitor", "title")
        if field in value
    }
    if "owner" in texts and "visitor" in texts:
        raise BadRecord(place, "a session belongs to an owner or to a visitor. Remove one of them.")
    if len(texts.get("title", "")) > _MAX_TITLE:
        raise BadRecord(place, f"the title has more than {_MAX_TITLE} characters. Shorten it.")
    metadata = _typed(value["metadata"], dict, "metadata") if "metadata" in value else None
    if metadata is not None:
        freeze(metadata, "metadata")
    messages, notes = _typed(value["messages"], list, "messages"), _typed(value.get("notes", {}), dict, "notes")
    for position in notes:
        if not re.fullmatch("[1-9][0-9]{0,9}", position) or int(position) > len(messages):
            raise BadRecord(
                place,
                f"notes are on position {position!r:.100}, and there are 1 to {len(messages)}. Correct or remove it.",
            )
    common = _time(value["created_at"], "created_at") if "created_at" in value else None
    said = [
        _said(message, notes.get(str(position), {}), position, common) for position, message in enumerate(messages, 1)
    ]
    return Record(place=place, said=said, metadata=metadata, **texts)


def _said(message: Any, note: Any, position: int, created_at: dt.datetime | None) -> Said:
    where = f"the note on position {position}"
    noted = dict(_typed(note, dict, where))
    _check_fields(noted, NOTE_FIELDS, where)
    if "created_at" in noted:
        created_at = _time(noted.pop("created_at"), f"created_at of {where}")
    redacted = noted.pop("redacted", False)
    if not isinstance(redacted, bool):
        raise ValueError(f"redacted of {where} must be true or false, not {_kind(redacted)}. Correct or remove it.")
    try:
        said = ChatMessage.from_openai(message, **noted)
        return Said(said.emptied() if redacted else said, created_at, redacted)
    except InvalidMessage as error:
        raise ValueError(f"message {position}: {error}") from None


def _check_fields(value: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for field in value:
        if field not in known:
            raise ValueError(f"{where} has the unknown field {field!r:.100}. Remove it; there are {', '.join(known)}.")


def _typed(value: Any, kind: type[str | dict[str, Any] | list[Any]], where: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(
            f"{where} must be {_kind(kind())}, not {_kind(value)}. Correct it; what is optional may be left out."
        )
    return value


def _kind(value: Any) -> str:
    kinds = {str: "a text", dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _time(value: Any, where: str) -> dt.datetime:
    """Return a time in UTC: some of the databases' drivers leave out the zone."""
    try:
        moment = dt.datetime.fromisoformat(_typed(value, str, where))
        if moment.utcoffset() is not None and 1000 < moment.year < 9999:
            return moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"{where} is {value!r:.100}. Write a time with its zone in ISO 8601, like 2024-05-01T10:00:00+00:00."
    )
