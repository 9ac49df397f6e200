"""Indexes stored messages for ``search``, for example those from before an upgrade."""

from __future__ import annotations

import math
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import reset_queries
from django.db.models import F

from django_convmemory import models
from django_convmemory.core import indexing
from django_convmemory.management import choices, interrupts
from django_convmemory.management.progress import Progress, counted
from django_convmemory.memory import memories
from django_convmemory.stores.orm import ORMStore


class Command(BaseCommand):
    """``manage.py convmemory_index``: indexes the messages of all sessions that are not indexed.

    The messages of a session are indexed in portions, each in its own transaction. If a run is interrupted, the next
    run continues it.
    """

    help = (
        "Index stored messages for search. Workers index a session when they fold it; this command does it at once, "
        "also for sessions that are never folded."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Index the sessions."""
        using = choices.database(options)
        for alias in options["alias"] or ():
            if not choices.memory(alias).options.index:
                raise CommandError(
                    f"memories[{alias!r}] is not indexed: its option index is False. Turn it on first.", returncode=2
                )
        chosen = [alias for alias in options["alias"] or memories if memories[alias].options.index]
        sessions = models.Session.objects.using(using).filter(last_position__gt=F("indexed_position"))
        store, messages = ORMStore(using), 0
        with interrupts.explained(), Progress(self.stdout, "indexed", verbose=options["verbosity"] > 0) as progress:
            for alias in chosen:
                for session_id in sessions.filter(alias=alias).ids():
                    indexed = indexing.catch_up(store, session_id, longest=math.inf)
                    messages += indexed
                    progress.advance(bool(indexed))
                    reset_queries()  # With DEBUG, Django keeps every query.
        if options["verbosity"]:
            self.stdout.write(f"{counted(messages, 'message')} of {counted(progress.count, 'session')} indexed.")
