"""Writes sessions as records."""

from __future__ import annotations

import contextlib
import functools
import operator
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from typing import IO, Any

from django.contrib.auth import get_user_model
from django.db.models import F

from django_convmemory import clock, models
from django_convmemory.maintenance.paging import paged
from django_convmemory.messages import CHAT, dumps
from django_convmemory.store import columns

# The number of sessions, or of messages, that are read at once.
_BATCH = 1000
# Bytes of each part of a session that are held in memory while it is written. A longer part goes through a file.
_IN_MEMORY = 256 * 1024
# Characters that are copied from that file at once.
_CHUNK = 64 * 1024


def records(sessions: models.SessionQuerySet, exported: Counter[str] | None = None) -> Iterator[str]:
    """Yield the records of ``sessions`` in pieces, in the order of their ids.

    ``exported`` counts the sessions and the messages that were yielded.
    """
    rows = sessions.order_by("pk").annotate(login=F(f"owner__{get_user_model().USERNAME_FIELD}"))
    names = ("pk", "key", "login", "visitor", "title", "metadata", "archived_at", "starred_at")
    for row in paged(rows.values_list(*names, named=True), "pk", operator.attrgetter("pk"), size=_BATCH):
        messages = yield from _pieces(row, sessions.db)
        if messages and exported is not None:
            exported.update(sessions=1, messages=messages)


def _pieces(row: Any, using: str) -> Generator[str, None, int]:
    """Yield a session's record, a line in pieces. Return the number of its messages.

    ``row`` is that of the session. A session without messages has no record. Messages are read in batches, and held in
    memory up to a limit.
    """
    while True:
        with contextlib.ExitStack() as files:
            opened: Any = functools.partial(tempfile.SpooledTemporaryFile, _IN_MEMORY, encoding="utf-8", newline="\n")
            parts = {name: files.enter_context(opened(mode="w+")) for name in _PARTS}
            transcribed = _transcribe(row.pk, using, parts)
            if transcribed is None:
                continue
            messages, created_at = transcribed
            if messages:
                fields = _given(
                    key=row.key,
                    owner=None if row.login is None else str(row.login),
                    visitor=row.visitor or None,
                    title=row.title or None,
                    metadata=row.metadata or None,
                    archived_at=row.archived_at and clock.aware(row.archived_at, using).isoformat(),
                    starred_at=row.starred_at and clock.aware(row.starred_at, using).isoformat(),
                    created_at=created_at,
                )
                yield _json(fields)[:-1]
                for name, part in parts.items():
                    yield from _piece_by_piece(name, part)
                yield "}\n"
            return messages


# The lists and objects of a record, with their brackets. Each is written into a file, with a comma before each entry,
# and held in memory up to a limit.
_PARTS = {"messages": "[]", "notes": "{}", "ids": "[]", "used_keys": "[]"}


def _piece_by_piece(name: str, part: IO[str]) -> Iterator[str]:
    """Yield a part of a record. Without entries it is left out."""
    part.seek(0)
    if part.read(1):  # The comma before the first entry.
        yield f',"{name}":{_PARTS[name][0]}'
        while piece := part.read(_CHUNK):
            yield piece
        yield _PARTS[name][1]


def _transcribe(session_id: int, using: str, parts: Mapping[str, IO[str]]) -> tuple[int, str] | None:
    """Write the messages of a session, and what belongs to them. Return their number, and the time of the first one.

    Return None if messages were removed or redacted meanwhile. They have to be read again.
    """
    epochs = models.Session.objects.using(using).filter(pk=session_id).values_list("epoch", flat=True)
    epoch = epochs.first()
    count, first_time = 0, ""
    # Before the messages, so that no key is of a message that was appended since.
    used_keys = models.UsedKey.objects.using(using).filter(session_id=session_id).order_by("session_id", "key_hash")
    for key in paged(used_keys, "key_hash", operator.attrgetter("key_hash"), size=_BATCH, after=""):
        fields = _given(
            key_hash=key.key_hash,
            first_position=key.first_position,
            size=key.size,
            content=key.content or None,
            gone_at=key.gone_at and clock.aware(key.gone_at, using).isoformat(),
        )
        parts["used_keys"].write(f",{_json(fields)}")
    rows = models.Message.objects.using(using).filter(session_id=session_id).order_by("session_id", "position")
    names = ("position", "created_at", *columns.ITEM_NAMES, "redacted_at", "public_id", "reply_to", "cut_off")
    values = paged(rows.values_list(*names, *columns.READ_NAMES), "position", operator.itemgetter(0), size=_BATCH)
    for position, created_at, form, item, redacted_at, public_id, reply_to, cut_off, *stored in values:
        message = columns.with_item(columns.message_of(*stored), form, item)
        time = clock.aware(created_at, using).isoformat()
        count += 1
        first_time = first_time or time
        note = _given(
            kind=None if message.kind == "chat" else message.kind,
            metadata=message.metadata or None,
            format=None if message.format == CHAT else message.format,
            item=message.item,
            # Without the time if it is that of the first message.
            created_at=None if time == first_time else time,
            redacted=True if redacted_at is not None else None,
            reply_to=reply_to,
            cut_off=cut_off,
        )
        if note:
            parts["notes"].write(f',"{position}":{_json(note)}')
        parts["messages"].write(f",{_json(message.as_stored())}")
        parts["ids"].write(f',"{public_id}"')
    return (count, first_time) if epochs.first() == epoch else None


def _given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


# JSON does not escape the characters that end a line in Unicode. Escaped, a record is one line for every reader. JSON
# does not escape the other control characters from 0x80 on either, and some of them begin a terminal's commands.
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x80, 0xA0), 0x2028, 0x2029)}


def _json(value: Any) -> str:
    text = dumps(value)
    return text if text.isascii() else text.translate(_ESCAPED)
