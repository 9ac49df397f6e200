"""Imports conversations from other systems, or from an export."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import reset_queries

from django_convmemory import conf
from django_convmemory.maintenance.transfer import reading
from django_convmemory.maintenance.transfer.importing import SAME_NAME, Importer
from django_convmemory.maintenance.transfer.records import BadRecord
from django_convmemory.management import choices
from django_convmemory.management.progress import Progress, counted, printable
from django_convmemory.memory import memories


@dataclasses.dataclass(slots=True)
class _Counts:
    """What came of the records so far."""

    imported: int = 0
    messages: int = 0
    there: int = 0
    empty: int = 0

    # Fields of messages that chat completions do not have, and in how many sessions.
    unknown: Counter[str] = dataclasses.field(default_factory=Counter)

    def __str__(self) -> str:
        imported = f"{counted(self.imported, 'session')} imported with {counted(self.messages, 'message')}"
        said = f"{imported}, {self.there} already in the database"
        return f"{said}, {self.empty} without messages skipped" if self.empty else said

    @property
    def before_error(self) -> str:
        if not (self.imported or self.there):
            return "Nothing was imported."
        return (
            f"The sessions before it are imported ({self}). Correct the error and run the command again: it "
            "continues there."
        )


class Command(BaseCommand):
    """``manage.py convmemory_import FILE…``: each session whole or not at all, those that are there left alone.

    A file holds what :mod:`django_convmemory.maintenance.transfer.records` says. No task is sent: sessions become due,
    and the sweep sends them to the workers in portions.

    Exits with 0 when all of it is there; with 1 when something cannot be imported (what comes before it stays); with 2
    when the command line cannot be carried out.
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
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Say what is to be expected, and import."""
        files, alias, shown = options["files"], options["alias"], options["verbosity"] > 0
        if alias not in memories:
            known = ", ".join(memories)
            raise CommandError(f"CONVMEMORY has no alias {alias!r}. Choose one of: {known}.", returncode=2)
        for name in files:
            if name != "-" and (pathlib.Path(name).is_dir() or not os.access(name, os.R_OK)):
                raise CommandError(f"{name} is not a file, or cannot be read. Correct the name.", returncode=2)
        importer = Importer(memories[alias], choices.database(options), compact=not options["no_compact"])
        if options["dry_run"]:
            self._announce(files, importer, shown=True, strict=True)
            return
        total = None
        if not options["no_compact"] and memories[alias].summarizes and all(map(os.path.isfile, files)):
            total = self._announce(files, importer, shown=shown)
        counts = _Counts()
        with Progress(self.stdout, "imported", total=total, shown=shown) as progress:
            for name in files:
                self._import(name, importer, counts, progress)
        if shown:
            self.stdout.write(f"{counts}.")
            if counts.unknown:
                fields = ", ".join(
                    f"{printable(name)!r:.50} ({count})" for name, count in counts.unknown.most_common(10)
                )
                self.stderr.write(
                    "Some messages have fields that chat completions do not have. The fields were stored and will be "
                    f"sent to models: {fields}. If they are not meant for models, move them to notes: docs/moving.md "
                    "says how.",
                    str,
                )

    def _announce(self, files: list[str], importer: Importer, *, shown: bool, strict: bool = False) -> int:
        """Say what folding the sessions will take, and return how many there are.

        ``strict`` raises CommandError for what cannot be imported; otherwise the import stops there, and says why.
        """
        total = there = calls = tokens = 0
        stops, names = "", set[tuple[str, str, str]]()
        for file_name in files:
            try:
                with _opened(file_name) as file:
                    for record in reading.read(file):
                        expected = importer.expect(record)
                        total, there = total + 1, there + expected.there
                        calls, tokens = calls + expected.calls, tokens + expected.tokens
                        name = (record.owner or "", record.visitor or "", record.key)
                        if strict and name in names:
                            raise BadRecord(record.place, SAME_NAME)
                        names.update([name] if strict and record.messages else ())
            except (BadRecord, OSError) as error:
                if strict:
                    raise CommandError(f"{_place(file_name)}, {_said(error)}") from error
                stops = f" before the first error in {_place(file_name)}"
                break
        if shown:
            self.stdout.write(
                f"{counted(total, 'session')} to import{stops}, {there} of them already in the database. "
                f"Folding the new ones takes about {counted(calls, 'call')} of the model over "
                f"{counted(tokens, 'token')}."
            )
        return total

    def _import(self, name: str, importer: Importer, counts: _Counts, progress: Progress) -> None:
        place = _place(name)
        try:
            with _opened(name) as file:
                for record in reading.read(file):
                    stored = importer.add(record)
                    counts.messages += stored
                    counts.imported += stored > 0
                    counts.there += not stored and bool(record.messages)
                    counts.empty += not record.messages
                    counts.unknown.update(
                        {field for recorded in record.messages for field in recorded.message.extra} - _KNOWN
                    )
                    progress.advance()
                    reset_queries()  # of which DEBUG keeps a list
        except BadRecord as error:
            raise CommandError(f"{place}, {_said(error)} {counts.before_error}") from error
        except OSError as error:
            raise CommandError(f"{place} cannot be read: {error}. {counts.before_error}") from error


# What of a message has no place of its own in a ChatMessage, and is known to providers.
_KNOWN = frozenset({"refusal", "annotations", "audio", "function_call", "reasoning_content", "reasoning"})


_LONGEST_ERROR = 1000


def _said(error: Exception) -> str:
    """Return what an error says, of which the file may have chosen a part."""
    said = printable(str(error))
    return said if len(said) <= _LONGEST_ERROR else f"{said[:_LONGEST_ERROR]}…"


def _place(name: str) -> str:
    return "standard input" if name == "-" else name


@contextmanager
def _opened(name: str) -> Iterator[TextIO]:
    if name != "-":
        with pathlib.Path(name).open(encoding="utf-8-sig", errors="surrogateescape") as file:
            yield file
        return
    if sys.stdin is None:
        raise OSError("it is closed")
    text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", errors="surrogateescape")
    try:
        yield text
    finally:
        text.detach()
