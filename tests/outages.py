"""Outages of a chat model, simulated: an hour of sweeps, tasks and calls takes seconds.

A :class:`Simulation` runs the tasks of a queue with some workers, and a sweep each minute. Runs of compaction are
generators, so many workers take turns in one thread. The database's clock, the time of a run and the random part of
each pause belong to the simulation. So a seed decides all that happens. Everything else is the app's own code.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import enum
import functools
import heapq
import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from django.db import connection
from django.db.models import DateTimeField, F, Q

from django_convmemory import exceptions, models, tasks
from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.fold import base, call as calls
from django_convmemory.fold.base import Steps
from django_convmemory.fold.run import Outcome, Result
from django_convmemory.messages import ChatMessage
from django_convmemory.observers import Run
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules import pause
from django_convmemory.rules.pause import Reason
from django_convmemory.scheduling import Memory, Work
from django_convmemory.store import Store
from tests.folding import build

MINUTE = 60.0
# Messages of a session with this word are never answered in time, and those with the second one never well.
SLOW = "SLOW"
POISON = "POISON"
SUMMARY = "The user and the assistant talked about the weather."


def skip(seconds: float) -> None:
    """Let ``seconds`` pass for the pauses, and for all sessions that wait for something."""
    waiting = Q(due_since__isnull=False) | Q(lease_expires_at__isnull=False) | Q(rebuild_after__isnull=False)
    for rows in (models.Session.objects.filter(waiting), models.AliasState.objects.all()):
        times = [field.name for field in rows.model._meta.fields if isinstance(field, DateTimeField)]
        rows.update(**{name: F(name) - dt.timedelta(seconds=seconds) for name in times})


def pause_alias(store: Store, reason: Reason, error: str, *, alias: str = "default", seconds: float = 60.0) -> None:
    """Pause an alias from now on."""
    store.change_pause(
        alias,
        lambda state: state._replace(
            since=state.now, paused_until=state.now + dt.timedelta(seconds=seconds), reason=reason, error=error
        ),
    )


class DatabaseClock:
    """Sets the clock of the test's connection, for as long as the test's transaction."""

    def __init__(self) -> None:
        self._now: dt.datetime | None = None
        if connection.vendor == "postgresql":
            # Found before the functions of the same names that PostgreSQL has.
            with connection.cursor() as cursor:
                cursor.execute("CREATE SCHEMA simulated")
                for name in ("clock_timestamp", "statement_timestamp"):
                    cursor.execute(
                        f"CREATE FUNCTION simulated.{name}() RETURNS timestamptz VOLATILE LANGUAGE sql "
                        "AS 'SELECT pg_catalog.current_setting(''simulated.now'')::timestamptz'"
                    )
                cursor.execute("SET LOCAL search_path = simulated, pg_catalog, public")
        elif connection.vendor == "sqlite":
            connection.ensure_connection()
            connection.connection.create_function("strftime", -1, self._strftime)

    def set(self, now: dt.datetime) -> None:
        """Stop the clock at ``now``."""
        self._now = now
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SELECT set_config('simulated.now', %s, TRUE)", [now.isoformat()])
            elif connection.vendor == "mysql":
                cursor.execute("SET timestamp = %s", [now.timestamp()])

    def reset(self) -> None:
        """Let the clock go on, at the true time. The end of the transaction does it on PostgreSQL."""
        self._now = None
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute("SET timestamp = DEFAULT")

    def _strftime(self, form: str, moment: str, later: str = "0 seconds") -> str:
        # SQLite's own function cannot be had back, so this one stays in the connection. It is called for the present
        # moment only.
        assert moment == "now"
        now = (self._now or dt.datetime.now(dt.UTC)) + dt.timedelta(seconds=float(later.removesuffix(" seconds")))
        return now.strftime(form.replace("%f", "%S.")) + f"{now.microsecond // 1000:03}"


class State(enum.Enum):
    """What a provider does with a call."""

    UP = enum.auto()
    DOWN = enum.auto()
    TIMES_OUT = enum.auto()
    WRONG_KEY = enum.auto()


@dataclasses.dataclass
class Provider:
    """A chat model whose state at each time is ``state(now)``, in simulated seconds since the beginning.

    With ``calls_a_minute`` it answers the other calls of the last 60 seconds with 429. ``calls`` are the times of all
    calls that it got.
    """

    state: Callable[[float], State] = lambda now: State.UP
    calls_a_minute: int | None = None
    name: str = "provider"
    deadline: float = 60.0
    seconds: float = 2.0
    calls: list[float] = dataclasses.field(default_factory=list)
    accepted: list[float] = dataclasses.field(default_factory=list)

    def begin(self, request: ChatRequest, now: float) -> tuple[float, ChatResponse | Exception]:
        """Return how many seconds the call takes, and what then comes of it."""
        self.calls.append(now)
        if POISON in request.messages[-1].text:
            return self.seconds, ChatResponse(ChatMessage.ai("NONE"), model=self.name)
        state = State.TIMES_OUT if SLOW in request.messages[-1].text else self.state(now)
        if state == State.DOWN:
            return 0.2, exceptions.ModelUnavailable("503 Service Unavailable")
        if state == State.TIMES_OUT:
            return self.deadline, exceptions.ModelUnavailable("timed out")
        if state == State.WRONG_KEY:
            return 0.2, exceptions.ModelMisconfigured("401 Unauthorized")
        if self.calls_a_minute is not None:
            if sum(call > now - MINUTE for call in self.accepted[-self.calls_a_minute :]) >= self.calls_a_minute:
                return 0.2, exceptions.RateLimited("429 Too Many Requests")
            self.accepted.append(now)
        return self.seconds, ChatResponse(ChatMessage.ai(SUMMARY), model=self.name)

    def chat(self, request: ChatRequest) -> ChatResponse:
        raise AssertionError("The simulation asks the provider by begin().")

    async def achat(self, request: ChatRequest) -> ChatResponse:
        return self.chat(request)


class Task(NamedTuple):
    """A task in the queue: :func:`.tasks.compact` or :func:`.tasks.rebuild`."""

    session_id: int
    work: Work
    swept: bool
    expires: float


class Queue(tasks.CeleryScheduler):
    """The scheduler of Celery, with the queue of a simulation instead of the broker."""

    after_commit = False

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.simulation = simulation

    def send(
        self,
        memory: Memory,
        session_id: int,
        *,
        delay: float = 0.0,
        swept: bool = False,
        wait: bool = True,
    ) -> bool:
        if self.simulation.loses_hints and not swept and not delay:
            return True
        options = self._options(memory, delay)
        task = Task(session_id, "compact", swept, self.simulation.now + options["expiration"])
        self.simulation.deliver(task, options["countdown"] or 0.0)
        return True

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        self.simulation.deliver(Task(session_id, work, swept=False, expires=float("inf")), 0.0)
        return True


class Sample(NamedTuple):
    """The state of all sessions after a sweep. ``stand_ins`` are valid versions that the fallback has made."""

    minute: float
    due: int
    stand_ins: int
    paused: bool


class Simulation:
    """A memory with a provider, a queue, workers and a sweep each minute.

    - ``seed`` decides how long the random pauses are. With ``loses_hints``, the tasks of appends are lost.
    - ``now`` is the simulated time in seconds since the beginning.
    - ``became_due``, ``folded`` and ``finished`` have the time for each key at which it became due, at which its first
      summary was published, and at which nothing was left to fold.
    - ``samples`` has the state after each sweep.
    - ``most_failures`` is the largest number of failures in a row that were counted.
    """

    def __init__(
        self, provider: Provider, *, workers: int = 4, seed: int = 0, loses_hints: bool = False, **options: Any
    ) -> None:
        self.provider, self.workers, self.loses_hints = provider, workers, loses_hints
        self.memory: ConversationMemory = build(provider, scheduler=Queue(self), **options)
        self.became_due: dict[str, float] = {}
        self.folded: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.samples: list[Sample] = []
        self.most_failures = 0
        self._keys: dict[int, str] = {}
        self.now = 0.0
        self.began = dt.datetime.now(dt.UTC).replace(microsecond=0)
        self._clock = DatabaseClock()
        self._clock.set(self.began)
        waits, simulated = random.Random(seed), SimpleNamespace(monotonic=lambda: self.now)
        self._patches = contextlib.ExitStack()
        self._patches.enter_context(mock.patch.object(pause, "random", waits))
        for module in (base, calls):
            self._patches.enter_context(mock.patch.object(module, "time", simulated))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ready: collections.deque[Task] = collections.deque()
        self._running: list[Steps[Result]] = []
        self.at(MINUTE, self._sweep)

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Do ``action`` at this time, or as soon as possible."""
        heapq.heappush(self._events, (moment, next(self._numbers), action))

    def run(self, minutes: float) -> None:
        """Let everything happen that happens until the end of this minute since the beginning."""
        while self._events and self._events[0][0] <= minutes * MINUTE:
            moment, _, action = heapq.heappop(self._events)
            self._skip_to(moment)
            action()
            self._work()
        self._skip_to(minutes * MINUTE)

    def close(self) -> None:
        """End the calls that no answer has come for, and let the time go on."""
        for run in self._running:
            run.close()
        self._patches.close()
        self._clock.reset()

    def waits(self, word: str = "") -> list[float]:
        """Return for how many minutes each session waited whose key has ``word`` in it. All of them are folded."""
        return [(self.folded[key] - since) / MINUTE for key, since in self.became_due.items() if word in key]

    def make_due(self, key: str, *, word: str = "", visitor: str = "", exchanges: int = 4) -> None:
        """Append messages to a new session, which make it due. The first ones have the ``word``."""
        question = ChatMessage.human(f"{word} It rains today, and it is cold.")
        session = self.memory.session(key, visitor=visitor) if visitor else self.memory.session(key)
        session.append(*[question, ChatMessage.ai("So take your coat, and your umbrella too.")] * exchanges)
        session_id = self.memory.store.find(session.session_name)
        assert session_id is not None
        assert self.memory.store.is_due(session_id)
        self._keys[session_id] = key
        self.became_due[key] = self.now

    def deliver(self, task: Task, delay: float) -> None:
        """Put a task into the queue, from which a free worker takes it."""
        self.at(self.now + delay, lambda: self._ready.append(task))

    def _skip_to(self, moment: float) -> None:
        if moment > self.now:
            self.now = moment
            self._clock.set(self.began + dt.timedelta(seconds=moment))

    def _sweep(self) -> None:
        for _ in tasks.send_due(self.memory, limit=100):
            pass
        due = models.Session.objects.due().count()
        stand_ins = models.Summary.objects.valid().filter(stand_in=True).count()
        self.samples.append(Sample(self.now / MINUTE, due, stand_ins, self.memory.pause.until_answered))
        self.at(self.now + MINUTE, self._sweep)

    def _work(self) -> None:
        """Let free workers take tasks."""
        while len(self._running) < self.workers and self._ready:
            task = self._ready.popleft()
            if task.expires < self.now:
                continue
            observed = Run(alias=self.memory.alias, session_id=task.session_id, work=task.work)
            run = self.memory._steps(self.provider, observed, asked=False, gives_way=True, swept=task.swept)
            self._running.append(run)
            self._advance(task, run, functools.partial(next, run))

    def _advance(self, task: Task, run: Steps[Result], step: Callable[[], Any]) -> None:
        """Continue a run until it ends, or until it calls the provider."""
        try:
            call = step()
            while call.model is not self.provider:
                call = run.send(call.model.chat(call.request))
        except StopIteration as stop:
            self._running.remove(run)
            self._end(task, stop.value)
            return
        seconds, answer = self.provider.begin(call.request, self.now)
        advance = run.throw if isinstance(answer, Exception) else run.send
        self.at(self.now + seconds, lambda: self._advance(task, run, lambda: advance(answer)))

    def _end(self, task: Task, result: Result) -> None:
        """Do what the tasks do with a result."""
        self.most_failures = max(self.most_failures, self.memory.pause.failures)
        if task.work == "compact" and result.outcome == Outcome.PUBLISHED:
            self.folded.setdefault(self._keys[task.session_id], self.now)
            if not result.again:
                self.finished[self._keys[task.session_id]] = self.now
        if result.recovered:
            tasks.send_waiting(self.memory)
        elif task.swept and result.progressed and not result.again:
            tasks._send_all(self.memory, self.memory.sweep(limit=1, queued_for=tasks.QUEUED_FOR, chained=True))
