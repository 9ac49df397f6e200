"""Sweeps fold what is due in this process, or send it to Celery. The :class:`ThreadScheduler` needs no broker."""

from __future__ import annotations

import atexit
import copy
import dataclasses
import functools
import logging
import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence

from django.core import mail
from django.core.signals import request_started
from django.db import Error, connections, reset_queries

from django_convmemory import tasks
from django_convmemory.exceptions import BrokerUnavailable
from django_convmemory.fold.run import Outcome, Result
from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.scheduling import Memory, NullScheduler, Work
from django_convmemory.store import transactions

logger = logging.getLogger(__name__)

# Seconds. A run that takes longer ends after its chunk, so that the sweep can stop there. The next run continues.
_RUN_SECONDS = 1.0
# Seconds. The thread looks for due sessions this often if nobody tells it of one.
_INTERVAL = 5.0
# Seconds. The end of the process waits so long for the thread.
_EXIT_SECONDS = 5.0
# So many sessions of each memory in a sweep of the thread.
_LIMIT = 100
# So many sessions are handed over to the thread at most. A sweep finds the others, because their rows say that they
# are due.
_HANDED_OVER = 1000


def folding_here(memory: ConversationMemory) -> ConversationMemory:
    """Return a copy of ``memory`` that uses no scheduler and whose runs are short.

    A run ends between two chunks. A short run lets the sweep stop after its current chunk. The chat models are
    prepared, as a worker's are.
    """
    tasks.prepare(memory.alias)
    memory = copy.copy(memory)
    memory.scheduler = NullScheduler()
    memory.options = dataclasses.replace(memory.options, max_run_seconds=_RUN_SECONDS)
    return memory


@dataclasses.dataclass
class Sweeper:
    """Sweeps memories: it folds due sessions one after the other, or sends them if a memory's scheduler sends tasks.

    The sessions of all owners take turns, a chunk at a time. Several can run at once, also in several processes,
    because only one process gets the lease of a session. It ends after the current chunk if ``stopped`` says so.
    """

    memories: Sequence[ConversationMemory]
    limit: int
    stopped: Callable[[], bool]

    def sweep(self) -> Counter[str]:
        """Sweep once, at most ``limit`` sessions of each memory, and count the outcomes."""
        counts: Counter[str] = Counter()
        # Django does both around a request. A connection that the database closed is opened again, and the list of
        # queries that Django keeps with DEBUG does not grow.
        reset_queries()
        transactions.close_old_connections()
        # The memories take turns, so that an alias with much to do does not delay the others.
        running = deque(self._outcomes(memory) for memory in self.memories)
        while running and not self.stopped():
            outcomes = running.popleft()
            try:
                if outcome := next(outcomes, None):
                    counts[outcome] += 1
                    running.append(outcomes)
            except BrokerUnavailable as error:
                logger.error("%s", error)
                counts["ended early"] += 1
            except Exception:
                # The next sweep finds the sessions that this one has left.
                logger.exception("An error ended a sweep early.")
                counts["ended early"] += 1
        return counts

    def _outcomes(self, memory: ConversationMemory) -> Iterator[str]:
        """Send or fold sessions of ``memory``, and yield the outcome of each."""
        paused = memory.pause.paused
        if paused:
            yield "paused"
        if memory.scheduler.queues:
            for _ in tasks.send_due(memory, limit=self.limit):
                yield "sent"
            return
        # No task is in a queue for these sessions, whatever their rows say. The time of the next attempt counts.
        left = self.limit
        while left and (session_ids := memory.sweep(limit=left, queued_for=0.0)):
            before, unfinished = memory.pause, 0
            for session_id in session_ids:
                outcome = self._carry_out(functools.partial(memory.compact_id, session_id), session_id)
                unfinished += outcome == "unfinished"
                yield outcome
                if outcome == "stalled" and not before.paused and memory.pause.paused:
                    return
            left -= len(session_ids) - unfinished
            # The next sweep has what is unfinished, after the sessions that became due meanwhile. After a pause a sweep
            # returns one session: if the model has answered, go on with the others.
            if not unfinished and (not before.until_answered or memory.pause.until_answered):
                break
        if left and not paused:
            for session_id in memory.sweep_rebuilds():
                run = functools.partial(memory.carry_out, session_id, "replace_stand_ins")
                yield self._carry_out(run, session_id)

    def _carry_out(self, run: Callable[[], Result], session_id: int) -> str:
        """Call ``run``, and return the outcome."""
        try:
            result = run()
        except Error:
            raise  # An error of the database, which would fail for the other sessions too.
        except Exception:
            logger.exception("Compaction of session %s failed.", session_id)
            return "failed"
        if result.outcome == Outcome.STALLED:
            return "stalled"
        if result.again and result.progressed and not self.stopped():
            return "unfinished"
        return "folded" if result.outcome == Outcome.PUBLISHED else "left"


class ThreadScheduler:
    """Folds in one background thread of the process: for development, and for small sites without a broker.

    No request waits for a model. The thread also sweeps every five seconds, from the second request of a process on,
    so a session that was due when a process was killed is folded too. Each process of a site has such a thread, and
    only one at a time folds a session. The work shares the processor of the web server, and ends with it.
    """

    after_commit = True
    queues = False
    # A check warns of it.
    folds_in_web_process = True

    def __init__(self) -> None:
        # Django keeps no strong reference to it. A process that runs a command has no requests, and needs no thread.
        request_started.connect(self._at_request)

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Hand the session to the thread. With a ``delay``, leave it to a later sweep."""
        if not delay:
            _thread.hand_over(memory.alias, session_id, None)

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Let the thread do ``work``. Return False if it has too much to do already."""
        return _thread.hand_over(memory.alias, session_id, work)

    def _at_request(self, **kwargs: object) -> None:
        # Django's outbox is there in tests only, whose database is not for other threads.
        if not hasattr(mail, "outbox"):
            _thread.start()


class _Thread:
    """The thread of this process. It serves all memories with a :class:`ThreadScheduler`."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):  # Windows has no fork.
            # A child has no threads of its parent, and a lock of theirs would stay locked.
            os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.stop)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._woken, self._stopped = threading.Event(), threading.Event()
        # Each is there once. No work means: fold what is due, if anything is.
        self._handed_over: OrderedDict[tuple[str, int, Work | None], None] = OrderedDict()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Start the thread, unless it runs. Return False if the system has no room for another thread."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._work, args=(self._stopped,), name="convmemory", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    logger.exception("No thread can be started to fold sessions. The next request tries again.")
                    return False
                self._thread = thread
            return True

    def stop(self) -> None:
        """End the thread after its chunk, so that no lease stays. If that takes long, the process ends without it."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(_EXIT_SECONDS)
        self._forget()

    def hand_over(self, alias: str, session_id: int, work: Work | None) -> bool:
        if len(self._handed_over) >= _HANDED_OVER:
            return False
        self._handed_over[alias, session_id, work] = None
        self._woken.set()
        return self.start()

    def _work(self, stopped: threading.Event) -> None:
        try:
            self._run(stopped)
        finally:
            connections.close_all()

    def _run(self, stopped: threading.Event) -> None:
        served: dict[ConversationMemory, ConversationMemory] = {}

        def must_end() -> bool:
            return stopped.is_set() or bool(self._handed_over)

        while not stopped.is_set():
            self._woken.clear()
            try:
                served = {
                    memory: served.get(memory) or folding_here(memory)
                    for memory in memories.all()
                    if memory.needs_worker and isinstance(memory.scheduler, ThreadScheduler)
                }
                self._carry_out({memory.alias: memory for memory in served.values()}, stopped)
                folded = Sweeper([*served.values()], _LIMIT, must_end).sweep()["folded"]
                if folded or self._handed_over:
                    continue
            except Exception:
                logger.exception("The thread that folds sessions failed. It goes on in %d seconds.", _INTERVAL)
            connections.close_all()
            self._woken.wait(_INTERVAL)

    def _carry_out(self, served: dict[str, ConversationMemory], stopped: threading.Event) -> None:
        transactions.close_old_connections()
        while self._handed_over and not stopped.is_set():
            (alias, session_id, work), _ = self._handed_over.popitem(last=False)
            try:
                memory = served[alias]
                result = memory.carry_out(session_id, work) if work else memory.compact_id(session_id)
            except Exception:
                logger.exception("Session %s could not be folded in the background.", session_id)
            else:
                if work == "rebuild" and result.outcome == Outcome.BUSY:
                    logger.warning(
                        "Session %s was not rebuilt: another process was working on it. Request it again.", session_id
                    )


_thread = _Thread()
