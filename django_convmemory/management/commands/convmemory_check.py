"""Checks every invariant of the stored rows, and reports what is wrong and where."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory.maintenance import integrity, reindex
from django_convmemory.management import choices
from django_convmemory.management.progress import counted, printable


class Command(BaseCommand):
    """``manage.py convmemory_check``: reads every row and changes none. Its memory use does not grow with the rows.

    The command can run while the site is busy. It reads a session again that changes meanwhile. With ``--repair`` it
    makes a damaged index again from the messages.

    Exits with 0 if nothing is wrong or everything was repaired, with 1 if something is wrong, and with 2 if the command
    line is invalid.
    """

    help = "Check the stored rows of all sessions for damage. Exits with 1 if it finds any that it does not repair."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        choices.add_database(parser)
        parser.add_argument("--json", action="store_true", help="Print each finding as a JSON object on its own line.")
        parser.add_argument(
            "--repair",
            action="store_true",
            help="Make the index of search again from the messages where it is damaged. Nothing else can be repaired.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the sessions, and print the findings."""
        using = choices.database(options)
        sessions = choices.sessions(options, using)
        counts: Counter[str] = Counter()
        damaged: dict[int, None] = {}
        for finding in itertools.chain(integrity.check(sessions), integrity.orphans(using)):
            counts[finding.code] += 1
            if finding.code in integrity.OF_INDEX:
                damaged[finding.session_id] = None
            if options["json"]:
                self.stdout.write(json.dumps(finding._asdict()))
            else:
                name = f" ({printable(finding.name)})" if finding.name else ""
                self.stdout.write(f"session {finding.session_id}{name}: {finding.code}: {finding.message}")
        if options["repair"]:
            for session_id in damaged:
                reindex.reindex(session_id, using=using)
            if damaged and not options["json"]:
                self.stdout.write(f"The index of {counted(len(damaged), 'session')} was made again.")
            for code in integrity.OF_INDEX:
                del counts[code]
        if counts:
            kinds = ", ".join(f"{code} ({count})" for code, count in sorted(counts.items()))
            raise CommandError(
                f"{counted(counts.total(), 'finding')}: {kinds}. Restore damaged rows from a backup: messages cannot "
                "be made again. If only a summary is damaged, call rebuild() to make a new one. If only the index is "
                "(index, index_range), run the command again with --repair."
            )
        if not options["json"] and options["verbosity"] and not damaged:
            self.stdout.write(f"Checked {counted(sessions.count(), 'session')}. Nothing is wrong.")
