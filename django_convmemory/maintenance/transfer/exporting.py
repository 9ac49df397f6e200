"""Writing sessions as records."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Generator, Iterator
from typing import IO, Any, NamedTuple

from django.contrib.auth import get_user_model

from django_convmemory import clock, models
from django_convmemory.messages import dumps
from django_convmemory.stores import columns

# Messages that are read together.
_BATCH = 1000
# Bytes of a session that are held in memory while it is written; what is more goes through a file.
_IN_MEMORY = 1024 * 1024
# Characters of it that are copied at once.
_CHUNK = 64 * 1024


class Head(NamedTuple):
    """What a session is called, and whose it is."""

    session_id: int
    key: str
    owner: Any
    visitor: str
    title: str
    metadata: Any


def heads(sessions: models.SessionQuerySet) -> Iterator[Head]:
    """Yield the heads of ``sessions``, by their ids."""
    owner = f"owner__{get_user_model().USERNAME_FIELD}"
    last = 0
    # Page by page: MariaDB's driver would hold all rows of a query in memory.
    while page := list(
        sessions.filter(pk__gt=last)
        .order_by("pk")
        .values_list("pk", "key", owner, "visitor", "title", "metadata")[:_BATCH]
    ):
        yield from itertools.starmap(Head, page)
        last = page[-1][0]


def write(head: Head, using: str, out: Callable[[str], object]) -> int:
    """Hand the session's record to ``out``, a line in pieces, and return how many messages it has."""
    written = pieces(head, using)
    while True:
        try:
            out(next(written))
        except StopIteration as end:
            return int(end.value)


def pieces(head: Head, using: str) -> Generator[str, None, int]:
    """Yield the session's record, a line in pieces; return how many messages it has.

    A session without messages has no record. It is read message by message, and held in memory up to a size.
    """
    while True:
        with _spool() as messages, _spool() as notes:
            try:
                script = _transcribe(head.session_id, using, messages, notes)
            except _Changed:
                continue
            if not script.messages:
                return 0
            fields: dict[str, Any] = {"key": head.key}
            if head.owner is not None:
                fields["owner"] = str(head.owner)
            if head.visitor:
                fields["visitor"] = head.visitor
            if head.title:
                fields["title"] = head.title
            if head.metadata:
                fields["metadata"] = head.metadata
            fields["created_at"] = script.created_at
            yield _json(fields)[:-1] + ',"messages":['
            yield from _copied(messages)
            yield "]"
            if script.notes:
                yield ',"notes":{'
                yield from _copied(notes)
                yield "}"
            yield "}\n"
            return script.messages


class _Changed(Exception):
    """Messages were removed or changed while they were read: what is there now must be read anew."""


@dataclasses.dataclass(slots=True)
class _Script:
    """What was written of a session: how many messages and notes, and the time that notes tell the difference to."""

    messages: int = 0
    notes: int = 0
    created_at: str = ""


def _transcribe(session_id: int, using: str, messages: IO[str], notes: IO[str]) -> _Script:
    """Write the messages of a session, and what is to be noted of them. Raises :class:`_Changed`."""
    script = _Script()
    rows = models.Session.objects.using(using).filter(pk=session_id).values_list("epoch", flat=True)
    epoch = rows.first()
    for position, *stored, created_at, redacted_at in _rows(session_id, using):
        message, moment = (
            columns.message_of_values(stored),
            clock.aware(created_at, using).isoformat(),
        )
        script.created_at = script.created_at or moment
        note: dict[str, Any] = {}
        if message.kind != "chat":
            note["kind"] = message.kind
        if message.metadata:
            note["metadata"] = message.metadata
        if moment != script.created_at:
            note["created_at"] = moment
        if redacted_at is not None:
            note["redacted"] = True
        if note:
            notes.write(("," if script.notes else "") + f'"{position}":{_json(note)}')
            script.notes += 1
        messages.write(("," if script.messages else "") + _json(message.to_openai()))
        script.messages += 1
    if rows.first() != epoch:
        raise _Changed
    return script


def _rows(session_id: int, using: str) -> Iterator[tuple[Any, ...]]:
    rows = models.Message.objects.using(using).filter(session_id=session_id).order_by("session_id", "position")
    names = ("position", *columns.READ_NAMES, "created_at", "redacted_at")
    last = 0
    while page := list(rows.filter(position__gt=last).values_list(*names)[:_BATCH]):
        yield from page
        last = page[-1][0]


# Ends of lines to Unicode, which JSON does not escape: a record stays on its line wherever it is read.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def _json(value: Any) -> str:
    text = dumps(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def _spool() -> IO[str]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="\n")


def _copied(spool: IO[str]) -> Iterator[str]:
    spool.seek(0)
    while piece := spool.read(_CHUNK):
        yield piece
