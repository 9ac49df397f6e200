"""Exports conversations in the format that convmemory_import reads."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory import models
from django_convmemory.maintenance.transfer import exporting
from django_convmemory.maintenance.transfer.records import MAX_LINE, MB
from django_convmemory.management import choices
from django_convmemory.management.choices import counted, interruptible


class Command(BaseCommand):
    """``manage.py convmemory_export``: writes one session on each line, in the order in which they were created.

    :mod:`~django_convmemory.maintenance.transfer.records` describes a line. Each session is exported as it was at one
    moment. Sessions without messages are left out, and so are summaries.

    Exits with 0 if everything is written. Exits with 1 if it cannot be written, or if there is no message to write to
    FILE: then FILE is unchanged. Exits with 2 if the command line is invalid.
    """

    help = "Export sessions with their messages as JSON, one on each line, in the format that convmemory_import reads."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        choices.add_selection(parser)
        parser.add_argument(
            "--output",
            default="-",
            metavar="FILE",
            help="The file to write; - is standard output (default). An existing file is replaced only after "
            "everything is written. Only the owner of the file can read it.",
        )
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Export the selected sessions."""
        using, name = choices.database(options), options["output"]
        aliases = choices.aliases(options, using, removed=True)
        conditions, _ = choices.selection(options, using)
        sessions = models.Session.objects.using(using).filter(alias__in=aliases, **conditions)
        exported: Counter[str] = Counter()
        with interruptible(), self._output(name) as out:
            size = 0
            for piece in exporting.records(sessions, exported):
                out(piece)
                size += len(piece)
                if piece.endswith("\n"):
                    self._warn_of_long_line(exported["sessions"] + 1, size)
                    size = 0
            if name != "-" and not exported["sessions"]:
                # Most likely an option is wrong. That must not cost the last export.
                raise CommandError(f"There are no messages to export. {name} was not written. Check the options.")
        if options["verbosity"] > 0:
            # Standard output must have nothing beside the exported sessions.
            report = self.stderr if name == "-" else self.stdout
            number, messages = counted(exported["sessions"], "session"), counted(exported["messages"], "message")
            report.write(f"{number} exported with {messages}.", str)

    def _warn_of_long_line(self, number: int, size: int) -> None:
        if size > MAX_LINE * MB:
            least = -(-size // MB)
            self.stderr.write(
                f"Line {number} has {least} MB. convmemory_import reads it only with --max-line-size={least} or more.",
                str,
            )

    @contextmanager
    def _output(self, name: str) -> Iterator[Callable[[str], object]]:
        if name == "-":
            if (reconfigure := getattr(self.stdout, "reconfigure", None)) is not None:
                reconfigure(encoding="utf-8")  # JSON is UTF-8 in every locale.
            yield functools.partial(self.stdout.write, ending="")
            return
        path = pathlib.Path(name).resolve()
        if not path.parent.is_dir() or (path.exists() and not path.is_file()):
            raise CommandError(
                f"{name} is not a file, or its folder does not exist. Correct the name, or give - for standard output.",
                returncode=2,
            )
        try:
            # In the same folder, so in the same file system: there a rename leaves the old file or the new one.
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".convmemory-") as folder:
                unfinished = pathlib.Path(folder, path.name)
                unfinished.touch(0o600)
                with unfinished.open("w", encoding="utf-8", newline="\n") as file:
                    yield file.write
                    file.flush()
                    os.fsync(file.fileno())
                unfinished.replace(path)
        except OSError as error:
            raise CommandError(f"{name} cannot be written: {error}. The file is unchanged.") from error
