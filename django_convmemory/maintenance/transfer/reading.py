"""Reading records from a file, one after the other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, TextIO

from django_convmemory.maintenance.transfer import records
from django_convmemory.maintenance.transfer.records import BadRecord, Record

# Characters that are read of a list at least.
_CHUNK = 64 * 1024


def read(file: TextIO) -> Iterator[Record]:
    """Yield the records of a file, one after the other: JSON, one a line or in a list.

    The file is UTF-8, opened with ``errors="surrogateescape"``, so that what is not can be told by its place.
    Raises :class:`BadRecord`.
    """
    for place, value in _values(file):
        try:
            record = records.parse(place, value)
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
                value = json.loads(line, object_pairs_hook=_object)
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
        self._decoder = json.JSONDecoder(object_pairs_hook=_object)

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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.100} stands in one object twice")
    return value


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
