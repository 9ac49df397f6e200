"""Reads records from a file, one after the other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, TextIO

from django_convmemory.maintenance.transfer import records
from django_convmemory.maintenance.transfer.records import BadRecord, Record

# The least number of characters that are read from a list at once.
_CHUNK = 64 * 1024


def read(file: TextIO) -> Iterator[Record]:
    """Yield the records of a file. They are JSON, one a line or all in a list.

    The file is opened as UTF-8 with ``errors="surrogateescape"``, so that an error can name the place of other bytes.
    Raises :class:`BadRecord`.
    """
    for place, value in _values(file):
        try:
            record = records.parse(place, value)
        except ValueError as error:
            raise BadRecord(place, str(error)) from None
        yield record


def _values(file: TextIO) -> Iterator[tuple[str, Any]]:
    """Yield the JSON values of a file, each with its place."""
    first_line, character = 1, file.read(1)
    while character and character.isspace():
        first_line += character == "\n"
        character = file.read(1)
    if character == "[":
        yield from _items(file)
        return
    for number, line in enumerate(itertools.chain([character + file.readline()], file), first_line):
        if line.strip():
            place = f"line {number}"
            if line.startswith("SQLite format 3\0"):
                raise BadRecord(place, "this is a SQLite database, not JSON. docs/moving.md has a script for it.")
            _check_encoding(place, line)
            try:
                value = json.loads(line, object_pairs_hook=_object)
            except (ValueError, RecursionError) as error:
                raise _invalid(place, error) from None
            yield place, value


def _items(file: TextIO) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list, after its opening bracket."""
    buffer = _Buffer(file)
    for number in itertools.count(1):
        place = f"item {number}"
        if number == 1 and buffer.take("]"):
            break
        yield place, buffer.value(place)
        if buffer.take("]"):
            break
        if not buffer.take(","):
            raise BadRecord(place, "neither a comma nor the end of the list follows this item. Is the file cut off?")
    if buffer.next():
        raise BadRecord(place, "there is text after the end of the list. Put each list in a separate file.")


class _Buffer:
    """The text of a list that was read but not used yet. It grows to little more than the longest item."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text, self._at = "", 0
        self._decoder = json.JSONDecoder(object_pairs_hook=_object)

    def next(self) -> str:
        """Return the next character that is not white space, or "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or not self._read():
                return self._text[self._at : self._at + 1]

    def take(self, character: str) -> bool:
        """If the next character is ``character``, use it and return True."""
        is_next = self.next() == character
        self._at += is_next
        return is_next

    def value(self, place: str) -> Any:
        """Use and return the next value."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # If the error is near the end, the value may continue in text that was not read yet. The error of a
                # string without an end is where the string begins.
                may_continue = error.pos >= len(self._text) - 16 or self._text[error.pos] == '"'
                if not (may_continue and self._read()):
                    raise _invalid(place, error, self._at) from None
            except (ValueError, RecursionError) as error:
                raise _invalid(place, error) from None
            else:
                _check_encoding(place, self._text[self._at : end])
                self._at = end
                return value

    def _read(self) -> bool:
        # The text doubles, so that a long item is parsed few times.
        more = self._file.read(max(_CHUNK, len(self._text) - self._at))
        self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {twice!r:.100} twice")
    return value


def _check_encoding(place: str, text: str) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise BadRecord(place, "this is not UTF-8. Convert the file, with iconv for example.") from None


def _invalid(place: str, error: Exception, start: int = 0) -> BadRecord:
    if isinstance(error, RecursionError):
        return BadRecord(place, "this is nested too deeply. Flatten it.")
    reason = str(error)
    if isinstance(error, json.JSONDecodeError):
        reason = f"{error.msg}, at its character {error.pos - start + 1}"
    return BadRecord(place, f"this is not JSON ({reason}). Write one record a line, or one list of records.")
