"""Embeds the messages that have no embedding yet, or removes all embeddings."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory.contrib.embeddings import vectors
from django_convmemory.contrib.embeddings.reranker import EmbeddingReranker
from django_convmemory.exceptions import ChatModelError
from django_convmemory.management import choices
from django_convmemory.management.choices import counted, interruptible
from django_convmemory.memory import memories
from django_convmemory.store.orm import ORMStore


class Command(BaseCommand):
    """``manage.py convmemory_embed``: embeds what no worker has embedded, such as messages from before this app.

    Each batch is stored before the next one. So the command can be stopped at any time, and goes on when it is run
    again. Exits with 1 if the model fails, if no alias has embeddings, or if their table is missing.
    """

    help = "Embed the messages that have no embedding yet. If it is interrupted, run it again: it goes on."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        parser.add_argument("--remove", action="store_true", help="Remove the embeddings, to turn them off.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Embed what is missing, or remove what is there."""
        using, remove, count = ORMStore().using, options["remove"], 0
        chosen = {alias: memories[alias].reranker for alias in choices.aliases(options, using) if alias in memories}
        rerankers = {alias: found for alias, found in chosen.items() if isinstance(found, EmbeddingReranker)}
        if remove and rerankers:
            raise CommandError("Take RERANKER out of CONVMEMORY first. Otherwise workers embed messages again.")
        if not remove and not rerankers:
            where = "--alias" if options["alias"] else "CONVMEMORY"
            raise CommandError(f"No alias of {where} has an EmbeddingReranker.")
        if problem := vectors.problem(using):
            raise CommandError(problem)
        with interruptible():
            for session_id in choices.sessions(options, using).ids() if remove else ():
                count += vectors.of_session(using, session_id).delete()[0]
            try:
                for alias, reranker in rerankers.items():
                    for session_id in vectors.behind(using, alias, reranker.model).ids():
                        while added := reranker.embed_next(session_id):
                            count += added
            except ChatModelError as error:
                raise CommandError(f"{counted(count, 'message')} embedded. The model failed: {error}") from error
        if options["verbosity"] > 0:
            noun, done = ("embedding", "removed") if remove else ("message", "embedded")
            self.stdout.write(f"{counted(count, noun)} {done}.")
