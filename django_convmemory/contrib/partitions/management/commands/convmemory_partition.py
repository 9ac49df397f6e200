"""Partitions the table of messages by session, on PostgreSQL, while the site keeps running."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import ProgrammingError, connections

from django_convmemory.contrib.partitions import conversion
from django_convmemory.contrib.partitions.conversion import Refused
from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.management import choices
from django_convmemory.management.choices import interruptible
from django_convmemory.store import transactions

# More partitions need more locks for a statement about all of them than a server has by default.
_MOST_PARTITIONS = 256
# In seconds, between two lines about pages.
_INTERVAL = 5.0
# A code of PostgreSQL.
_INSUFFICIENT_PRIVILEGE = "42501"


class Command(BaseCommand):
    """``manage.py convmemory_partition``: converts the table of messages into one that is partitioned by session.

    It copies the rows into a partitioned table while a trigger writes changes to both, and swaps the names at the end.
    If it is interrupted, run it again: it continues. Until the swap, ``--abort`` removes everything that it has made.

    Exits with 1 if the table cannot be converted, and with 2 if the command line is invalid.
    """

    help = "Partition the table of messages by session, on PostgreSQL, while the site keeps running."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--partitions",
            type=int,
            default=64,
            metavar="N",
            help=f"The number of partitions, from 2 to {_MOST_PARTITIONS} (default: %(default)s).",
        )
        parser.add_argument(
            "--lock-timeout",
            type=int,
            default=300,
            metavar="MS",
            help="How long a step may wait for a lock, and so hold up appends, before it lets them pass and tries "
            "again, in milliseconds (default: %(default)s).",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--dry-run", action="store_true", help="Only print what would be done.")
        what.add_argument("--abort", action="store_true", help="Remove what an unfinished conversion has made.")
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Convert the table, or continue a conversion."""
        using = choices.database(options)
        if connections[using].vendor != "postgresql":
            raise CommandError(f"The database {using!r} is not PostgreSQL. Only PostgreSQL has such partitions.")
        partitions = choices.whole_number(options, "partitions", 2, _MOST_PARTITIONS)
        database = PatientDatabase(using, choices.whole_number(options, "lock_timeout", 1))
        if transactions.is_open(connections[using]) and not options["dry_run"]:
            raise CommandError(
                f"A transaction is open in the database {using!r}, but each step of a conversion needs its own. Call "
                "the command outside of atomic() and TestCase, and without AUTOCOMMIT = False in the settings."
            )
        self._verbosity, self._written_at, self._left_out = options["verbosity"], 0.0, ""
        try:
            self._run(database, partitions, options)
        except Refused as error:
            raise CommandError(str(error)) from error
        except ProgrammingError as error:
            if transactions.sqlstate(error) != _INSUFFICIENT_PRIVILEGE:
                raise
            raise CommandError(
                f"The role of this connection lacks a privilege: {error}. Run the command again as the owner of the "
                "tables, who needs CREATE on their schema, or as a superuser. If a conversion has begun, it continues."
            ) from error

    def _run(self, database: PatientDatabase, partitions: int, options: dict[str, Any]) -> None:
        if options["dry_run"]:
            for sentence in conversion.plan(database, partitions):
                self.stdout.write(sentence)
        elif options["abort"]:
            conversion.abort(database, self._report)
        else:
            with interruptible(
                "Nothing is lost, and the site can go on. To continue, run the command again with the same "
                "--partitions. To remove what it has made, run it with --abort."
            ):
                conversion.convert(database, partitions, self._report)

    def _report(self, sentence: str) -> None:
        """Write a sentence, but of those about pages only one in a few seconds, and the last one."""
        if self._verbosity < 1:
            return
        if sentence.startswith("Copied "):
            if time.monotonic() - self._written_at < _INTERVAL:
                self._left_out = sentence
                return
            self._written_at, self._left_out = time.monotonic(), ""
        elif self._left_out:
            self.stdout.write(self._left_out)
            self._left_out = ""
        self.stdout.write(sentence)
        self.stdout.flush()
