"""Checks every invariant of the rows, and says what is wrong and where."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.maintenance.integrity import Finding
from django_convmemory.management import choices
from django_convmemory.management.progress import counted, printable


class Command(BaseCommand):
    """``manage.py convmemory_check``: reads every row, in flat memory, and changes none.

    Exits with 0 where nothing is wrong, with 1 where something is, and with 2 when the command line cannot be carried
    out. It can run beside a busy site: a session that changes meanwhile is read again.
    """

    help = "Check the stored rows of all sessions for damage. Exits with 1 if it finds any."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        choices.add_database(parser)
        parser.add_argument("--json", action="store_true", help="Print each finding as a JSON object on its own line.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check, and report."""
        using = choices.database(options)
        sessions = models.Session.objects.using(using)
        if options["alias"]:
            sessions = sessions.filter(alias__in=choices.aliases(options, using))
        counts: Counter[str] = Counter()
        for finding in integrity.check(sessions):
            counts[finding.code] += 1
            self._report(finding, as_json=options["json"])
        for finding in integrity.orphans(using):
            counts[finding.code] += 1
            self._report(finding, as_json=options["json"])
        if counts:
            kinds = ", ".join(f"{code} ({count})" for code, count in sorted(counts.items()))
            raise CommandError(
                f"{counted(counts.total(), 'finding')}: {kinds}. Restore damaged rows from a backup: messages cannot "
                "be made again. If only a summary is damaged, call rebuild() to make a new one."
            )
        if not options["json"] and options["verbosity"]:
            self.stdout.write(f"Checked {counted(sessions.count(), 'session')}. Nothing is wrong.")

    def _report(self, finding: Finding, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(finding._asdict()))
        else:
            name = f" ({printable(finding.name)})" if finding.name else ""
            self.stdout.write(f"session {finding.session_id}{name}: {finding.code}: {finding.message}")
