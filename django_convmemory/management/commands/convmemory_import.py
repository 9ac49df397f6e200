"""Imports conversations from other systems, or from a file that convmemory_export wrote."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory import conf
from django_convmemory.maintenance.transfer.importing import SAME_NAME, Importer
from django_convmemory.maintenance.transfer.records import MAX_LINE, MB, BadRecord, Record, read
from django_convmemory.management import choices
from django_convmemory.management.output import counted, interruptible, printable


@dataclasses.dataclass(slots=True)
class _Counts:
    """What was done with the records so far. ``messages`` are those of the imported sessions."""

    imported: int = 0
    messages: int = 0
    existing: int = 0
    empty: int = 0

    def __str__(self) -> str:
        imported = f"{counted(self.imported, 'session')} imported with {counted(self.messages, 'message')}"
        skipped = f", {self.empty} without messages skipped" if self.empty else ""
        return f"{imported}, {self.existing} already in the database{skipped}"

    @property
    def before_error(self) -> str:
        """What an error says about the records before it."""
        if not (self.imported or self.existing):
            return "Nothing was imported."
        return (
            f"The sessions before it are imported ({self}). Correct the error and run the command again: it "
            "continues there."
        )


class Command(BaseCommand):
    """``manage.py convmemory_import FILE…``: imports each session as a whole or not at all.

    :mod:`django_convmemory.maintenance.transfer.records` describes a file. Sessions that already have messages are left
    alone. The command sends no tasks: the sessions become due, and the sweep sends them to the workers in portions.

    Exits with 0 if all sessions are in the database. Exits with 1 at a session that cannot be imported: the sessions
    before it stay. Exits with 2 if the command line is invalid.
    """

    help = (
        'Import sessions from JSON files. A file holds one {"key": …, "messages": […]} on each line, or a list of '
        "them. docs/moving.md describes all fields. Sessions that already have messages are left alone, so a second "
        "run continues where the first one stopped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument("files", nargs="+", metavar="FILE", help="A file, or - for standard input.")
        parser.add_argument(
            "--alias",
            default=conf.DEFAULT_ALIAS,
            metavar="ALIAS",
            help="The alias of the memory into which the sessions are imported (default: %(default)s).",
        )
        parser.add_argument(
            "--no-compact", action="store_true", help="Do not fold the imported sessions before their next message."
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Read the files and print what is in them, but store nothing."
        )
        parser.add_argument(
            "--max-line-size",
            type=int,
            default=MAX_LINE,
            metavar="MB",
            help="The longest session to read, in millions of characters (default: %(default)s).",
        )
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print what the import will take, and import."""
        self.longest = choices.whole_number(options, "max_line_size", 1) * MB
        files, verbose = options["files"], options["verbosity"] > 0
        memory = choices.memory(options["alias"])
        for name in files:
            if name != "-" and (pathlib.Path(name).is_dir() or not os.access(name, os.R_OK)):
                raise CommandError(f"{name} is not a file, or cannot be read. Correct the name.", returncode=2)
        using = choices.database(options)
        importer = Importer(memory, using, compact=not options["no_compact"])
        with interruptible():
            if options["dry_run"]:
                self._announce(files, importer, strict=True)
                return
            if verbose and not options["no_compact"] and memory.summarizes and all(map(os.path.isfile, files)):
                self._announce(files, importer)
            counts = _Counts()
            for name in files:
                self._import(name, importer, counts)
        if verbose:
            self.stdout.write(f"{counts}.")

    def _announce(self, files: list[str], importer: Importer, *, strict: bool = False) -> None:
        """Print what folding the sessions will take.

        With ``strict``, a record that cannot be imported raises CommandError. Without it, the counting ends there: the
        import will raise the error.
        """
        total = existing = calls = tokens = 0
        names: set[tuple[str | None, str | None, str]] = set()
        for file_name in files:
            try:
                with _records(file_name, self.longest) as records:
                    for record in records:
                        expected = importer.expect(record)
                        total, existing = total + 1, existing + expected.there
                        calls, tokens = calls + expected.calls, tokens + expected.tokens
                        name = (record.owner, record.visitor, record.key)
                        if strict and name in names:
                            raise BadRecord(record.place, SAME_NAME)
                        names.update([name] if strict and record.messages else ())
            except (BadRecord, OSError) as error:
                if strict:
                    raise CommandError(f"{_place(file_name)}, {_message(error)}") from error
                return
        folding = (
            f"Folding the new ones takes about {counted(calls, 'model call')} over {counted(tokens, 'token')}. "
            "It begins with the next sweep after the import."
            if calls
            else "None of the new ones has to be folded."
        )
        self.stdout.write(
            f"{counted(total, 'session')} to import, {existing} of them already in the database. {folding}"
        )

    def _import(self, name: str, importer: Importer, counts: _Counts) -> None:
        place = _place(name)
        try:
            with _records(name, self.longest) as records:
                for record in records:
                    stored = importer.add(record)
                    counts.messages += stored
                    counts.imported += stored > 0
                    counts.existing += not stored and bool(record.messages)
                    counts.empty += not record.messages
        except BadRecord as error:
            raise CommandError(f"{place}, {_message(error)} {counts.before_error}") from error
        except OSError as error:
            raise CommandError(f"{place} cannot be read: {error}. {counts.before_error}") from error


_LONGEST_ERROR = 1000  # characters


def _message(error: Exception) -> str:
    """Return the error's message, printable and cut, because a part of it may come from the file."""
    message = printable(str(error))
    return message if len(message) <= _LONGEST_ERROR else f"{message[:_LONGEST_ERROR]}…"


def _place(name: str) -> str:
    return "standard input" if name == "-" else name


@contextmanager
def _records(name: str, longest: int) -> Iterator[Iterator[Record]]:
    """Give the records of a file, or of standard input."""
    if name != "-":
        with pathlib.Path(name).open(encoding="utf-8-sig", errors="surrogateescape") as file:
            yield read(file, longest)
        return
    text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", errors="surrogateescape")
    try:
        yield read(text, longest)
    finally:
        text.detach()
