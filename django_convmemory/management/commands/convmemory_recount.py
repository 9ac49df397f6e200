"""Counts the tokens of stored messages anew, after the token counter of a memory was changed."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory import models
from django_convmemory.maintenance import recount
from django_convmemory.management import choices
from django_convmemory.management.progress import Progress, counted
from django_convmemory.memory import memories


class Command(BaseCommand):
    """``manage.py convmemory_recount``: those sessions that another counter counted, or, with ``--all``, every one.

    A session at a time, each in a transaction of its own: an interrupted run is taken up by the next. Sessions that
    become due by it are found by the sweep.
    """

    help = "Recount the tokens of sessions that were counted with a token counter that their memory no longer uses."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--alias",
            action="append",
            metavar="ALIAS",
            help="Only sessions of the memory with this alias. May be given more than once.",
        )
        choices.add_database(parser)
        parser.add_argument(
            "--all",
            action="store_true",
            help="Recount all sessions, also those counted with the current counter.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Recount."""
        using = choices.database(options)
        for alias in options["alias"] or ():
            if alias not in memories:
                known = ", ".join(memories)
                raise CommandError(f"CONVMEMORY has no alias {alias!r}. Choose one of: {known}.", returncode=2)
        with Progress(self.stdout, "recounted", shown=options["verbosity"] > 0) as progress:
            for alias in options["alias"] or memories:
                memory = memories[alias]
                sessions = models.Session.objects.using(using).filter(alias=alias)
                if not options["all"]:
                    sessions = sessions.exclude(counter=memory.counter.name[:100])
                for session_id in sessions.order_by("pk").values_list("pk", flat=True).iterator(chunk_size=1000):
                    progress.advance(recount.recount(memory, session_id, using=using))
        if options["verbosity"]:
            self.stdout.write(f"{counted(progress.count, 'session')} recounted.")
