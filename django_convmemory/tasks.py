"""The Celery tasks, and the scheduler that sends them.

The broker carries only hints: the row of a session says whether it is due. A lost hint costs time, not data, because
the sweep finds the session later. Have Celery beat send the sweep every minute::

    CELERY_BEAT_SCHEDULE = {
        "convmemory-sweep": {"task": "convmemory.sweep", "schedule": 60.0, "options": {"queue": "convmemory"}},
    }

Workers of a separate queue fold the sessions. Their concurrency bounds the number of model calls at a time::

    celery --app mysite worker --queues convmemory --concurrency 4
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from celery import current_task, shared_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import worker_init, worker_process_init

from django_convmemory import observers
from django_convmemory.exceptions import BrokerUnavailable, UnknownAlias
from django_convmemory.fold.run import Outcome
from django_convmemory.memory import memories
from django_convmemory.operations.folding import PATIENCE
from django_convmemory.scheduling import REQUESTED, Memory, Scheduler, SendingScheduler, Work
from django_convmemory.sender import BrokerConnection, Hint, sender

if TYPE_CHECKING:
    from celery import Task

    from django_convmemory.operations.handles import ConversationMemory

logger = logging.getLogger(__name__)

# All times are in seconds. After a sweep has queued a session, no other one queues it for this time.
QUEUED_FOR = 300
# A retry comes this much later, so that it is not too early by the database's clock.
_CLOCK_SKEW = 1.0
# How often a rebuild waits for another process that works on the session.
REBUILD_TRIES = 5
# This many sessions are marked as queued before their tasks are sent. If the broker fails, so many wait for the time
# above. The first one of a sweep is marked and sent alone, because a broker that is down fails then.
_SWEEP_BATCH = 100


# The header of a task that carries what the observers of the sender want to be known where the session is folded: see
# Observer.headers().
_ORIGIN = "convmemory_origin"


# The task is acknowledged when it ends. If a worker is killed, the broker gives the task to another worker. A failed
# task is not run again, because the session's row has the time of the next attempt. The time limits, in seconds, are
# for the default options: the scheduler sends the limits of the memory.
_FOLDING_TASK: dict[str, Any] = {
    "bind": True,
    "acks_late": True,
    "acks_on_failure_or_timeout": True,
    "reject_on_worker_lost": True,
    "ignore_result": True,
    "soft_time_limit": 450,
    "time_limit": 480,
}


# The processes of a worker inherit what it has imported, unless they are not forked: then each has to import it.
@worker_init.connect
@worker_process_init.connect
def prepare_models(**kwargs: Any) -> None:
    """Let the chat models of all memories do what their first call would have to do, such as an import."""
    for alias in memories:
        prepare(alias)


def prepare(alias: str) -> None:
    """Let the chat models of a memory do what their first call would have to do. An error is only logged."""
    try:
        memory = memories[alias]
        for model in (memory.model, memory.fallback):
            if prepare_model := getattr(model, "prepare", None):
                prepare_model()
    except Exception:
        # The other aliases may have other settings, and the process may have other tasks.
        logger.exception("The chat models of memories[%r] could not be prepared. Its tasks may fail too.", alias)


@shared_task(name="convmemory.compact", **_FOLDING_TASK)
def compact(
    self: Task[..., None],
    alias: str,
    session_id: int,
    swept: bool = False,
    asked: bool = False,
    despite_pause: bool = False,
    **unknown: object,
) -> None:
    """Fold what is due in a session. It does no harm if this task runs twice, late, or when nothing is due.

    This task and the others ignore keywords that they do not know: a queue outlives a deploy.

    ``asked``: a person requested it, so it does not wait for the time of the next attempt. ``despite_pause``: an
    operator did, so a pause of the alias does not matter either.

    ``swept``: a sweep sent it. When it is done, it sends the next due session. So workers clear a backlog at full
    speed, but the queue never holds more of its tasks than a sweep sends. A session that becomes due now does not wait
    behind thousands of others.
    """
    memory = memory_of(alias, session_id)
    if memory is None:
        return
    with observers.originating(getattr(self.request, _ORIGIN, None)):
        outcome = fold(memory, session_id, swept=swept, asked=asked, despite_pause=despite_pause)
    if outcome == Outcome.BUSY and (self.request.delivery_info or {}).get("redelivered"):
        # The worker that had this task before was probably killed, and its lease has not expired yet.
        memory.scheduler.schedule(memory, session_id, delay=memory.lease_seconds)


def fold(memory: ConversationMemory, session_id: int, *, swept: bool, **how: bool) -> Outcome:
    """Fold what is due in a session, and send the sessions that can be folded next. For tasks of any library.

    The arguments are those of :func:`compact`.
    """
    result = memory.compact_id(session_id, swept=swept, **how)
    if result.recovered:
        send_waiting(memory)
    elif swept and result.progressed and not result.again:
        with contextlib.suppress(BrokerUnavailable):  # The sender has logged it. The next sweep tries again.
            _send_all(memory, memory.sweep(limit=1, queued_for=QUEUED_FOR, chained=True))
    return result.outcome


def send_waiting(memory: ConversationMemory) -> None:
    """Send what has waited for the model to answer, because no sweep may come for a minute."""
    with contextlib.suppress(BrokerUnavailable):  # as above
        # Sessions that have failed come last: if they always time out, they would begin another pause.
        for _ in send_due(memory, limit=_SWEEP_BATCH, fewest_attempts=True):
            pass


@shared_task(name="convmemory.rebuild", max_retries=REBUILD_TRIES, **_FOLDING_TASK)
def rebuild(self: Task[..., None], alias: str, session_id: int, stand_ins: bool = False, **unknown: object) -> None:
    """Make the summary of a session again. If that takes longer than a run may, a later sweep sends it to be continued.

    ``stand_ins``: only what the fallback has made is rebuilt. A sweep sent it, and a later one sends it again if it
    does not succeed.

    Otherwise, if another process works on the session, this task is tried again when that process's lease has ended, up
    to five times.
    """
    memory = memory_of(alias, session_id)
    if memory is None:
        return
    with observers.originating(getattr(self.request, _ORIGIN, None)):
        result = memory.carry_out(session_id, "replace_stand_ins" if stand_ins else "rebuild", gives_way=True)
    if result.recovered:
        send_waiting(memory)
    if result.outcome != Outcome.BUSY or stand_ins or self.request.called_directly or self.request.is_eager:
        return
    if self.request.retries < REBUILD_TRIES:
        raise self.retry(countdown=memory.lease_seconds)
    logger.warning(
        "Session %s was not rebuilt: another process was working on it at each try. Request it again.", session_id
    )


def memory_of(alias: str, session_id: int) -> ConversationMemory | None:
    """Return the memory that a task is for, or None with a warning: the settings of this process do not have it."""
    try:
        return memories[alias]
    except UnknownAlias:
        logger.warning(
            "The task for session %s was dropped: CONVMEMORY has no alias %r. If it should have one, this worker runs "
            "with other settings than the process that sent the task.",
            session_id,
            alias,
        )
        return None


@shared_task(name="convmemory.sweep", ignore_result=True, soft_time_limit=QUEUED_FOR, time_limit=QUEUED_FOR + 30)
def sweep(limit: int = 100, queued_for: float = QUEUED_FOR, **unknown: object) -> None:
    """Send a task for each session that has been due for a minute and was not queued for ``queued_for`` seconds.

    At most ``limit`` sessions of each alias are in the queue, besides those that appends sent.
    """
    for alias in memories:
        try:
            memory = memories[alias]
            if memory.needs_worker:
                for _ in send_due(memory, limit=limit, queued_for=queued_for):
                    pass
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            # The other aliases may have another database or other settings.
            logger.exception("The sweep of memories[%r] failed. The next sweep tries again.", alias)


def send_due(
    memory: ConversationMemory, *, limit: int, queued_for: float = QUEUED_FOR, fewest_attempts: bool = False
) -> Iterator[int]:
    """Send at most ``limit`` due sessions of ``memory``, longest due first, and yield the id of each.

    If workers have left tasks waiting for a minute, fewer are sent, because more would only make the queue longer. If
    there is nothing else to do, a few summaries that the fallback has made are sent to be rebuilt. If the memory's
    own scheduler sends tasks, it sends these; otherwise a default :class:`CeleryScheduler` does.

    While the alias is paused nothing is sent, and after a pause one session, until the model answers. With
    ``fewest_attempts`` those that have failed less often come first. Raises :class:`BrokerUnavailable` if the broker
    cannot be reached.
    """
    waiting = 0
    if queued_for > PATIENCE:
        waiting = memory.store.waiting(memory.alias, after=PATIENCE, within=queued_for, limit=limit)
        # A tenth is always sent. Otherwise a session that lost its task would wait for ever if workers are always
        # behind.
        limit = max(limit - waiting, limit // 10)
    # After a pause, the first batch has the one session that may probe.
    alone = queued_for > 0 and not memory.pause.until_answered
    sent = 0
    while sent < limit:
        batch_limit = min(_SWEEP_BATCH, limit - sent) if sent or not alone else 1
        batch = memory.sweep(limit=batch_limit, queued_for=queued_for, fewest_attempts=fewest_attempts)
        yield from _send_all(memory, batch)
        sent += len(batch)
        # With a queued_for of 0, the next sweep would find the same sessions.
        if len(batch) < batch_limit or queued_for <= 0:
            break
    if sent < limit and not waiting and not (sent and memory.pause.until_answered):
        yield from _send_rebuilds(memory)


def _send_rebuilds(memory: ConversationMemory) -> Iterator[int]:
    scheduler: Scheduler = memory.scheduler if memory.scheduler.queues else CeleryScheduler()
    for session_id in memory.sweep_rebuilds():
        # A task that is not sent is sent by a later sweep.
        if scheduler.request(memory, session_id, "replace_stand_ins"):
            yield session_id


def _send_all(memory: ConversationMemory, batch: list[int]) -> list[int]:
    scheduler: Scheduler = memory.scheduler if memory.scheduler.queues else CeleryScheduler()
    for session_id in batch:
        if not isinstance(scheduler, SendingScheduler):
            scheduler.schedule(memory, session_id)
        elif not scheduler.send(memory, session_id, swept=True):
            raise BrokerUnavailable(
                f"The broker failed before all due sessions of memories[{memory.alias!r}] were sent. The log has a "
                "warning with the reason. The other sessions stay due, and a later sweep sends them."
            )
    return batch


class CeleryScheduler:
    """Sends a Celery task for a session that became due, after the commit of the transaction.

    ``queue`` is the name of the queue. None leaves it to the project's Celery settings, as for other tasks. The Celery
    app is the current one: with Django, the project's app.

    An append does not wait for the broker and does not fail because of it. Each process has a thread that sends, with
    timeouts of 0.25 seconds for each step and 0.6 seconds in all. After a failure the process does not try the broker
    for 30 seconds. A task that was not sent is sent by a later sweep.
    """

    after_commit = True
    queues = True

    def __init__(self, queue: str | None = "convmemory") -> None:
        self.queue = queue

    @property
    def folds_in_request(self) -> bool:
        """Whether tasks run where they are sent: with ``CELERY_TASK_ALWAYS_EAGER``."""
        return _eager()

    @property
    def problem(self) -> str | None:
        """Why no worker would get a task, or None. This does not ask the broker."""
        if _eager():
            return None
        if not compact.app.conf.broker_url:
            return (
                "no broker is configured for Celery. Set CELERY_BROKER_URL, and import the project's Celery app in the "
                "__init__.py of the project's package, beside the settings"
            )
        try:
            BrokerConnection(compact.app).load()
        except ImportError as error:
            return f"a library of Celery's broker is missing: {error}. For Redis, install django-convmemory[redis]"
        except Exception:  # noqa: BLE001  the sender logs it, without the URL and its password
            return None
        return None

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Send a task that folds the session in ``delay`` seconds. The sweep handles delays above 300 seconds."""
        if delay <= QUEUED_FOR:
            self.send(memory, session_id, delay=delay, wait=_must_wait())

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Send the task for ``work``. Return whether it was sent. Never raises."""
        task = compact if work in ("compact", "retry") else rebuild
        if _eager():
            _here(task, memory, session_id, **REQUESTED[work])
            return True
        # No sweep would send it again, so it does not expire.
        options = self._options(memory) | {"expiration": None} | _headers()
        hint = Hint(task.name, memory.alias, session_id, options, REQUESTED[work])
        return sender().send(hint, compact.app, wait=True)

    def send(
        self, memory: Memory, session_id: int, *, delay: float = 0.0, swept: bool = False, wait: bool = True
    ) -> bool:
        """Send a task that folds the session in ``delay`` seconds. Return whether the broker seems to be available.

        With ``wait``, return whether the task was sent; otherwise a thread sends it later. With
        ``CELERY_TASK_ALWAYS_EAGER`` the session is folded at once, in this process; a session with a ``delay`` is left
        to the sweep. Never raises.
        """
        if _eager():
            if delay <= 0:
                _here(compact, memory, session_id)
            return True
        options, arguments = self._options(memory, delay), {"swept": True} if swept else {}
        if not swept:  # A sweep is not what made the session due.
            options |= _headers()
        hint = Hint(compact.name, memory.alias, session_id, options, arguments)
        return sender().send(hint, compact.app, wait=wait)

    def _options(self, memory: Memory, delay: float = 0.0) -> dict[str, Any]:
        soft, hard = time_limits(memory)
        options: dict[str, Any] = {
            "countdown": delay + _CLOCK_SKEW if delay > 0 else None,
            # By the broker's clock, if it has one for messages (RabbitMQ does, Redis does not). Celery's own "expires"
            # compares the worker's clock with the sender's: if they differ much, every task would expire.
            "expiration": QUEUED_FOR + delay,
            "soft_time_limit": soft,
            "time_limit": hard,
            # Not persistent: RabbitMQ would write it to disk and confirm 4 ms later. A hint need not survive the
            # broker.
            "delivery_mode": 1,
        }
        if self.queue is not None:
            options["queue"] = self.queue
        return options


def _headers() -> dict[str, Any]:
    headers = observers.headers()
    return {"headers": {_ORIGIN: headers}} if headers else {}


def _eager() -> bool:
    try:
        return bool(compact.app.conf.task_always_eager)
    except Exception:  # noqa: BLE001  Celery's settings cannot be read: the sender fails in the same way, and logs it
        return False


def _must_wait() -> bool:
    """Return whether a thread may not get to send anything: in a task, whose process may end with it, and in uWSGI."""
    if current_task:  # type: ignore[truthy-bool]  # a proxy, false outside of a task
        return True
    # Without one of these options, uWSGI's processes run only the request's own thread, and only during a request.
    uwsgi = sys.modules.get("uwsgi")
    threaded = {"enable-threads", "threads", b"enable-threads", b"threads"}
    return uwsgi is not None and threaded.isdisjoint(getattr(uwsgi, "opt", ()))


def _here(task: Task[..., None], memory: Memory, session_id: int, **arguments: Any) -> None:
    try:
        # throw=False overrides CELERY_TASK_EAGER_PROPAGATES. The task logs its error, and the session's row has it.
        task.apply((memory.alias, session_id), arguments, throw=False)
    except SoftTimeLimitExceeded:
        raise  # of the task that appends
    except Exception:
        logger.exception("Compaction of session %s failed inside append.", session_id)


def time_limits(memory: Memory) -> tuple[int, int]:
    """Return the soft and the hard time limit, in seconds, of a task that folds a session of ``memory``.

    A run compares its time with ``max_run_seconds`` after each chunk, and a chunk takes at most three model calls.
    """
    models = [model for model in (memory.model, memory.fallback) if model is not None]
    call = max((model.deadline for model in models), default=0.0)
    soft = math.ceil(memory.options.max_run_seconds + 3 * call + 30)
    return soft, soft + 30
