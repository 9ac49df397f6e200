"""Sends hints to the Celery broker, and lets no append wait for the broker.

Why this is not one call of ``apply_async``, with measurements in docs/inside/design.md:

- Celery's own sending blocks for seconds if the broker is down, and for much longer if it hangs. Timeouts bound that,
  but not the lookup of a host name, nor a broker that answers byte by byte. So a thread sends, and a caller that waits
  for it does not wait for long.
- The thread also saves the request the 0.8 ms that a healthy broker takes.
- Web servers fork. A child must not use its parent's connection, thread or lock.

A hint that is not sent costs time and loses nothing: the sweep finds the session.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from django_convmemory.exceptions import BrokerUnavailable

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection, Producer

logger = logging.getLogger(__name__)

# All times are in seconds. This one bounds each step of talking to the broker: connect, read, write.
BROKER_TIMEOUT = 0.25
# A caller that waits for its hint to be sent waits for so long. Then the broker counts as failed.
LONGEST_SEND = 0.6
# After a failure, a process does not try the broker for this time.
BREAKER_SECONDS = 30.0
# The thread waits this long, so that the request can send its response first. Python runs one thread at a time.
YIELD_DELAY = 0.005
# How many hints can wait to be sent. Further ones are not sent.
MOST_WAITING = 1000


# Held while libraries are imported, and while the process forks. Otherwise a child could wait for ever for the lock of
# an import that a thread of its parent had begun.
_loading = threading.RLock()
if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


class Hint(NamedTuple):
    """A task to send: its name, its arguments, and its options for ``apply_async``."""

    task: str
    alias: str
    session_id: int
    options: dict[str, Any]
    arguments: dict[str, Any]


class _Queued:
    """A hint that waits to be sent, or is being sent."""

    def __init__(self, hint: Hint, app: Celery, awaited: bool) -> None:
        self.hint = hint
        self.app = app
        self.awaited = awaited
        # So that tracing, in the thread that sends, finds the span of the request.
        self.context = contextvars.copy_context()
        self.sent = False
        self.done = threading.Event()


class Sender:
    """Sends the hints of this process in one thread, on one connection.

    ``send`` hands a hint over and returns. After a failure the hints that wait are dropped, and the sender does not try
    the broker for ``BREAKER_SECONDS``.
    """

    def __init__(self) -> None:
        # Guards all attributes below.
        self._changed = threading.Condition()
        self._waiting: collections.deque[_Queued] = collections.deque()
        self._thread: threading.Thread | None = None
        # The hint that the thread is sending.
        self._sending: _Queued | None = None
        # The app whose libraries are loaded.
        self._loaded: Celery | None = None
        self._broken_until = -math.inf
        # When the broker took a hint last.
        self._taken_at = -math.inf

    @property
    def broken(self) -> bool:
        """Whether the broker failed less than ``BREAKER_SECONDS`` ago."""
        return time.monotonic() < self._broken_until

    def send(self, hint: Hint, app: Celery, *, wait: bool = False) -> bool:
        """Send ``hint`` as a task of ``app``. Return whether the broker seems to be available.

        With ``wait``, return whether the hint was sent. This takes ``LONGEST_SEND`` at most, and the first time as long
        as it takes to load the broker's libraries. Never raises.
        """
        queued = _Queued(hint, app, wait)
        if wait:
            self._load(app)
        with self._changed:
            if self.broken or len(self._waiting) >= MOST_WAITING or not self._running():
                return False
            if wait:  # before those that nobody waits for
                self._waiting.insert(sum(waiting.awaited for waiting in self._waiting), queued)
            else:
                self._waiting.append(queued)
            self._changed.notify_all()
        if not wait:
            return True
        if not queued.done.wait(LONGEST_SEND):
            with self._changed:
                # With many callers, each may wait for too long although the broker takes one hint after the other.
                stuck = not queued.done.is_set() and time.monotonic() - self._taken_at >= LONGEST_SEND
                if stuck:
                    self._fail()
                elif queued in self._waiting:
                    self._waiting.remove(queued)
            if stuck:
                _log(TimeoutError(f"it did not take a task within {LONGEST_SEND} s"))
        return queued.sent

    def flush(self, seconds: float = 2 * LONGEST_SEND) -> bool:
        """Wait until all hints are sent or dropped, ``seconds`` at most. Return whether they are.

        If the broker's libraries are not loaded yet, that comes before.
        """
        with self._changed:
            apps = [queued.app for queued in (self._sending, *self._waiting) if queued is not None]
        for app in apps:
            self._load(app)
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and self._sending is None, seconds)

    def close(self) -> None:
        """Send the hints that wait, and close the connection. The next hint opens a new one."""
        self.flush()
        with self._changed:
            thread, self._thread = self._thread, None
            self._sending, self._broken_until = None, -math.inf
            self._changed.notify_all()
        if thread is not None:
            thread.join(LONGEST_SEND)

    def _load(self, app: Celery) -> None:
        """Import what sending needs. On a busy machine this takes longer than the broker may take for a hint."""
        if self._loaded is not app:
            with contextlib.suppress(Exception), _loading:  # Sending fails with the same error.
                BrokerConnection(app).load()
            self._loaded = app

    # Called with the lock held.

    def _running(self) -> bool:
        """Start the thread if needed, and return whether it runs. A process may be out of threads, or at its end."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="convmemory-sender", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._thread = None
                with contextlib.suppress(Exception):
                    logger.warning(
                        "No thread could be started to send tasks. The next sweep sends them.", exc_info=True
                    )
        return self._thread is not None

    def _fail(self) -> None:
        """Open the breaker, and drop the waiting hints."""
        self._broken_until = time.monotonic() + BREAKER_SECONDS
        for queued in self._waiting:
            queued.done.set()
        self._waiting.clear()
        self._changed.notify_all()

    # Run in the thread.

    def _run(self) -> None:
        me, connection = threading.current_thread(), None
        while (queued := self._next(me)) is not None:
            self._load(queued.app)
            try:
                connection = _send(connection, queued)
            except Exception as error:  # noqa: BLE001  whatever failed, the append itself has succeeded
                connection = None
                _log(error)
            with self._changed:
                queued.sent = connection is not None
                queued.done.set()
                if queued.sent:
                    self._taken_at = time.monotonic()
                if self._thread is me:
                    self._sending = None
                    if not queued.sent:
                        self._fail()
                    self._changed.notify_all()
        if connection is not None:
            connection.close()

    def _next(self, me: threading.Thread) -> _Queued | None:
        """Wait for the next hint. Return None if the sender was closed."""
        with self._changed:
            was_idle = not self._waiting
            self._changed.wait_for(lambda: self._waiting or self._thread is not me)
            if self._thread is not me:
                return None
            self._sending = queued = self._waiting.popleft()
        if was_idle and not queued.awaited:
            time.sleep(YIELD_DELAY)
        return queued


def _send(connection: BrokerConnection | None, queued: _Queued) -> BrokerConnection:
    """Send on ``connection`` or on a new one. Return the connection that was used."""
    began = time.monotonic()
    if connection is not None and connection.app is not queued.app:
        connection.close()
        connection = None
    used = connection or BrokerConnection(queued.app)
    try:
        queued.context.run(used.send, queued.hint)
    except Exception:
        used.close()
        # A broker that was restarted has closed the old connection. That fails at once, and a new connection may work.
        # A broker that timed out would do so again.
        if connection is None or time.monotonic() - began >= BROKER_TIMEOUT:
            raise
        return _send(None, queued)
    return used


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
                    # By default, kombu retries a refused connection with pauses.
                    **dict.fromkeys(("interval_start", "interval_step", "interval_max"), 0),
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
            # It tries each broker once. If there is only one, kombu lists no alternatives.
            connection.transport_options["max_retries"] = max(0, len(connection.alt) - 1)  # type: ignore[index]
            connection.transport  # noqa: B018  imports its libraries
            self._connection = connection
            self._producer = app.amqp.Producer(connection, auto_declare=False)
        return self._producer


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
