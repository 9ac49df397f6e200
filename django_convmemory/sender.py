"""Sends hints to the Celery broker, and lets no append wait for the broker.

Why this is not one call of ``apply_async``, with measurements in docs/design.md:

- Celery's own sending blocks for seconds if the broker is down, and for much longer if it hangs. Timeouts bound that,
  but not the lookup of a host name, nor a broker that answers byte by byte. So a thread sends, and is abandoned if it
  takes too long.
- The thread also saves the request the 0.8 ms that a healthy broker takes.
- A hint that could not be sent must be unmarked in the session's row, or the sweep would skip the session for minutes.
  That write can wait for a lock, so it has a thread of its own.
- Web servers fork. A child must not use its parent's connection, thread or lock.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import contextvars
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

# All times are in seconds. This one bounds each step of talking to the broker: connect, read, write.
BROKER_TIMEOUT = 0.25
# A thread that takes longer for one hint is abandoned.
LONGEST_SEND = 0.6
# After a failure, a process does not try the broker for this time.
BREAKER_SECONDS = 30.0
# The thread waits this long, so that the request can send its response first. Python runs one thread at a time.
COURTESY = 0.005
# How many hints can wait to be sent. Further ones are not sent.
MOST_WAITING = 1000


class Hint(NamedTuple):
    """A task to send: its name, its arguments, and its options for ``apply_async``."""

    task: str
    alias: str
    session_id: int
    options: dict[str, Any]
    arguments: dict[str, Any]


# Called with the ids of the sessions whose hints were not sent.
Undelivered = Callable[[list[int]], object]


class _Queued:
    """A hint that waits to be sent, or is being sent."""

    def __init__(self, hint: Hint, app: Celery, awaited: bool, undelivered: Undelivered | None) -> None:
        self.hint = hint
        self.app = app
        self.awaited = awaited
        self.undelivered = undelivered
        # So that tracing, in the thread that sends, finds the span of the request.
        self.context = contextvars.copy_context()
        self.sent = False
        self.done = threading.Event()


class Sender:
    """Sends the hints of this process in one thread, on one connection.

    ``send`` hands a hint over and returns. If a hint is not sent, another thread calls its ``undelivered``. After a
    failure, and if the thread takes longer than ``LONGEST_SEND`` for a hint, the sender does not try the broker for
    ``BREAKER_SECONDS``.
    """

    def __init__(self) -> None:
        # Guards all attributes below.
        self._changed = threading.Condition()
        self._waiting: collections.deque[_Queued] = collections.deque()
        self._thread: threading.Thread | None = None
        # The hint that the thread is sending, and since when. While the thread loads libraries, the time is infinity.
        self._sending: _Queued | None = None
        self._began = math.inf
        # The app whose libraries are loaded.
        self._loaded: Celery | None = None
        self._broken_until = -math.inf
        # Hints that were not sent, and the thread that reports them.
        self._lost: list[_Queued] = []
        self._returner: threading.Thread | None = None

    @property
    def broken(self) -> bool:
        """Whether the broker failed less than ``BREAKER_SECONDS`` ago."""
        return time.monotonic() < self._broken_until

    def send(self, hint: Hint, app: Celery, *, wait: bool = False, undelivered: Undelivered | None = None) -> bool:
        """Send ``hint`` as a task of ``app``. Return whether the broker seems to be available.

        With ``wait``, return whether the hint was sent. This takes ``LONGEST_SEND`` at most, and the first time as long
        as it takes to load the broker's libraries. Never raises.
        """
        queued = _Queued(hint, app, wait, undelivered)
        self._leave_stuck()
        if wait:
            self._load(app)
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
                # If sending has not begun, do not send: the caller will have done something else by then.
                if queued in self._waiting:
                    self._waiting.remove(queued)
                    self._lose([queued])
        return queued.sent

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all hints are sent or reported as undelivered, ``seconds`` at most. Return whether they are.

        Without ``seconds`` it is twice ``LONGEST_SEND``: the time to abandon a hint, and as long to report it. If the
        broker's libraries are not loaded yet, that comes before.
        """
        with self._changed:
            apps = [queued.app for queued in (self._sending, *self._waiting) if queued is not None]
        for app in apps:
            self._load(app)
        ends = time.monotonic() + (2 * LONGEST_SEND if seconds is None else seconds)
        while True:
            with self._changed:
                left = max(0.0, ends - time.monotonic())
                if self._changed.wait_for(self._idle, min(left, LONGEST_SEND)):
                    return True
            self._leave_stuck()
            if not left:
                return False

    def close(self) -> None:
        """Send the hints that wait, and close the connection. The next hint opens a new one."""
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
        """Abandon the thread if it takes too long, and report its hints as undelivered."""
        with self._changed:
            if self._sending is None or not self._stuck:
                return
            self._thread = None
            self._stop(self._sending)
        _log(TimeoutError(f"it did not take a task within {LONGEST_SEND} s"))

    def _load(self, app: Celery) -> None:
        """Import what sending needs. On a busy machine this takes longer than the broker may take for a hint."""
        if self._loaded is not app:
            with contextlib.suppress(Exception):  # Sending fails with the same error.
                BrokerConnection(app).load()
            self._loaded = app

    # Called with the lock held.

    def _running(self) -> bool:
        """Start the thread if needed, and return whether it runs. A process may be out of threads, or at its end."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = _started(self._run, "convmemory-sender")
        return self._thread is not None

    def _stop(self, failed: _Queued) -> None:
        """Open the breaker, and report all waiting hints as undelivered."""
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

    # Run in the threads.

    def _run(self) -> None:
        me, connection = threading.current_thread(), None
        while (queued := self._next(me)) is not None:
            error = None
            self._load(queued.app)
            with self._changed:
                if self._thread is me:
                    self._began = time.monotonic()
            try:
                connection = _send(connection, queued)
            except Exception as failure:  # noqa: BLE001  whatever failed, the append itself has succeeded
                connection, error = None, failure
            if error is not None and self._thread is me:
                _log(error)
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
        """Wait for the next hint. Return None if this thread was abandoned or closed."""
        while True:
            with self._changed:
                if self._thread is me and self._waiting:
                    self._sending, self._began = self._waiting.popleft(), math.inf
                    return self._sending
                self._changed.wait_for(lambda: self._waiting or self._thread is not me)
                if self._thread is not me:
                    return None
                hurry = any(queued.awaited for queued in self._waiting)
            if not hurry:
                time.sleep(COURTESY)

    def _give_back(self) -> None:
        """Report the hints that were not sent. Each ``undelivered`` function is called once, with all its sessions."""
        while True:
            with self._changed:
                lost, self._lost = self._lost, []
                if not lost:
                    self._returner = None
                    self._changed.notify_all()
                    return
            session_ids_of: dict[Undelivered, list[int]] = {}
            for queued in lost:
                if queued.undelivered is not None:
                    session_ids_of.setdefault(queued.undelivered, []).append(queued.hint.session_id)
            for undelivered, session_ids in session_ids_of.items():
                try:
                    undelivered(session_ids)
                except Exception:
                    with contextlib.suppress(Exception):
                        logger.warning(
                            "Sessions whose task was not sent could not be unmarked. The sweep finds them later.",
                            exc_info=True,
                        )
            with contextlib.suppress(Exception):
                connections.close_all()  # those of this thread


def _started(run: Callable[[], None], name: str) -> threading.Thread | None:
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        with contextlib.suppress(Exception):
            logger.warning("No thread could be started to send tasks. The next sweep sends them.", exc_info=True)
        return None
    return thread


def _send(connection: BrokerConnection | None, queued: _Queued) -> BrokerConnection:
    """Send on ``connection`` or on a new one. Return the connection that was used."""
    began = time.monotonic()
    if connection is not None and connection.app is queued.app:
        try:
            queued.context.run(connection.send, queued.hint)
        except Exception:
            connection.close()
            # A broker that was restarted has closed the old connection. That fails at once, and a new connection may
            # work. A broker that timed out would do so again.
            if time.monotonic() - began >= BROKER_TIMEOUT:
                raise
        else:
            return connection
    elif connection is not None:
        connection.close()
    connection = BrokerConnection(queued.app)
    try:
        queued.context.run(connection.send, queued.hint)
    except BaseException:
        connection.close()
        raise
    return connection


def _log(error: BaseException) -> None:
    with contextlib.suppress(Exception):  # A site's log handler may fail, too.
        logger.warning(
            "Cannot send tasks to the Celery broker (%s: %s). The next try is in %d s or later. Nothing is lost: the "
            "task convmemory.sweep or 'manage.py convmemory_sweep' sends what is due. If this continues, check that "
            "the broker runs, that the project's Celery settings name it, that the project's package imports its "
            "Celery app, and that the machine is not overloaded.",
            type(error).__name__,
            # Such an error quotes the URL, with its password.
            "the broker's URL cannot be read" if isinstance(error, ValueError) else error,
            BREAKER_SECONDS,
        )


class BrokerConnection:
    """A connection to the broker of ``app``, with short timeouts and no retries."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self._connection: Connection | None = None
        self._producer: Producer | None = None

    def load(self) -> None:
        """Import the libraries of Celery and of the transport, and ask no broker. Raises their errors."""
        self._connected()

    def send(self, hint: Hint) -> None:
        """Send a task. Raises the errors of Celery, kombu and the transport."""
        # The app's own task: in this thread, Celery's current app may be another one.
        self.app.tasks[hint.task].apply_async(
            (hint.alias, hint.session_id),
            hint.arguments,
            producer=self._connected(),
            retry=False,
            add_to_parent=False,
            **hint.options,
        )

    def close(self) -> None:
        """Close the socket without the protocol's goodbye, which a broker that hangs would not answer."""
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
            # Options for all transports: each transport uses those that it knows.
            connection = app.connection_for_write(
                connect_timeout=BROKER_TIMEOUT,
                transport_options={
                    # By default, kombu retries a refused connection with pauses. So it tries each broker once.
                    "max_retries": len(_brokers(app)) - 1,
                    "interval_start": 0,
                    "interval_step": 0,
                    "interval_max": 0,
                    # Redis.
                    "socket_connect_timeout": BROKER_TIMEOUT,
                    "socket_timeout": BROKER_TIMEOUT,
                    "retry_on_timeout": False,
                    # RabbitMQ. Without confirmation, a message to a broker that is gone would seem to be sent.
                    "read_timeout": BROKER_TIMEOUT,
                    "write_timeout": BROKER_TIMEOUT,
                    "confirm_publish": True,
                },
            )
            connection.transport  # noqa: B018  imports its libraries
            self._connection = connection
            self._producer = app.amqp.Producer(connection, auto_declare=False)
        return self._producer


def _brokers(app: Celery) -> list[str]:
    """Return the broker URLs of the app. Celery takes a list of URLs, or one text with several."""
    setting: Any = app.conf.broker_write_url or "amqp://"
    return [url for urls in ([setting] if isinstance(setting, str) else setting) for url in urls.split(";")]


# By process id: a forked child must not use or close its parent's connection, or wait for its lock. The parent's entry
# stays in the child unused, because collecting it would close the connection.
_senders: dict[int, Sender] = {}


def sender() -> Sender:
    """Return the sender of this process."""
    pid = os.getpid()
    return _senders.get(pid) or _senders.setdefault(pid, Sender())


@atexit.register
def _flush() -> None:
    """Send the waiting hints of a process that ends, for example a command."""
    if (own := _senders.get(os.getpid())) is not None:
        own.flush()
