"""Counts the tokens of stored messages again, after the token counter of a memory was changed."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import reset_queries

from django_convmemory import models
from django_convmemory.maintenance import recount
from django_convmemory.management import choices, interrupts
from django_convmemory.management.progress import Progress, counted
from django_convmemory.memory import memories

# With --all, nothing shows which sessions this run has recounted.
_ALL = "The sessions that were recounted stay recounted. With --all, the next run begins with the first session."


class Command(BaseCommand):
    """``manage.py convmemory_recount``: recounts the sessions that another counter counted, or all with ``--all``.

    Each session is recounted in its own transaction. If a run is interrupted, the next run continues it. The sweep
    finds the sessions that become due.
    """

    help = "Recount the tokens of sessions that were counted with a token counter that their memory no longer uses."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        choices.add_database(parser)
        parser.add_argument(
            "--all",
            action="store_true",
            help="Recount all sessions, also those counted with the current counter.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Recount the sessions."""
        using = choices.database(options)
        chosen = [choices.memory(alias) for alias in options["alias"] or memories]
        how_to_continue = _ALL if options["all"] else interrupts.CONTINUES
        with (
            interrupts.explained(how_to_continue),
            Progress(self.stdout, "recounted", verbose=options["verbosity"] > 0) as progress,
        ):
            for memory in chosen:
                sessions = models.Session.objects.using(using).filter(alias=memory.alias)
                if not options["all"]:
                    sessions = sessions.exclude(counter=memory.counter_name)
                for session_id in sessions.ids():
                    progress.advance(recount.recount(memory, session_id, using=using))
                    reset_queries()  # With DEBUG, Django keeps every query.
        if options["verbosity"]:
            self.stdout.write(f"{counted(progress.count, 'session')} recounted.")
