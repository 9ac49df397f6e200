"""Conversations from other systems and to them, as records.

A record is a session as JSON::

    {"key": "main", "messages": [{"role": "user", "content": "What is Rust?"}, …],
     "owner": "anna", "title": "Rust", "metadata": {…}, "created_at": "2024-05-01T10:00:00+00:00",
     "notes": {"2": {"kind": "plan", "metadata": {…}, "created_at": "…"}}}

``messages`` are in chat-completions form; all but it and ``key`` may be left out. ``owner`` is what the user logs in
with; ``visitor`` stands in its place for somebody who does not, and neither for nobody. ``created_at`` is said of every
message, and ``notes`` of the message at a position, the first being 1. A file holds a record a line, or a list of them.

Summaries are no part of it, nor is what a provider reported as usage; a message that was redacted is an empty one.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, TextIO

from django.contrib.auth import get_user_model
from django.core.exceptions import MultipleObjectsReturned, ObjectDoesNotExist, ValidationError
from django.db import DatabaseError, connections
from django.utils import timezone

from django_convmemory import models, strategies
from django_convmemory.conversation import ConversationMemory
from django_convmemory.exceptions import ConvMemoryError, InvalidMessage, InvalidSession, SessionContended
from django_convmemory.handles import SessionHandle
from django_convmemory.messages import ChatMessage, check_text, dumps, freeze
from django_convmemory.schedulers import NullScheduler
from django_convmemory.stores import sql, transactions
from django_convmemory.stores.orm import ORMStore

FIELDS = ("key", "messages", "owner", "visitor", "title", "metadata", "created_at", "notes")
NOTE_FIELDS = ("kind", "metadata", "created_at")

# Messages that are stored, or read, together.
_BATCH = 1000
# Characters that are read of a list at least.
_CHUNK = 64 * 1024
# Bytes of a session that are held in memory while it is written; what is more goes through a file.
_IN_MEMORY = 1024 * 1024
_MAX_TITLE = 255


class BadRecord(ConvMemoryError, ValueError):
    """A record cannot be imported. Its text begins with the place in the file: ``line 3`` or ``item 3``."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")


class Said(NamedTuple):
    """A message, and when it was said; None where that is not known."""

    message: ChatMessage
    created_at: dt.datetime | None


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


# Reading.


def read(file: TextIO) -> Iterator[Record]:
    """Yield the records of a file, one after the other: JSON, one a line or in a list.

    The file is UTF-8, opened with ``errors="surrogateescape"``, so that what is not can be told by its place.
    Raises :class:`BadRecord`.
    """
    for place, value in _values(file):
        try:
            record = _record(place, value)
        except BadRecord:
            raise
        except ValueError as error:
            raise BadRecord(place, str(error)) from None
        yield record


def _values(file: TextIO) -> Iterator[tuple[str, Any]]:
    """Yield the JSON values of a file, each with its place."""
    begin, first = 1, file.read(1)
    while first and first.isspace():
        begin += first == "\n"
        first = file.read(1)
    if first == "[":
        yield from _items(file)
        return
    for number, line in enumerate(itertools.chain([first + file.readline()], file), begin):
        if line.strip():
            place = f"line {number}"
            _check_encoding(place, line)
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _no_json(place, error) from None
            yield place, value


def _items(file: TextIO) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list whose opening bracket was read."""
    ahead = _Ahead(file)
    for number in itertools.count(1):
        place = f"item {number}"
        if number == 1 and ahead.take("]"):
            break
        yield place, ahead.value(place)
        if ahead.take("]"):
            break
        if not ahead.take(","):
            raise BadRecord(place, "neither a comma nor the end of the list comes after it. Is the file cut off?")
    if ahead.next():
        raise BadRecord(place, "there is text after the end of the list. Give each list in a file of its own.")


class _Ahead:
    """What was read of a list and not used yet: little more than the longest item."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text, self._at = "", 0
        self._decoder = json.JSONDecoder()

    def next(self) -> str:
        """Return the next character that is no white space, or "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or not self._read():
                return self._text[self._at : self._at + 1]

    def take(self, character: str) -> bool:
        """Use the next character, if it is this one."""
        taken = self.next() == character
        self._at += taken
        return taken

    def value(self, place: str) -> Any:
        """Return the next value."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # The value may go on in what was not read yet, unless it is wrong long before: a text without an end is
                # reported where it begins, anything else where it ends.
                cut_off = error.pos >= len(self._text) - 16 or self._text[error.pos] == '"'
                if not (cut_off and self._read()):
                    raise _no_json(place, error, self._at) from None
            except (ValueError, RecursionError) as error:
                raise _no_json(place, error) from None
            else:
                _check_encoding(place, self._text[self._at : end])
                self._at = end
                return value

    def _read(self) -> bool:
        # As much again as there is: a long item is then parsed few times.
        more = self._file.read(max(_CHUNK, len(self._text) - self._at))
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)


def _check_encoding(place: str, text: str) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise BadRecord(place, "it is not UTF-8. Convert the file, with iconv for example.") from None


def _no_json(place: str, error: Exception, begins: int = 0) -> BadRecord:
    if isinstance(error, RecursionError):
        return BadRecord(place, "it is nested too deep. Flatten it.")
    said = str(error)
    if isinstance(error, json.JSONDecodeError):
        said = f"{error.msg}, at its character {error.pos - begins + 1}"
    return BadRecord(place, f"it is not JSON ({said}). Give one record a line, or one list of records.")


def _record(place: str, value: Any) -> Record:
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
    try:
        return Said(ChatMessage.from_openai(message, **noted), created_at)
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
        if moment.utcoffset() is not None and moment.year > 1000:
            return moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"{where} is {value!r:.100}. Write a time with its zone in ISO 8601, like 2024-05-01T10:00:00+00:00."
    )


# Importing.


def find_owner(name: str, using: str) -> Any:
    """Return the user who logs in as ``name``. Raises :class:`~django_convmemory.exceptions.InvalidSession`."""
    users: Any = get_user_model()._default_manager.db_manager(using)
    try:
        return users.get_by_natural_key(check_text(name, "The owner"))
    except (ObjectDoesNotExist, MultipleObjectsReturned, ValidationError, ValueError):
        raise InvalidSession(
            f"There is no user {name!r:.100}. An owner is named as at login; create the user, or correct the name."
        ) from None


class Folding(NamedTuple):
    """What is expected of a model: calls, and the tokens that are folded by them."""

    calls: int
    tokens: int


class Importer:
    """Stores records as sessions of a memory, on the database ``using``.

    No task is sent: a session is marked due in its row, and the sweep feeds it to the workers. Without ``compact`` it
    is not even marked, and stays as it is until its next append.
    """

    def __init__(self, memory: ConversationMemory, using: str, *, compact: bool = True) -> None:
        self.using = using
        self.memory = copy.copy(memory)
        self.memory.store = ORMStore(using)
        self.memory.scheduler = NullScheduler()
        if not compact:
            # The strategy with a threshold that nothing exceeds.
            self.memory.strategy = strategies.Buffer()

    def add(self, record: Record) -> int:
        """Store the session whole, and return how many messages it has; 0 where one is there already.

        That is one with messages. So a second run goes on where the first one ended. Raises :class:`BadRecord`.
        """
        session = self._session(record)
        if not record.said or self._is_there(session):
            return 0
        try:
            return self._add(session, record, _BATCH)
        except InvalidMessage:
            # Again, one after the other, to find out which one it is.
            return self._add(session, record, 1)

    def _add(self, session: SessionHandle, record: Record, size: int) -> int:
        def work() -> int:
            position = 1
            for created_at, messages in _batches(record.said, size):
                try:
                    receipt = self.memory.append(session, *messages, created_at=created_at)
                except InvalidMessage as error:
                    if size > 1:
                        raise
                    raise BadRecord(record.place, f"message {position}: {error}") from None
                if receipt.first_position != position:
                    # Somebody else has made the session since it was looked for.
                    raise _IsThere
                position += len(messages)
            rows = models.Session.objects.using(self.using).named(session.session_name)
            given = {"title": record.title, "metadata": record.metadata}
            if changes := {column: value for column, value in given.items() if value is not None}:
                rows.update(**changes)
            return position - 1

        try:
            return transactions.run(self.using, work, savepoint=True)
        except _IsThere:
            return 0
        except (InvalidSession, SessionContended) as error:
            raise BadRecord(record.place, str(error)) from None
        except DatabaseError as error:
            raise BadRecord(
                record.place, f"the database failed it ({type(error).__name__}: {error}). See to what that names."
            ) from error

    def expect(self, record: Record) -> Folding:
        """Return what folding the session will take once it is stored. Raises :class:`BadRecord`."""
        memory = self.memory
        if not memory.summarizes or self._is_there(self._session(record)):
            return Folding(0, 0)
        messages = [said.message for said in record.said if not said.message.pinned]
        tokens = [max(1, memory.counter.count(message)) for message in messages]
        threshold = memory.strategy.threshold
        if not threshold.exceeded(tokens=sum(tokens), messages=len(tokens), settled=len(tokens) > 1):
            return Folding(0, 0)
        # As if every message were an exchange: those of tool calls move it by little.
        folded = sum(tokens[: memory.strategy.plan(tokens, range(len(tokens)))])
        chunk = memory.options.max_chunk_tokens or max(8000, threshold.tokens or 0)
        return Folding(-(-folded // chunk), folded)

    def _session(self, record: Record) -> SessionHandle:
        try:
            if record.owner is not None:
                return self.memory.session(record.key, owner=find_owner(record.owner, self.using))
            if record.visitor is not None:
                return self.memory.session(record.key, visitor=record.visitor)
            return self.memory.session(record.key)
        except InvalidSession as error:
            raise BadRecord(record.place, str(error)) from None

    def _is_there(self, session: SessionHandle) -> bool:
        rows = models.Session.objects.using(self.using).named(session.session_name)
        return rows.filter(last_position__gt=0).exists()


class _IsThere(Exception):
    pass


def _batches(said: Iterable[Said], size: int) -> Iterator[tuple[dt.datetime | None, list[ChatMessage]]]:
    """Yield the messages in batches of at most ``size``, each of one time."""
    for created_at, together in itertools.groupby(said, key=lambda one: one.created_at):
        while batch := [one.message for one in itertools.islice(together, size)]:
            yield created_at, batch


# Writing.


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
    """Hand the session's record to ``out``, a line in pieces, and return how many messages it has.

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
            out(_json(fields)[:-1] + ',"messages":[')
            _copy(messages, out)
            out("]")
            if script.notes:
                out(',"notes":{')
                _copy(notes, out)
                out("}")
            out("}\n")
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
    script, epochs = _Script(), set()
    for position, role, kind, content, wire, metadata, created_at, epoch in _rows(session_id, using):
        epochs.add(epoch)
        if len(epochs) > 1:
            raise _Changed
        message, moment = sql.message_of(role, kind, content, wire, metadata), _utc(created_at, using)
        script.created_at = script.created_at or moment
        note: dict[str, Any] = {}
        if message.kind != "chat":
            note["kind"] = message.kind
        if message.metadata:
            note["metadata"] = message.metadata
        if moment != script.created_at:
            note["created_at"] = moment
        if note:
            notes.write(("," if script.notes else "") + f'"{position}":{_json(note)}')
            script.notes += 1
        messages.write(("," if script.messages else "") + _json(message.to_openai()))
        script.messages += 1
    return script


def _rows(session_id: int, using: str) -> Iterator[tuple[Any, ...]]:
    rows = models.Message.objects.using(using).filter(session_id=session_id).order_by("session_id", "position")
    columns = ("position", "role", "kind", "content", "wire", "metadata", "created_at", "session__epoch")
    last = 0
    while page := list(rows.filter(position__gt=last).values_list(*columns)[:_BATCH]):
        yield from page
        last = page[-1][0]


# Ends of lines to Unicode, which JSON does not escape: a record stays on its line wherever it is read.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def _json(value: Any) -> str:
    text = dumps(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def _utc(moment: dt.datetime, using: str) -> str:
    if moment.tzinfo is None:
        # Without USE_TZ a row's time is read as it is stored: in UTC, but where the database knows zones.
        zone = timezone.get_default_timezone() if connections[using].vendor == "postgresql" else dt.UTC
        moment = moment.replace(tzinfo=zone)
    return moment.astimezone(dt.UTC).isoformat()


def _spool() -> IO[str]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="\n")


def _copy(spool: IO[str], out: Callable[[str], object]) -> None:
    spool.seek(0)
    while piece := spool.read(_CHUNK):
        out(piece)
