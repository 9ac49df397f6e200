"""The Celery tasks, and the scheduler that sends them.

The broker carries hints only: what is due stands in the session's row. A hint that is lost costs time, and the sweep
makes up for it, so a project that uses Celery has it sent by Celery beat, every minute::

    CELERY_BEAT_SCHEDULE = {
        "convmemory-sweep": {"task": "convmemory.sweep", "schedule": 60.0, "options": {"queue": "convmemory"}},
    }

Sessions are folded by a worker of their own queue, whose concurrency bounds the model calls in flight::

    celery --app mysite worker --queues convmemory --concurrency 4
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded

from django_convmemory.compaction import Outcome
from django_convmemory.exceptions import BrokerUnavailable, UnknownAlias
from django_convmemory.memory import memories
from django_convmemory.schedulers import Scheduler, Work

if TYPE_CHECKING:
    from celery import Celery, Task
    from kombu import Connection, Producer

    from django_convmemory.conversation import ConversationMemory

logger = logging.getLogger(__name__)

# Seconds for which a session is not told of again.
HINT_AGE = 300
# Seconds in which workers that keep up have taken a task.
PATIENCE = 60
# Seconds for each step of talking to the broker: to connect, to read, to write.
BROKER_TIMEOUT = 0.25
# Seconds after which a thread that sends is left to itself.
LONGEST_SEND = 0.6
# Seconds for which a process leaves a broker alone that failed it.
BREAKER_SECONDS = 30.0
# Seconds that a thread goes on publishing what other threads left it, and how many messages they can leave.
LONGEST_TURN = 1.0
MOST_WAITING = 1000
# Seconds by which a retry comes late rather than early: the worker's clock is not the database's.
_CLOCK_SKEW = 1.0
# With what arguments the task is sent that a person asks for.
_ASKED: dict[Work, dict[str, Any]] = {"compact": {"asked": True}, "rebuild": {}}
# How often a rebuild waits for whoever is at work on the session.
_REBUILD_TRIES = 5
# How many sessions are marked as hinted before they are sent: as many marks are wasted when the broker goes away.
_SWEEP_BATCH = 100


@shared_task(
    name="convmemory.compact",
    bind=True,
    # Acknowledged when done, however it ends: a worker that is killed gives the task back, and no failure runs again,
    # for when to try again stands in the session's row.
    acks_late=True,
    acks_on_failure_or_timeout=True,
    reject_on_worker_lost=True,
    ignore_result=True,
    # In seconds, and right for the default options; the scheduler sends those of the memory.
    soft_time_limit=390,
    time_limit=420,
)
def compact(self: Task[..., None], alias: str, session_id: int, swept: bool = False, asked: bool = False) -> None:
    """Fold what is due in a session. Twice, late or for nothing, it does no harm.

    One that was ``asked`` for by a person does not wait for the time of the next attempt.

    One that was ``swept`` has the next due session sent when it is done. So a backlog is worked off as fast as the
    workers can, while no more of its tasks are in the queue than a sweep sent, and the task of a session that has just
    become due does not wait behind thousands.
    """
    memory = _memory(alias, session_id)
    if memory is None:
        return
    result = memory.compact_id(session_id, force=asked)
    if result.outcome == Outcome.BUSY and (self.request.delivery_info or {}).get("redelivered"):
        # Whoever had this task before was killed, most likely, and its lease still stands.
        memory.scheduler.schedule(memory, session_id, delay=memory.lease_seconds)
    if swept and result.outcome == Outcome.PUBLISHED:
        with contextlib.suppress(BrokerUnavailable):  # The publisher has said so, and the sweep begins again.
            _send_all(memory, memory.sweep(limit=1, hint_age=HINT_AGE))


@shared_task(
    name="convmemory.rebuild",
    bind=True,
    max_retries=_REBUILD_TRIES,
    acks_late=True,
    acks_on_failure_or_timeout=True,
    reject_on_worker_lost=True,
    ignore_result=True,
    soft_time_limit=390,
    time_limit=420,
)
def rebuild(self: Task[..., None], alias: str, session_id: int) -> None:
    """Make the summary of a session anew. One that takes longer than a task may goes on in another one.

    Where somebody is at work on the session, it is tried again when their lease has ended, some times.
    """
    memory = _memory(alias, session_id)
    if memory is None:
        return
    try:
        outcome = memory.carry_out(session_id, "rebuild")
    except SoftTimeLimitExceeded:
        # What is built so far is used.
        memory.scheduler.order(memory, session_id, "rebuild")
        return
    if outcome == Outcome.BUSY and not self.request.called_directly and not self.request.is_eager:
        if self.request.retries < _REBUILD_TRIES:
            raise self.retry(countdown=memory.lease_seconds)
        logger.warning("Session %s was not rebuilt: others were at work on it every time.", session_id)


def _memory(alias: str, session_id: int) -> ConversationMemory | None:
    try:
        return memories[alias]
    except UnknownAlias:
        logger.warning(
            "Dropped the compaction of session %s: CONVMEMORY has no alias %r any more. If it should, this worker runs "
            "with other settings than the process that sent the task.",
            session_id,
            alias,
        )
        return None


@shared_task(
    name="convmemory.sweep",
    ignore_result=True,
    soft_time_limit=HINT_AGE,
    time_limit=HINT_AGE + 30,
)
def sweep(limit: int = 100, hint_age: float = HINT_AGE) -> None:
    """Send the due sessions that nobody was told of for ``hint_age`` seconds.

    Of each alias, ``limit`` at most are in the queue, beside those that were sent by appends within a minute.
    """
    for alias in memories:
        try:
            memory = memories[alias]
            if memory.summarizes:
                for _ in send_due(memory, limit=limit, hint_age=hint_age):
                    pass
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            # The other aliases may have another database, and other settings.
            logger.exception("The sweep of memories[%r] was cut short.", alias)


def send_due(memory: ConversationMemory, *, limit: int, hint_age: float = HINT_AGE) -> Iterator[int]:
    """Send at most ``limit`` due sessions of ``memory``, longest due first, and yield the id of each.

    Fewer, where workers have not taken for a minute what was sent: more would only make the queue longer. By the
    memory's own scheduler where that sends hints, otherwise by a :class:`CeleryScheduler` as it is by default.
    None are sent while the alias is paused. Raises :class:`BrokerUnavailable` when the broker cannot be reached.
    """
    if memory.paused:
        return
    if hint_age > PATIENCE:
        waiting = memory.store.waiting(memory.alias, after=PATIENCE, within=hint_age, most=limit)
        # Some are sent all the same: workers that are always behind must not keep a session that lost its hint waiting.
        limit = max(limit - waiting, limit // 10)
    for at in range(0, limit, _SWEEP_BATCH):
        most = min(_SWEEP_BATCH, limit - at)
        batch = memory.sweep(limit=most, hint_age=hint_age)
        yield from _send_all(memory, batch)
        # With a hint_age of 0 those just sent would be found again.
        if len(batch) < most or hint_age <= 0:
            break


def _send_all(memory: ConversationMemory, batch: list[int]) -> list[int]:
    scheduler: Scheduler = memory.scheduler if memory.scheduler.hints else CeleryScheduler()
    for number, session_id in enumerate(batch):
        if not isinstance(scheduler, CeleryScheduler):
            scheduler.schedule(memory, session_id)
        elif not scheduler.send(memory, session_id, swept=True):
            _unhint(memory, batch[number:])
            raise BrokerUnavailable(
                f"The Celery broker failed before all that is due in memories[{memory.alias!r}] was sent: see the "
                "warning in the log. What was not sent stays due, and a later sweep sends it."
            )
    return batch


def _unhint(memory: ConversationMemory, session_ids: list[int]) -> None:
    """Have the next sweep find the sessions again, and not the one in five minutes."""
    try:
        memory.store.unhint(session_ids)
    except Exception:
        # The append that brought the hint has succeeded; the mark goes out of date by itself.
        logger.warning("The mark of a task that was not sent could not be taken back.", exc_info=True)


class CeleryScheduler:
    """Sends a Celery task for a session that became due, after the transaction's commit.

    ``queue`` is the one that the tasks go to; None leaves that to the project's Celery settings, as with other tasks.
    The app is Celery's current one: with Django, the project's.

    An append neither waits nor fails for it. Each process has a connection of its own for this, with timeouts of
    0.25 s a step and 0.6 s in all; one thread publishes at a time, and takes along what other threads have to send. A
    broker that fails is left alone for 30 s: what would be sent is dropped, and the sweep sends it later.
    """

    after_commit = True
    hints = True

    def __init__(self, queue: str | None = "convmemory") -> None:
        self.queue = queue

    def schedule(self, memory: ConversationMemory, session_id: int, *, delay: float = 0.0) -> None:
        """Send a task that folds the session in ``delay`` seconds; longer delays than 300 s are left to the sweep."""
        if delay <= HINT_AGE and not self.send(memory, session_id, delay=delay):
            _unhint(memory, [session_id])

    def order(self, memory: ConversationMemory, session_id: int, work: Work) -> bool:
        """Send the task, and return whether the broker is there to take it. Never raises."""
        if _eager():
            _here(rebuild if work == "rebuild" else compact, memory, session_id, **_ASKED[work])
            return True
        task = rebuild.name if work == "rebuild" else compact.name
        # Nobody sends it again: it waits as long as it takes.
        options = self._options(memory) | {"expiration": None}
        return publisher().publish(Hint(task, memory.alias, session_id, options, _ASKED[work]))

    def send(self, memory: ConversationMemory, session_id: int, *, delay: float = 0.0, swept: bool = False) -> bool:
        """Send a task that folds the session in ``delay`` seconds, and return whether the broker is there to take it.

        Never raises. Where ``CELERY_TASK_ALWAYS_EAGER`` is set, the session is folded here and now; one that is to wait
        is left to the sweep.
        """
        if _eager():
            if delay <= 0:
                _here(compact, memory, session_id)
            return True
        arguments = {"swept": True} if swept else {}
        return publisher().publish(
            Hint(compact.name, memory.alias, session_id, self._options(memory, delay), arguments)
        )

    def _options(self, memory: ConversationMemory, delay: float = 0.0) -> dict[str, Any]:
        soft, hard = time_limits(memory)
        options: dict[str, Any] = {
            "countdown": delay + _CLOCK_SKEW if delay > 0 else None,
            # By the broker's clock, as far as it keeps one for messages (RabbitMQ does, Redis does not). Celery's own
            # "expires" compares the worker's clock with the sender's: of two that differ, all tasks would be expired.
            "expiration": HINT_AGE + delay,
            "soft_time_limit": soft,
            "time_limit": hard,
            # Not written to disk, which RabbitMQ would confirm 4 ms later: a hint need not outlive the broker.
            "delivery_mode": 1,
        }
        if self.queue is not None:
            options["queue"] = self.queue
        return options


def _eager() -> bool:
    try:
        return bool(compact.app.conf.task_always_eager)
    except Exception:  # noqa: BLE001  Celery's settings cannot be read: the publisher finds the same, and says so
        return False


def _here(task: Task[..., None], memory: ConversationMemory, session_id: int, **arguments: Any) -> None:
    try:
        # Also with CELERY_TASK_EAGER_PROPAGATES: the task logs its error, and the session's row has it too.
        task.apply((memory.alias, session_id), arguments, throw=False)
    except SoftTimeLimitExceeded:
        raise  # of the task that appends
    except Exception:
        logger.exception("Compaction of session %s failed inside append.", session_id)


def time_limits(memory: ConversationMemory) -> tuple[int, int]:
    """Return the soft and the hard limit, in seconds, of a task that folds a session of ``memory``.

    A run looks at its clock, ``max_run_seconds``, after each chunk, and a chunk takes two calls of the model at most.
    """
    models = [model for model in (memory.model, memory.fallback) if model is not None]
    call = max((model.deadline for model in models), default=0.0)
    soft = math.ceil(memory.options.max_run_seconds + 2 * call + 30)
    return soft, soft + 30


class Hint(NamedTuple):
    """A task to be sent: its name and arguments, and its options as ``apply_async`` takes them."""

    task: str
    alias: str
    session_id: int
    options: dict[str, Any]
    arguments: dict[str, Any]


class Publisher:
    """Sends this process's hints: one thread at a time, on one connection, as long as the broker plays along.

    None of its callers waits for another. Each leaves its hint in the deque and then tries to take the lock; one that
    does not get it goes its way. Its hint does not stay behind: it was in the deque before the attempt failed, so the
    lock was held then, and its holder looks at the deque once more after it has given the lock back. Only where hints
    come faster than a broker takes them for ``LONGEST_TURN``, or are more than ``MOST_WAITING``, some are left to the
    next hint of this process, or to the sweep.
    """

    def __init__(self) -> None:
        self._waiting: collections.deque[Hint] = collections.deque(maxlen=MOST_WAITING)
        self._publishing = threading.Lock()
        self._broken_until = -math.inf
        self._line: Line | None = None

    @property
    def broken(self) -> bool:
        """Whether the broker failed less than ``BREAKER_SECONDS`` ago."""
        return time.monotonic() < self._broken_until

    def publish(self, hint: Hint) -> bool:
        """Send ``hint``, or leave it to the thread that is sending; return whether the broker is there to take it."""
        if self.broken:
            return False
        self._waiting.append(hint)
        ends = time.monotonic() + LONGEST_TURN
        while self._waiting and time.monotonic() < ends and self._publishing.acquire(blocking=False):
            try:
                self._take_turn(ends)
            finally:
                self._publishing.release()
        return not self.broken

    def close(self) -> None:
        """Close the connection, after the thread that is sending; the next hint opens another."""
        with self._publishing:
            self._hang_up()
            self._broken_until = -math.inf

    def _take_turn(self, ends: float) -> None:
        while self._waiting and time.monotonic() < ends:
            if self.broken:
                self._waiting.clear()
                break
            hint = self._waiting.popleft()
            try:
                self._send(hint)
            except SoftTimeLimitExceeded:
                raise  # of the task that appends
            except Exception as error:  # noqa: BLE001  whatever fails here, the append that brought the hint has succeeded
                self._broken_until = time.monotonic() + BREAKER_SECONDS
                logger.warning(
                    "Cannot send tasks to the Celery broker (%s: %s); the next attempt is made in %d s or later. "
                    "Nothing is lost: the task convmemory.sweep or 'manage.py convmemory_sweep' sends what is due. If "
                    "this goes on, see that the broker runs, that the project's Celery settings name it, and that the "
                    "project's package imports its Celery app.",
                    type(error).__name__,
                    # A URL that cannot be read is quoted, with its password.
                    "the broker's URL cannot be read" if isinstance(error, ValueError) else error,
                    BREAKER_SECONDS,
                )

    def _send(self, hint: Hint) -> None:
        app: Celery = compact.app
        line = self._line
        began = time.monotonic()
        if line is not None and line.app is app:
            try:
                return self._send_on(line, hint)
            except Exception:
                # A broker that was restarted has closed the old connection, at once: that says nothing of a new one.
                # One that times out would do so again.
                if time.monotonic() - began >= BROKER_TIMEOUT:
                    raise
        self._hang_up()
        return self._send_on(Line(app), hint)

    def _send_on(self, line: Line, hint: Hint) -> None:
        """Send in a thread that is left behind where it takes too long: no timeout bounds the lookup of a name, nor a
        broker that answers byte by byte."""
        failed: list[BaseException] = []

        def send() -> None:
            try:
                line.send(hint)
            except BaseException as error:  # noqa: BLE001  raised again where somebody still waits
                failed.append(error)

        self._line = None
        thread = threading.Thread(target=send, name="convmemory-publisher", daemon=True)
        thread.start()
        thread.join(LONGEST_SEND)
        if thread.is_alive():
            raise TimeoutError(f"it did not take a task within {LONGEST_SEND} s")
        if failed:
            line.close()
            raise failed[0]
        self._line = line

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


class Line:
    """A connection to the broker of ``app``, with the timeouts that an append can bear."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self._connection: Connection | None = None
        self._producer: Producer | None = None

    def send(self, hint: Hint) -> None:
        """Send a task. Raises whatever keeps it from being sent."""
        # The app's own task: in a thread of ours, Celery's current app may be another.
        self.app.tasks[hint.task].apply_async(
            (hint.alias, hint.session_id),
            hint.arguments,
            producer=self._connected(),
            retry=False,
            add_to_parent=False,
            **hint.options,
        )

    def close(self) -> None:
        """Close the connection, without a farewell, which a broker that hangs would have us wait for."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is None:
            return
        try:
            connection.collect(socket.getdefaulttimeout())
        except Exception:
            logger.debug("The broker's connection did not close.", exc_info=True)

    def _connected(self) -> Producer:
        app = self.app
        if self._producer is None:
            if app.main == "default" and not app.conf.broker_write_url:
                raise BrokerUnavailable("this process has no Celery app, and Celery's own default app has no broker")
            # For every transport: each takes those that it knows.
            connection = app.connection_for_write(
                connect_timeout=BROKER_TIMEOUT,
                transport_options={
                    # kombu tries a refused connection again and again, with pauses; so, each broker once.
                    "max_retries": len(_brokers(app)) - 1,
                    "interval_start": 0,
                    "interval_step": 0,
                    "interval_max": 0,
                    # Redis.
                    "socket_connect_timeout": BROKER_TIMEOUT,
                    "socket_timeout": BROKER_TIMEOUT,
                    "retry_on_timeout": False,
                    # RabbitMQ. Without its confirmation a message to a broker that is gone looks sent.
                    "read_timeout": BROKER_TIMEOUT,
                    "write_timeout": BROKER_TIMEOUT,
                    "confirm_publish": True,
                },
            )
            self._connection = connection
            self._producer = app.amqp.Producer(connection, auto_declare=False)
        return self._producer


def _brokers(app: Celery) -> list[str]:
    """Return the brokers that the app names: Celery takes a list of URLs, and one text of several."""
    named: Any = app.conf.broker_write_url or "amqp://"
    return [url for one in ([named] if isinstance(named, str) else named) for url in one.split(";")]


# By process: a child that was forked must neither use nor close its parent's connection, nor wait for its lock. The
# parent's entry stays in the child, unused, for its connection would be closed if it were collected.
_publishers: dict[int, Publisher] = {}


def publisher() -> Publisher:
    """Return the publisher of this process."""
    pid = os.getpid()
    return _publishers.get(pid) or _publishers.setdefault(pid, Publisher())
