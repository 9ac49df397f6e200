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

import contextlib
import logging
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from celery import current_task, shared_task
from celery.exceptions import SoftTimeLimitExceeded

from django_convmemory.broker import Hint, Undelivered, sender
from django_convmemory.core.compaction import Outcome
from django_convmemory.exceptions import BrokerUnavailable, UnknownAlias
from django_convmemory.memory import memories
from django_convmemory.schedulers import Memory, Scheduler, Work

if TYPE_CHECKING:
    from celery import Task

    from django_convmemory.conversation import ConversationMemory

logger = logging.getLogger(__name__)

# Seconds for which a session is not told of again.
HINT_AGE = 300
# Seconds in which workers that keep up have taken a task.
PATIENCE = 60
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
        with contextlib.suppress(BrokerUnavailable):  # The sender has said so, and the sweep begins again.
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
        memory.scheduler.request(memory, session_id, "rebuild")
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
        waiting = memory.store.waiting(memory.alias, after=PATIENCE, within=hint_age, limit=limit)
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

    An append neither waits nor fails for it: each process has a thread that sends, on a connection of its own, with
    timeouts of 0.25 s a step and 0.6 s in all. A broker that fails is left alone for 30 s: what would be sent is
    dropped, and the sweep sends it later.
    """

    after_commit = True
    hints = True

    def __init__(self, queue: str | None = "convmemory") -> None:
        self.queue = queue

    @property
    def problem(self) -> str | None:
        """Why no worker would be told, or None. Whether the broker answers is not asked."""
        if compact.app.conf.broker_url or _eager():
            return None
        return (
            "no broker is configured for Celery: set CELERY_BROKER_URL, and import the project's Celery app where its "
            "settings are, in the __init__.py of its package. Without Celery, choose another SCHEDULER"
        )

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Send a task that folds the session in ``delay`` seconds; longer delays than 300 s are left to the sweep."""
        if delay <= HINT_AGE:
            self.send(memory, session_id, delay=delay, wait=_must_wait(), undelivered=memory.store.unhint)

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Send the task, and return whether the broker is there to take it. Never raises."""
        if _eager():
            _here(rebuild if work == "rebuild" else compact, memory, session_id, **_ASKED[work])
            return True
        task = rebuild.name if work == "rebuild" else compact.name
        # Nobody sends it again: it waits as long as it takes.
        options = self._options(memory) | {"expiration": None}
        hint = Hint(task, memory.alias, session_id, options, _ASKED[work])
        return sender().send(hint, compact.app, wait=True)

    def send(
        self,
        memory: Memory,
        session_id: int,
        *,
        delay: float = 0.0,
        swept: bool = False,
        wait: bool = True,
        undelivered: Undelivered | None = None,
    ) -> bool:
        """Send a task that folds the session in ``delay`` seconds, and return whether the broker is there to take it.

        Never raises. Without ``wait`` the task is handed over to a thread. Where it is not sent, ``undelivered`` is
        told, sooner or later. Where ``CELERY_TASK_ALWAYS_EAGER`` is set, the session is folded here and now; one that
        is to wait is left to the sweep.
        """
        if _eager():
            if delay <= 0:
                _here(compact, memory, session_id)
            return True
        hint = Hint(
            compact.name, memory.alias, session_id, self._options(memory, delay), {"swept": True} if swept else {}
        )
        return sender().send(hint, compact.app, wait=wait, undelivered=undelivered)

    def _options(self, memory: Memory, delay: float = 0.0) -> dict[str, Any]:
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
    except Exception:  # noqa: BLE001  Celery's settings cannot be read: the sender finds the same, and says so
        return False


def _must_wait() -> bool:
    """Whether a thread might not come to send anything: in a task, whose process may end with it, and in uWSGI."""
    if current_task:  # type: ignore[truthy-bool]  # a proxy, false where there is none
        return True
    # Without this option its processes run no thread but the request's own, and that only during a request.
    uwsgi = sys.modules.get("uwsgi")
    return uwsgi is not None and not {"enable-threads", "threads"} & {_text(name) for name in getattr(uwsgi, "opt", ())}


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _here(task: Task[..., None], memory: Memory, session_id: int, **arguments: Any) -> None:
    try:
        # Also with CELERY_TASK_EAGER_PROPAGATES: the task logs its error, and the session's row has it too.
        task.apply((memory.alias, session_id), arguments, throw=False)
    except SoftTimeLimitExceeded:
        raise  # of the task that appends
    except Exception:
        logger.exception("Compaction of session %s failed inside append.", session_id)


def time_limits(memory: Memory) -> tuple[int, int]:
    """Return the soft and the hard limit, in seconds, of a task that folds a session of ``memory``.

    A run looks at its clock, ``max_run_seconds``, after each chunk, and a chunk takes two calls of the model at most.
    """
    models = [model for model in (memory.model, memory.fallback) if model is not None]
    call = max((model.deadline for model in models), default=0.0)
    soft = math.ceil(memory.options.max_run_seconds + 2 * call + 30)
    return soft, soft + 30
