"""Deletes all stored data of a user or a visitor."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory.management import choices
from django_convmemory.management.choices import interruptible, with_messages


class Command(BaseCommand):
    """``manage.py convmemory_erase (--owner NAME | --visitor ID | --key KEY)``: deletes sessions and all in them.

    Without ``--alias``, it deletes sessions of all aliases, also of aliases that were removed from the settings. On a
    terminal it asks first.

    Exits with 0 if the sessions are deleted, or if there were none. Exits with 1 if the answer was not "yes", and with
    2 if the command line is invalid.
    """

    help = "Delete all sessions of a user or a visitor, or one session by its key, with everything in them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_selection(parser)
        choices.add_aliases(parser)
        parser.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="Delete without asking."
        )
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask, and delete the selected sessions."""
        using = choices.database(options)
        conditions, selection = choices.selection(options, using)
        if not conditions:
            raise CommandError("Which sessions should be deleted? Give --owner, --visitor or --key.", returncode=2)
        sessions = choices.sessions(options, using).filter(**conditions)
        totals = choices.totals(sessions)
        if totals["sessions"] and options["interactive"]:
            self._confirm(with_messages(totals), selection)
        if not totals["sessions"]:
            result = f"There are no sessions {selection}."
        else:
            deleted: Counter[str] = Counter()
            with interruptible():
                for alias in list(sessions.order_by("alias").values_list("alias", flat=True).distinct()):
                    deleted += choices.delete(sessions.filter(alias=alias))
            result = f"{with_messages(deleted)} deleted."
        if options["verbosity"] > 0:
            self.stdout.write(result)

    def _confirm(self, totals: str, selection: str) -> None:
        if not sys.stdin.isatty():
            raise CommandError(
                f"This would delete {totals} {selection}. The command asks first, and there is no terminal to ask on. "
                "Give --no-input to delete without asking.",
                returncode=2,
            )
        self.stdout.write(f"This deletes {totals} {selection}. The deletion cannot be undone.")
        self.stdout.flush()
        try:
            answer = input("Type 'yes' to continue: ")
        except (EOFError, KeyboardInterrupt):
            answer = ""
            self.stdout.write("")
        if answer != "yes":
            raise CommandError("Nothing was deleted.")
