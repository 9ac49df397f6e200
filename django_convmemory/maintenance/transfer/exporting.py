"""Writes sessions as records."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import operator
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

from django.contrib.auth import get_user_model

from django_convmemory import clock, models
from django_convmemory.maintenance.paging import paged
from django_convmemory.messages import CHAT, ChatMessage, dumps
from django_convmemory.store import columns

# The number of sessions, or of messages, that are read at once.
_BATCH = 1000
# Bytes of each part of a session that are held in memory while it is written. A longer part goes through a file.
_IN_MEMORY = 256 * 1024
# Characters that are copied from that file at once.
_CHUNK = 64 * 1024


class Head(NamedTuple):
    """What a record says about a session, besides its messages."""

    session_id: int
    key: str
    owner: Any
    visitor: str
    title: str
    metadata: Any
    archived_at: dt.datetime | None
    starred_at: dt.datetime | None


def heads(sessions: models.SessionQuerySet) -> Iterator[Head]:
    """Yield the heads of ``sessions``, in the order of their ids."""
    owner = f"owner__{get_user_model().USERNAME_FIELD}"
    columns = ("pk", "key", owner, "visitor", "title", "metadata", "archived_at", "starred_at")
    rows = sessions.order_by("pk").values_list(*columns)
    yield from itertools.starmap(Head, paged(rows, "pk", operator.itemgetter(0), size=_BATCH))


def records(sessions: models.SessionQuerySet) -> Iterator[str]:
    """Yield the records of ``sessions`` in pieces, in the order of their ids."""
    for head in heads(sessions):
        yield from pieces(head, sessions.db)


def write(head: Head, using: str, out: Callable[[str], object]) -> int:
    """Pass the session's record to ``out``, a line in pieces. Return the number of its messages."""
    record = pieces(head, using)
    while True:
        try:
            out(next(record))
        except StopIteration as end:
            return int(end.value)


def pieces(head: Head, using: str) -> Generator[str, None, int]:
    """Yield the session's record, a line in pieces. Return the number of its messages.

    A session without messages has no record. Messages are read in batches, and held in memory up to a limit.
    """
    with closing(_transcribed(head.session_id, using)) as transcript:
        if not transcript.messages.count:
            return 0
        optional = {
            "owner": None if head.owner is None else str(head.owner),
            "visitor": head.visitor or None,
            "title": head.title or None,
            "metadata": head.metadata or None,
            "archived_at": head.archived_at and clock.aware(head.archived_at, using).isoformat(),
            "starred_at": head.starred_at and clock.aware(head.starred_at, using).isoformat(),
        }
        fields = {"key": head.key, **{name: value for name, value in optional.items() if value is not None}}
        yield _json({**fields, "created_at": transcript.created_at})[:-1]
        for name, brackets in (("messages", "[]"), ("notes", "{}"), ("ids", "[]"), ("used_keys", "[]")):
            joined: _Joined = getattr(transcript, name)
            if joined.count:
                yield f',"{name}":{brackets[0]}'
                yield from joined
                yield brackets[1]
        yield "}\n"
        return transcript.messages.count


class _Joined:
    """Texts, joined by commas. They are held in memory up to a limit, and in a file beyond it."""

    def __init__(self) -> None:
        self.count = 0
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="\n")  # noqa: SIM115
        self.close = self._file.close

    def add(self, text: str) -> None:
        self._file.write("," + text if self.count else text)
        self.count += 1

    def __iter__(self) -> Iterator[str]:
        self._file.seek(0)
        while piece := self._file.read(_CHUNK):
            yield piece


@dataclasses.dataclass
class _Transcript:
    """The messages of a session, the notes on them, their ids, the used keys, and the time of the first message."""

    messages: _Joined = dataclasses.field(default_factory=_Joined)
    notes: _Joined = dataclasses.field(default_factory=_Joined)
    ids: _Joined = dataclasses.field(default_factory=_Joined)
    used_keys: _Joined = dataclasses.field(default_factory=_Joined)
    created_at: str = ""

    def close(self) -> None:
        for joined in (self.messages, self.notes, self.ids, self.used_keys):
            joined.close()


def _transcribed(session_id: int, using: str) -> _Transcript:
    """Read the messages of a session, again if messages were removed or redacted meanwhile."""
    while True:
        with ExitStack() as stack:
            transcript = stack.enter_context(closing(_Transcript()))
            if _transcribe(session_id, using, transcript):
                stack.pop_all()
                return transcript


def _transcribe(session_id: int, using: str, transcript: _Transcript) -> bool:
    """Write the messages of a session, and what belongs to them.

    Return False if messages were removed or redacted meanwhile. They have to be read again.
    """
    epochs = models.Session.objects.using(using).filter(pk=session_id).values_list("epoch", flat=True)
    epoch = epochs.first()
    # Before the messages, so that no key is of a message that was appended since.
    for key in _used_keys(session_id, using):
        transcript.used_keys.add(_json(key))
    for position, created_at, form, item, redacted_at, public_id, reply_to, cut_off, *stored in _rows(
        session_id, using
    ):
        message = columns.with_item(columns.message_of_values(stored), form, item)
        time = clock.aware(created_at, using).isoformat()
        transcript.created_at = transcript.created_at or time
        # Without the time if it is that of the first message.
        note = _note(message, None if time == transcript.created_at else time, redacted=redacted_at is not None)
        note |= {name: value for name, value in (("reply_to", reply_to), ("cut_off", cut_off)) if value is not None}
        if note:
            transcript.notes.add(f'"{position}":{_json(note)}')
        transcript.messages.add(_json(message.as_stored()))
        transcript.ids.add(f'"{public_id}"')
    return epochs.first() == epoch


def _note(message: ChatMessage, created_at: str | None, *, redacted: bool) -> dict[str, Any]:
    note: dict[str, Any] = {}
    if message.kind != "chat":
        note["kind"] = message.kind
    if message.metadata:
        note["metadata"] = message.metadata
    if message.format != CHAT:
        note["format"] = message.format
    if message.item is not None:
        note["item"] = message.item
    if created_at is not None:
        note["created_at"] = created_at
    if redacted:
        note["redacted"] = True
    return note


def _rows(session_id: int, using: str) -> Iterator[tuple[Any, ...]]:
    rows = models.Message.objects.using(using).filter(session_id=session_id).order_by("session_id", "position")
    names = ("position", "created_at", *columns.ITEM_NAMES, "redacted_at", "public_id", "reply_to", "cut_off")
    yield from paged(rows.values_list(*names, *columns.READ_NAMES), "position", operator.itemgetter(0), size=_BATCH)


def _used_keys(session_id: int, using: str) -> Iterator[dict[str, Any]]:
    rows = models.UsedKey.objects.using(using).filter(session_id=session_id).order_by("session_id", "key_hash")
    for row in paged(rows, "key_hash", operator.attrgetter("key_hash"), size=_BATCH, after=""):
        fields = {name: getattr(row, name) for name in ("key_hash", "first_position", "size")}
        if row.content:
            fields["content"] = row.content
        if row.gone_at is not None:
            fields["gone_at"] = clock.aware(row.gone_at, using).isoformat()
        yield fields


# JSON does not escape the characters that end a line in Unicode. Escaped, a record is one line for every reader. JSON
# does not escape the other control characters from 0x80 on either, and some of them begin a terminal's commands.
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x80, 0xA0), 0x2028, 0x2029)}


def _json(value: Any) -> str:
    text = dumps(value)
    return text if text.isascii() else text.translate(_ESCAPED)
