"""Folds what is due, or has it folded: all that a project without a broker needs, and a broker's safety net."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections, reset_queries

from django_convmemory import tasks
from django_convmemory.conversation import ConversationMemory
from django_convmemory.core.compaction import Outcome
from django_convmemory.exceptions import BrokerUnavailable
from django_convmemory.memory import memories
from django_convmemory.schedulers import NullScheduler

logger = logging.getLogger(__name__)

# Seconds after which a waiting command looks whether it was told to stop.
_LOOK = 0.2
# Seconds after which a run ends with the chunk at hand, so that the command can stop there. The next run goes on.
_RUN_SECONDS = 1.0


class Command(BaseCommand):
    """``manage.py convmemory_sweep [--watch]``: one sweep, or one after the other until SIGTERM or SIGINT.

    Sessions are sent to Celery where the memory's scheduler does that, and otherwise folded here, one after the other,
    those that are due longest first. Several of these commands can run at once: a session's lease lets one in.

    Exits with 0 when all went well, also when it was told to stop; with 1 when one sweep was asked for and something in
    it failed (what failed stays due); with 2 when the command line cannot be carried out. ``--watch`` logs failures and
    goes on.
    """

    help = (
        "Fold the sessions that are due, or send them to Celery if the memory uses it. Exits with 1 if something "
        "failed. A session that failed stays due."
    )

    _stopped = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._said_paused: set[str] = set()

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument("--watch", action="store_true", help="Sweep again and again until SIGTERM or SIGINT.")
        parser.add_argument(
            "--interval",
            type=_seconds,
            default=5.0,
            metavar="SECONDS",
            help="With --watch: the pause after a sweep that folded nothing (default: %(default)s).",
        )
        parser.add_argument(
            "--limit",
            type=_at_least_one,
            default=1000,
            metavar="N",
            help="The largest number of sessions of one alias in one sweep (default: %(default)s).",
        )
        parser.add_argument(
            "--alias",
            action="append",
            metavar="ALIAS",
            help="Only sessions of the memory with this alias. May be given more than once.",
        )
        parser.add_argument(
            "--inline", action="store_true", help="Fold in this process, even if the memory uses Celery."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep once, or until told to stop."""
        swept = self._memories(options["alias"], inline=options["inline"])
        self._stopped = False
        said: Counter[str] | None = None
        if options["watch"] and options["verbosity"]:
            self._say(f"Watching {', '.join(memory.alias for memory in swept)}. SIGINT or SIGTERM stops the command.")
        with self._stopping_on_signals():
            while True:
                counts = self._sweep(swept, options["limit"])
                # A pause is said once, and not with every sweep.
                news = counts != said if counts.keys() <= {"paused"} else True
                if options["verbosity"] > 1 or (options["verbosity"] and (not options["watch"] or (counts and news))):
                    self._say(_line(counts))
                said = counts
                if self.stopping():
                    return
                if not options["watch"]:
                    break
                if not counts["folded"]:
                    self._wait(options["interval"])
                    if self.stopping():
                        return
        if counts["stalled"] or counts["failed"] or counts["paused"]:
            raise CommandError("Some due sessions were neither folded nor sent. They stay due. The log says why.")

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _memories(self, aliases: list[str] | None, *, inline: bool) -> list[ConversationMemory]:
        """Return the memories to sweep; those that are to be folded here as :func:`_folding_here` makes them."""
        for alias in aliases or ():
            if alias not in memories:
                known = ", ".join(memories)
                raise CommandError(f"CONVMEMORY has no alias {alias!r}. Choose one of: {known}.", returncode=2)
            if not memories[alias].summarizes:
                raise CommandError(f"memories[{alias!r}] makes no summaries: nothing in it is ever due.", returncode=2)
        chosen = [memories[alias] for alias in dict.fromkeys(aliases or memories)]
        return [
            _folding_here(memory) if inline or not memory.scheduler.hints else memory
            for memory in chosen
            if memory.summarizes
        ]

    def _sweep(self, swept: list[ConversationMemory], limit: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        # As around a request: a connection that the database closed meanwhile is opened anew, and DEBUG's list of
        # queries does not grow.
        reset_queries()
        _close_old_connections()
        # In turn, so that an alias with much to do does not keep the others waiting.
        turns = [self._turn(memory, limit) for memory in swept]
        while turns and not self.stopping():
            for turn in list(turns):
                if self.stopping():
                    break
                try:
                    counts[next(turn)] += 1
                except StopIteration:
                    turns.remove(turn)
                except BrokerUnavailable as error:
                    logger.error("%s", error)
                    counts["failed"] += 1
                except Exception:
                    # A generator that raised is at its end: what it had left is found by the next sweep.
                    logger.exception("An error ended a sweep early.")
                    counts["failed"] += 1
        return counts

    def _turn(self, memory: ConversationMemory, limit: int) -> Iterator[str]:
        """Send or fold at most ``limit`` sessions, and yield what came of each."""
        if self._is_paused(memory):
            yield "paused"
            return
        if memory.scheduler.hints:
            for _ in tasks.send_due(memory, limit=limit):
                yield "sent"
            return
        # Nobody else is told of them, so no hint is waited for; the time of the next attempt is.
        for session_id in memory.sweep(limit=limit, hint_age=0.0):
            _close_old_connections()
            outcome = self._fold_one(memory, session_id)
            yield outcome
            if outcome == "stalled" and self._is_paused(memory):
                return

    def _fold_one(self, memory: ConversationMemory, session_id: int) -> str:
        published = False
        while True:
            try:
                result = memory.compact_id(session_id)
            except Error:
                raise  # The database's: no other session would fare better.
            except Exception:
                logger.exception("Compaction of session %s failed.", session_id)
                return "failed"
            published = published or result.outcome == Outcome.PUBLISHED
            if result.outcome == Outcome.STALLED:
                return "stalled"
            if not result.again or result.outcome != Outcome.PUBLISHED or self.stopping():
                return "folded" if published else "left"

    def _is_paused(self, memory: ConversationMemory) -> bool:
        paused = memory.paused
        if paused and memory.alias not in self._said_paused:
            logger.warning(
                "memories[%r] is paused, because its model's last answer was that it is misconfigured. See the error "
                "above, or last_error of its sessions. The model is tried again a minute after that answer.",
                memory.alias,
            )
        (self._said_paused.add if paused else self._said_paused.discard)(memory.alias)
        return paused

    def stopping(self) -> bool:
        """Whether a signal said to stop."""
        return self._stopped

    def _wait(self, seconds: float) -> None:
        # In small steps: a signal's handler runs between them, and may not touch locks that this thread may hold.
        ends = time.monotonic() + seconds
        while not self.stopping() and (left := ends - time.monotonic()) > 0:
            time.sleep(min(_LOOK, left))

    @contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        """Have SIGTERM and SIGINT stop the command after the chunk at hand; a second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            self._stopped = True
            for one in previous:
                signal.signal(one, signal.SIG_DFL)

        previous = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
        for one in previous:
            signal.signal(one, stop)
        try:
            yield
        finally:
            for one, handler in previous.items():
                signal.signal(one, handler)


def _folding_here(memory: ConversationMemory) -> ConversationMemory:
    """Return a copy of ``memory`` that tells no scheduler, and whose runs are short.

    A run ends between two chunks, so a short one lets the command stop after the chunk at hand.
    """
    here = copy.copy(memory)
    here.scheduler = NullScheduler()
    here.options = dataclasses.replace(memory.options, max_run_seconds=_RUN_SECONDS)
    return here


def _close_old_connections() -> None:
    """Close the connections that are broken or too old, as Django does around a request.

    But for those in a transaction: of a test, which holds one around the command.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _line(counts: Counter[str]) -> str:
    """Return what came of the sessions that a sweep found, in a line.

    ``left``: another process had it, or nothing was due any more. ``paused`` counts memories.
    """
    return ", ".join(f"{counts[name]} {name}" for name in ("sent", "folded", "left", "stalled", "failed", "paused"))


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value
