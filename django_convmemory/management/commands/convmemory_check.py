"""Checks every invariant of the stored rows, and reports what is wrong and where."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import reset_queries

from django_convmemory import models
from django_convmemory.maintenance import integrity, reindex
from django_convmemory.maintenance.integrity import Finding
from django_convmemory.management import choices
from django_convmemory.management.progress import Progress, counted, printable

_ADVICE = (
    "Restore damaged rows from a backup: messages cannot be made again. convmemory_recount --all repairs wrong counts "
    "of tokens and messages. If only a summary is damaged, call rebuild() to make a new one."
)
_REPAIR = " If only the index is (index, index_range), run the command again with --repair."


class Command(BaseCommand):
    """``manage.py convmemory_check``: reads every row and changes none. Its memory use does not grow with the rows.

    The command can run while the site is busy. It holds no locks, unless a session changes each time that it is
    checked. With ``--repair`` it makes a damaged index again from the messages. If it is interrupted, it prints with
    which ``--after`` another run continues.

    Exits with 0 if nothing is wrong or everything was repaired, with 1 if something is wrong or the check was
    interrupted, and with 2 if the command line is invalid.
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
            help="Rebuild the index of search from the messages where it is damaged. convmemory_recount --all "
            "repairs wrong counts. Nothing else can be repaired.",
        )
        parser.add_argument(
            "--after",
            type=int,
            default=0,
            metavar="ID",
            help="Check only sessions with a larger id: where an interrupted check continues.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the sessions, and print the findings."""
        using = choices.database(options)
        sessions = choices.sessions(options, using)
        counts, repaired = self._check(sessions, using, options)
        if not options["json"]:
            for result, count in repaired.items():
                self.stdout.write(f"The index of {counted(count, 'session')} was {result}.")
        if counts:
            kinds = ", ".join(f"{code} ({count})" for code, count in sorted(counts.items()))
            index = "" if options["repair"] else _REPAIR
            raise CommandError(f"{counted(counts.total(), 'finding')}: {kinds}. {_ADVICE}{index}")
        if not options["json"] and options["verbosity"] and not repaired:
            checked = sessions.filter(pk__gt=options["after"]).count()
            self.stdout.write(f"Checked {counted(checked, 'session')}. Nothing is wrong.")

    def _check(
        self, sessions: models.SessionQuerySet, using: str, options: dict[str, Any]
    ) -> tuple[Counter[str], Counter[str]]:
        """Check each session, then look for rows that have none.

        Return how many findings there are of each kind, and how many indexes were repaired how. An index is removed if
        its memory has no index.
        """
        counts: Counter[str] = Counter()
        repaired: Counter[str] = Counter()
        checked = options["after"]
        # On standard error, because standard output has the findings.
        with Progress(self.stderr, "checked", verbose=options["verbosity"] > 0) as progress:
            try:
                for session_id in sessions.ids(after=checked):
                    found = self._print(integrity.check_session(session_id, using=using), options)
                    if options["repair"] and not found.keys().isdisjoint(integrity.OF_INDEX):
                        made = reindex.reindex(session_id, using=using)
                        repaired["rebuilt" if made else "removed, because its memory has none"] += 1
                        for code in integrity.OF_INDEX:
                            del found[code]
                    counts += found
                    checked = session_id
                    progress.advance()
                    reset_queries()  # With DEBUG, Django keeps every query.
                counts += self._print(integrity.orphans(using), options)
            except KeyboardInterrupt:
                raise CommandError(
                    f"Interrupted, with {counted(counts.total(), 'finding')} so far. To continue, run the command with "
                    f"--after {checked}."
                ) from None
        return counts, repaired

    def _print(self, findings: Iterable[Finding], options: dict[str, Any]) -> Counter[str]:
        """Print the findings. Return how many there are of each kind."""
        counts: Counter[str] = Counter()
        for finding in findings:
            counts[finding.code] += 1
            if options["json"]:
                self.stdout.write(json.dumps(finding._asdict()))
            else:
                name = f" ({printable(finding.name)})" if finding.name else ""
                self.stdout.write(f"session {finding.session_id}{name}: {finding.code}: {finding.message}")
        return counts
