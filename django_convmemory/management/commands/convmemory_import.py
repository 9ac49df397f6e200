"""Imports conversations from other systems, or from a file that convmemory_export wrote."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory import conf
from django_convmemory.maintenance.transfer.importing import SAME_NAME, Importer
from django_convmemory.maintenance.transfer.records import MAX_LINE, MB, BadRecord, Record, read
from django_convmemory.management import choices
from django_convmemory.management.choices import counted, interruptible, printable


@dataclasses.dataclass(slots=True)
class _Import:
    """Stores records, and counts what was done with them. ``messages`` are those of the imported sessions."""

    importer: Importer
    imported: int = 0
    messages: int = 0
    existing: int = 0
    empty: int = 0

    def take(self, record: Record) -> None:
        stored = self.importer.add(record)
        self.messages += stored
        self.imported += stored > 0
        self.existing += not stored and bool(record.messages)
        self.empty += not record.messages

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


@dataclasses.dataclass(slots=True)
class _DryRun:
    """Checks records, and counts what folding them would take."""

    importer: Importer
    sessions: int = 0
    existing: int = 0
    calls: int = 0
    tokens: int = 0
    names: set[tuple[str | None, str | None, str]] = dataclasses.field(default_factory=set)
    before_error: ClassVar[str] = "Nothing was imported."

    def take(self, record: Record) -> None:
        expected = self.importer.expect(record)
        self.sessions += 1
        self.existing += expected is None
        calls, tokens = expected or (0, 0)
        self.calls += calls
        self.tokens += tokens
        name = (record.owner, record.visitor, record.key)
        if name in self.names:
            raise BadRecord(record.place, SAME_NAME)
        if record.messages:
            self.names.add(name)

    def __str__(self) -> str:
        folding = "None of the new ones has to be folded"
        if self.calls:
            calls = f"{counted(self.calls, 'model call')} over {counted(self.tokens, 'token')}"
            folding = f"Folding the new ones takes about {calls}. It begins with the next sweep after the import"
        sessions = f"{counted(self.sessions, 'session')} to import, {self.existing} of them already in the database"
        return f"{sessions}. {folding}"


class Command(BaseCommand):
    """``manage.py convmemory_import FILE…``: imports each session as a whole or not at all.

    :mod:`django_convmemory.maintenance.transfer.records` describes a file. Sessions that already have messages are left
    alone. The command sends no tasks: the sessions become due, and the sweep sends them to the workers in portions.

    Exits with 0 if all sessions are in the database. Exits with 1 at a session that cannot be imported: the sessions
    before it stay. Exits with 2 if the command line is invalid.
    """

    help = (
        'Import sessions from JSON files. A file holds one {"key": …, "messages": […]} on each line. '
        "docs/guides/moving.md describes all fields. Sessions that already have messages are left alone, so a "
        "second run continues where the first one stopped."
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
            "--dry-run",
            action="store_true",
            help="Read the files and print how many model calls the summaries would take, but store nothing.",
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
        """Import the files, or print what the import would take."""
        longest = choices.whole_number(options, "max_line_size", 1) * MB
        memory = choices.memory(options["alias"])
        for name in options["files"]:
            if name != "-" and (pathlib.Path(name).is_dir() or not os.access(name, os.R_OK)):
                raise CommandError(f"{name} is not a file, or cannot be read. Correct the name.", returncode=2)
        importer = Importer(memory, choices.database(options), compact=not options["no_compact"])
        work = _DryRun(importer) if options["dry_run"] else _Import(importer)
        with interruptible():
            for name in options["files"]:
                place = "standard input" if name == "-" else name
                try:
                    with _records(name, longest) as records:
                        for record in records:
                            work.take(record)
                except BadRecord as error:
                    raise CommandError(f"{place}, {_message(error)} {work.before_error}") from error
                except OSError as error:
                    raise CommandError(f"{place} cannot be read: {error}. {work.before_error}") from error
        if options["verbosity"] > 0:
            self.stdout.write(f"{work}.")


_LONGEST_ERROR = 1000  # characters


def _message(error: Exception) -> str:
    """Return the error's message, printable and cut, because a part of it may come from the file."""
    message = printable(str(error))
    return message if len(message) <= _LONGEST_ERROR else f"{message[:_LONGEST_ERROR]}…"


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
