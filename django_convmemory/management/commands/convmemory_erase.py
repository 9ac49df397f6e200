"""Deletes what is kept of a person."""

from __future__ import annotations

import copy
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory import models
from django_convmemory.management import choices, deletion
from django_convmemory.management.progress import counted
from django_convmemory.memory import memories
from django_convmemory.stores.orm import ORMStore


class Command(BaseCommand):
    """``manage.py convmemory_erase (--owner NAME | --visitor ID | --key KEY)``: delete sessions with all in them.

    Of all aliases, also of those that the settings no longer have, unless ``--alias`` is given. Asks first, on a
    terminal.

    Exits with 0 when they are gone, also where there were none; with 1 when the answer was no; with 2 when the command
    line cannot be carried out.
    """

    help = "Delete all sessions of a user or a visitor, or one session by its key, with everything in them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_whose(parser)
        choices.add_aliases(parser)
        parser.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="Delete without asking."
        )
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask, and delete."""
        using = choices.database(options)
        whose = choices.whose(options, using)
        if whose == choices.Whose():
            raise CommandError("Which sessions should be deleted? Give --owner, --visitor or --key.", returncode=2)
        sessions = whose.among(models.Session.objects.using(using))
        if options["alias"]:
            sessions = sessions.filter(alias__in=choices.aliases(options, using))
        found = deletion.holding(sessions)
        if found.sessions and options["interactive"]:
            self._confirm(found, whose)
        if not found.sessions:
            said = f"There are no sessions {whose}."
        elif whose.key is not None:
            said = f"{deletion.delete(sessions)} deleted."
        else:
            said = f"{counted(self._erase(sessions, whose, using), 'session')} deleted."
        if options["verbosity"] > 0:
            self.stdout.write(said)

    def _confirm(self, found: deletion.Holding, whose: choices.Whose) -> None:
        if not sys.stdin.isatty():
            raise CommandError(
                f"This would delete {found} {whose}. The command asks first, and there is no terminal to ask on. "
                "Give --no-input to delete without asking.",
                returncode=2,
            )
        self.stdout.write(f"This deletes {found} {whose}. The deletion cannot be undone.")
        self.stdout.flush()
        try:
            answer = input("Type 'yes' to continue: ")
        except (EOFError, KeyboardInterrupt):
            answer = ""
            self.stdout.write("")
        if answer != "yes":
            raise CommandError("Nothing was deleted.")

    def _erase(self, sessions: models.SessionQuerySet, whose: choices.Whose, using: str) -> int:
        """Delete a person's sessions, alias by alias, and return how many there were."""
        store = ORMStore(using)
        erased = 0
        for alias in list(sessions.order_by("alias").values_list("alias", flat=True).distinct()):
            if alias in memories:
                memory = copy.copy(memories[alias])
                memory.store = store
                erased += memory.erase(owner=whose.owner, visitor=whose.visitor)
            else:
                owner_id = None if whose.owner is None else whose.owner.pk
                erased += store.erase(alias, owner_id=owner_id, visitor=whose.visitor or "")
        return erased
