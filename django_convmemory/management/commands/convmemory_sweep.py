"""Folds the sessions that are due, or sends them to Celery.

A project without a broker needs only this command. With a broker, it finds the sessions whose tasks were lost.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory.management import choices
from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.sweeping import Sweeper, folding_here

_STOPPING = (signal.SIGTERM, signal.SIGINT)
# Seconds. A waiting command checks this often whether a signal stopped it.
_POLL_SECONDS = 0.2


class Command(BaseCommand):
    """``manage.py convmemory_sweep [--watch]``: sweeps once, or again and again until SIGTERM or SIGINT.

    If the memory's scheduler sends tasks to Celery, so does the command. Otherwise it folds the sessions itself, one
    after the other. The sessions of all owners take turns, a chunk at a time. Several of these commands can run at
    once, because only one process gets the lease of a session.

    Exits with 0 if nothing failed, and when a signal stops it. Exits with 1 if something failed in a single sweep: the
    sessions that failed stay due. Exits with 2 if the command line is invalid. With ``--watch``, the command logs
    failures and continues.
    """

    help = (
        "Fold the sessions that are due, or send them to Celery if the memory uses it. Exits with 1 if something "
        "failed. A session that failed stays due."
    )

    _stopped = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument("--watch", action="store_true", help="Sweep again and again until SIGTERM or SIGINT.")
        parser.add_argument(
            "--interval",
            type=float,
            default=5.0,
            metavar="SECONDS",
            help="With --watch: the pause after a sweep that folded nothing (default: %(default)s).",
        )
        parser.add_argument(
            "--limit",
            type=int,
            default=1000,
            metavar="N",
            help="The largest number of sessions of one alias in one sweep (default: %(default)s).",
        )
        choices.add_aliases(parser)
        parser.add_argument(
            "--inline", action="store_true", help="Fold in this process, even if the memory uses Celery."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep once, or until a signal stops the command."""
        limit, verbosity = choices.whole_number(options, "limit", 1), options["verbosity"]
        if not 0 < options["interval"] < 1e6:
            raise CommandError(f"--interval is {options['interval']}. Give seconds above 0.", returncode=2)
        swept = self._memories(options["alias"], inline=options["inline"])
        self._stopped = False
        sweeper = Sweeper(swept, limit, stopped=lambda: self._stopped)
        previous: Counter[str] | None = None
        if options["watch"] and verbosity:
            self._print(f"Watching {', '.join(memory.alias for memory in swept)}. SIGINT or SIGTERM stops the command.")
        with self._receiving_signals():
            while True:
                counts = sweeper.sweep()
                # A watching command prints a sweep that did something. It prints a pause once, not at every sweep.
                has_news = counts and (counts != previous or not counts.keys() <= {"paused"})
                if verbosity > 1 or (verbosity and (not options["watch"] or has_news)):
                    self._print(_outcome_line(counts))
                previous = counts
                if self._stopped or not options["watch"]:
                    break
                if not counts["folded"]:
                    self._wait(options["interval"])
        if not self._stopped and any(counts[name] for name in ("stalled", "failed", "paused", "ended early")):
            raise CommandError(
                "Some due sessions were neither folded nor sent. They stay due. The log says why, and the admin why a "
                "memory is paused."
            )

    def _print(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _memories(self, aliases: list[str] | None, *, inline: bool) -> list[ConversationMemory]:
        """Return the memories to sweep. :func:`.folding_here` copies those that this command folds itself."""
        for alias in aliases or ():
            if not choices.memory(alias).needs_worker:
                raise CommandError(
                    f"memories[{alias!r}] makes no summaries and no index: nothing in it is ever due.", returncode=2
                )
        chosen = [memories[alias] for alias in dict.fromkeys(aliases or memories)]
        swept = [memory for memory in chosen if memory.needs_worker]
        return [folding_here(memory) if inline or not memory.scheduler.queues else memory for memory in swept]

    def _wait(self, seconds: float) -> None:
        # The pause has small steps, and the signal's handler only sets a flag: it may not use locks that this thread
        # may hold.
        ends = time.monotonic() + seconds
        while not self._stopped and (left := ends - time.monotonic()) > 0:
            time.sleep(min(_POLL_SECONDS, left))

    @contextlib.contextmanager
    def _receiving_signals(self) -> Iterator[None]:
        """Let :meth:`_stop` receive signals meanwhile. Only the main thread can; in another, none comes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in _STOPPING}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)

    def _stop(self, received: int, frame: object) -> None:
        """Stop after the current chunk. A second signal ends the process at once."""
        self._stopped = True
        for number in _STOPPING:
            signal.signal(number, signal.SIG_DFL)


def _outcome_line(counts: Counter[str]) -> str:
    """Return a line that counts the sessions that a sweep found, and the memories that it did not sweep to the end.

    ``left``: another process had the lease, or the session was no longer due.
    """
    sessions = ", ".join(f"{counts[name]} {name}" for name in ("sent", "folded", "left", "stalled", "failed"))
    return f"Sessions: {sessions}. Memories: {counts['paused']} paused, {counts['ended early']} ended early."
