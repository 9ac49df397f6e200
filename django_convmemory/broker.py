"""Sending hints to the Celery broker without making anybody wait for it."""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from django_convmemory.exceptions import BrokerUnavailable

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection, Producer

logger = logging.getLogger(__name__)

# Seconds for each step of talking to the broker: to connect, to read, to write.
BROKER_TIMEOUT = 0.25
# Seconds after which a thread that sends is left to itself.
LONGEST_SEND = 0.6
# Seconds for which a process leaves a broker alone that failed it.
BREAKER_SECONDS = 30.0
# Seconds that a hint waits for the request that brought it, so that the answer goes out first: the interpreter runs one
# of the two at a time.
COURTESY = 0.005
# How many hints can wait to be sent.
MOST_WAITING = 1000


class Hint(NamedTuple):
    """A task to be sent: its name and arguments, and its options as ``apply_async`` takes them."""

    task: str
    alias: str
    session_id: int
    options: dict[str, Any]
    arguments: dict[str, Any]


# Is told the ids of sessions.
Undelivered = Callable[[list[int]], object]


class _Queued:
    """A hint on its way: with the app that it is sent for, and who is to be told the session's id if it is not sent."""

    def __init__(self, hint: Hint, app: Celery, awaited: bool, undelivered: Undelivered | None) -> None:
        self.hint = hint
        self.app = app
        self.awaited = awaited
        self.undelivered = undelivered
        self.sent = False
        self.done = threading.Event()


class Sender:
    """Sends this process's hints in a thread of its own, on one connection, as long as the broker plays along.

    A hint is handed over, and whoever brought it goes on. Of those that are not sent after all, ``undelivered`` is told
    the ids of the sessions, by another thread: what it does may wait for a lock, and neither an append nor a hint
    should. A thread that takes longer for a hint than ``LONGEST_SEND`` is left to itself, and so is the broker then, as
    after any failure.
    """

    def __init__(self) -> None:
        # Guards all that follows.
        self._changed = threading.Condition()
        self._waiting: collections.deque[_Queued] = collections.deque()
        self._thread: threading.Thread | None = None
        # What the thread is sending, and since when.
        self._sending: _Queued | None = None
        self._began = 0.0
        self._broken_until = -math.inf
        # What is given back, and the thread that does it.
        self._lost: list[_Queued] = []
        self._returner: threading.Thread | None = None

    @property
    def broken(self) -> bool:
        """Whether the broker failed less than ``BREAKER_SECONDS`` ago."""
        return time.monotonic() < self._broken_until

    def send(self, hint: Hint, app: Celery, *, wait: bool = False, undelivered: Undelivered | None = None) -> bool:
        """Send ``hint`` as a task of ``app``, and return whether the broker is there to take it, as far as is known.

        With ``wait`` it is known: True says that the hint was sent. Never raises, and waits for ``LONGEST_SEND`` at
        most.
        """
        queued = _Queued(hint, app, wait, undelivered)
        self._leave_stuck()
        with self._changed:
            taken = not self.broken and len(self._waiting) < MOST_WAITING and self._running()
            if not taken:
                self._lose([queued])
            elif wait:
                self._waiting.appendleft(queued)
            else:
                self._waiting.append(queued)
            self._changed.notify_all()
        if not (taken and wait):
            return taken
        if not queued.done.wait(LONGEST_SEND):
            self._leave_stuck()
            with self._changed:
                # What was not begun is not sent any more: whoever waited for it does something else now.
                if queued in self._waiting:
                    self._waiting.remove(queued)
                    self._lose([queued])
        return queued.sent

    def flush(self, seconds: float = LONGEST_SEND) -> bool:
        """Wait until what was handed over is sent or given back, ``seconds`` at most, and return whether it is."""
        ends = time.monotonic() + seconds
        while True:
            with self._changed:
                left = max(0.0, ends - time.monotonic())
                if self._changed.wait_for(self._idle, min(left, LONGEST_SEND)):
                    return True
            self._leave_stuck()
            if not left:
                return False

    def close(self) -> None:
        """Send what was handed over, and hang up; the next hint opens another connection."""
        self.flush()
        with self._changed:
            thread, self._thread = self._thread, None
            self._sending, self._broken_until = None, -math.inf
            self._changed.notify_all()
        if thread is not None:
            thread.join(LONGEST_SEND)

    def _idle(self) -> bool:
        return not self._waiting and self._sending is None and self._returner is None

    @property
    def _stuck(self) -> bool:
        return self._sending is not None and time.monotonic() - self._began >= LONGEST_SEND

    def _leave_stuck(self) -> None:
        """Leave the thread to itself where it takes too long, and give back what it had to send.

        No timeout bounds the lookup of a name, nor a broker that answers byte by byte.
        """
        with self._changed:
            if self._sending is None or not self._stuck:
                return
            self._thread = None
            self._stop(self._sending)
        _say(TimeoutError(f"it did not take a task within {LONGEST_SEND} s"))

    # With the lock held.

    def _running(self) -> bool:
        """Have the thread run, and return whether it does: a process may be out of threads, or at its end."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = _started(self._run, "convmemory-sender")
        return self._thread is not None

    def _stop(self, failed: _Queued) -> None:
        """Leave the broker alone for a while, and give back what was to be sent to it."""
        self._broken_until = time.monotonic() + BREAKER_SECONDS
        self._lose([failed, *self._waiting])
        self._waiting.clear()
        self._sending = None
        self._changed.notify_all()

    def _lose(self, queued_hints: list[_Queued]) -> None:
        for queued in queued_hints:
            queued.done.set()
        self._lost += [queued for queued in queued_hints if queued.undelivered is not None]
        if self._lost and self._returner is None:
            self._returner = _started(self._give_back, "convmemory-returner")

    # What the threads do.

    def _run(self) -> None:
        me, connection = threading.current_thread(), None
        while (queued := self._next(me)) is not None:
            error = None
            try:
                connection = _send(connection, queued)
            except Exception as failed:  # noqa: BLE001  whatever fails, the append that brought the hint has succeeded
                connection, error = None, failed
            if error is not None and self._thread is me:
                _say(error)
            with self._changed:
                if self._thread is not me:
                    break
                if error is None:
                    queued.sent = True
                    queued.done.set()
                    self._sending = None
                    self._changed.notify_all()
                else:
                    self._stop(queued)
        if connection is not None:
            connection.close()

    def _next(self, me: threading.Thread) -> _Queued | None:
        """Wait for the next hint; None where this thread is not wanted any more."""
        while True:
            with self._changed:
                if self._thread is me and self._waiting:
                    self._sending, self._began = self._waiting.popleft(), time.monotonic()
                    return self._sending
                self._changed.wait_for(lambda: self._waiting or self._thread is not me)
                if self._thread is not me:
                    return None
                hurry = any(queued.awaited for queued in self._waiting)
            if not hurry:
                time.sleep(COURTESY)

    def _give_back(self) -> None:
        """Say which hints were not sent: to each who is to be told, of all at once."""
        while True:
            with self._changed:
                lost, self._lost = self._lost, []
                if not lost:
                    self._returner = None
                    self._changed.notify_all()
                    return
            told: dict[Undelivered, list[int]] = {}
            for queued in lost:
                if queued.undelivered is not None:
                    told.setdefault(queued.undelivered, []).append(queued.hint.session_id)
            for tell, session_ids in told.items():
                try:
                    tell(session_ids)
                except Exception:
                    with contextlib.suppress(Exception):
                        logger.warning("The mark of tasks that were not sent could not be taken back.", exc_info=True)
            with contextlib.suppress(Exception):
                connections.close_all()  # this thread's


def _started(run: Callable[[], None], name: str) -> threading.Thread | None:
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        with contextlib.suppress(Exception):
            logger.warning("No thread could be started to send tasks; the next sweep sends them.", exc_info=True)
        return None
    return thread


def _send(connection: BrokerConnection | None, queued: _Queued) -> BrokerConnection:
    """Send on ``connection``, or on a new one, and return that."""
    began = time.monotonic()
    if connection is not None and connection.app is queued.app:
        try:
            connection.send(queued.hint)
        except Exception:
            connection.close()
            # A broker that was restarted has closed the old connection, at once: that says nothing of a new one.
            # One that times out would do so again.
            if time.monotonic() - began >= BROKER_TIMEOUT:
                raise
        else:
            return connection
    elif connection is not None:
        connection.close()
    connection = BrokerConnection(queued.app)
    try:
        connection.send(queued.hint)
    except BaseException:
        connection.close()
        raise
    return connection


def _say(error: BaseException) -> None:
    with contextlib.suppress(Exception):  # What a site has for its logs may fail, too.
        logger.warning(
            "Cannot send tasks to the Celery broker (%s: %s); the next attempt is made in %d s or later. Nothing is "
            "lost: the task convmemory.sweep or 'manage.py convmemory_sweep' sends what is due. If this goes on, see "
            "that the broker runs, that the project's Celery settings name it, and that the project's package imports "
            "its Celery app.",
            type(error).__name__,
            # A URL that cannot be read is quoted, with its password.
            "the broker's URL cannot be read" if isinstance(error, ValueError) else error,
            BREAKER_SECONDS,
        )


class BrokerConnection:
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
_senders: dict[int, Sender] = {}


def sender() -> Sender:
    """Return the sender of this process."""
    pid = os.getpid()
    return _senders.get(pid) or _senders.setdefault(pid, Sender())


@atexit.register
def _flush() -> None:
    """A process that ends at once, as a command does, sends what it has to."""
    if (own := _senders.get(os.getpid())) is not None:
        own.flush()
