"""Exports conversations in the format that convmemory_import reads."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory import models
from django_convmemory.maintenance.transfer import exporting
from django_convmemory.management import choices
from django_convmemory.management.progress import counted, progress, receiving


class Command(BaseCommand):
    """``manage.py convmemory_export``: writes one session on each line, in the order in which they were created.

    :mod:`~django_convmemory.maintenance.transfer.records` describes a line. Each session is exported as it was at one
    moment. Sessions without messages are left out, and so are summaries.

    Exits with 0 if everything is written. Exits with 1 if it cannot be written: then FILE is unchanged. The same
    happens if there is no message to export, and a session was selected or FILE is not empty. Exits with 2 if the
    command line is invalid. If SIGTERM or SIGHUP ends the command, FILE is unchanged, too.
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
        self._written = False
        try:
            self._export(options)
        except KeyboardInterrupt:
            # After everything was written, there is nothing left to interrupt.
            if not self._written:
                name = options["output"]
                left = "Standard output has a part of the sessions" if name == "-" else f"{name} was not written"
                raise CommandError(f"Interrupted. {left}. To export, run the command again.") from None

    def _export(self, options: dict[str, Any]) -> None:
        using = choices.database(options)
        aliases = choices.aliases(options, using, removed=True)
        selection = choices.selection(options, using)
        to_stdout = options["output"] == "-"
        # Standard output must have nothing beside the exported sessions.
        report, verbose = self.stderr if to_stdout else self.stdout, options["verbosity"] > 0
        sessions = selection.filter(models.Session.objects.using(using).filter(alias__in=aliases))
        if not to_stdout and not sessions.filter(last_position__gt=0).exists():
            _refuse_nothing(selection, pathlib.Path(options["output"]))
        exported = messages = 0
        # A bar would stand between the sessions on a terminal. The count for it is not needed there either.
        bar = verbose and not to_stdout
        with self._output(options["output"]) as out:
            heads = exporting.heads(sessions)
            for head in progress(heads, "exported", shown=bar, total=sessions.count() if bar else None):
                written = exporting.write(head, using, out)
                messages += written
                exported += written > 0
        if not verbose:
            return
        report.write(f"{counted(exported, 'session')} exported with {counted(messages, 'message')}.", str)
        if len(aliases) > 1 and sessions.order_by().values("alias").distinct().count() > 1:
            self.stderr.write(
                "The sessions have several aliases, and the lines do not say which. To import each session under its "
                "own alias again, export one alias at a time.",
                str,
            )

    @contextmanager
    def _output(self, name: str) -> Iterator[Callable[[str], object]]:
        if name == "-":
            if (reconfigure := getattr(self.stdout, "reconfigure", None)) is not None:
                reconfigure(encoding="utf-8")  # JSON is UTF-8 in every locale.
            try:
                yield functools.partial(self.stdout.write, ending="")
                self.stdout.flush()
                self._written = True
            except OSError as error:
                # Python would flush standard output again at exit, and print the same error.
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
                raise CommandError(f"Standard output did not accept the whole export: {error}.") from error
            return
        path = pathlib.Path(name).resolve()
        if not path.parent.is_dir() or (path.exists() and not path.is_file()):
            raise CommandError(
                f"{name} is not a file, or its folder does not exist. Correct the name, or give - for standard output.",
                returncode=2,
            )
        try:
            # If a signal would end the process, no unfinished file stays. Windows has no SIGHUP.
            numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
            ending = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
            with receiving(ending, lambda received, frame: sys.exit(128 + received)):
                # In the same folder, so in the same file system: there a rename leaves the old file or the new one.
                file = tempfile.NamedTemporaryFile(  # noqa: SIM115  # It is closed before it is renamed.
                    "w", encoding="utf-8", newline="\n", dir=path.parent, prefix=".convmemory-", delete=False
                )
                try:
                    with file:
                        yield file.write
                        file.flush()
                        os.fsync(file.fileno())
                    pathlib.Path(file.name).replace(path)
                    self._written = True
                except BaseException:
                    pathlib.Path(file.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise CommandError(f"{name} cannot be written: {error}. The file is unchanged.") from error


def _refuse_nothing(selection: choices.ChosenSessions, path: pathlib.Path) -> None:
    """Raise CommandError if it is most likely an error that nothing is exported. It must not cost an old file."""
    if selection != choices.ChosenSessions():
        raise CommandError(
            f"There are no messages in sessions {selection}. {path} was not written. Correct the options."
        )
    if path.is_file() and path.stat().st_size:
        raise CommandError(
            f"There are no messages to export, and {path} is not empty, so it was not written. Correct --alias or "
            "--database. If there is really nothing to export, remove the file."
        )
