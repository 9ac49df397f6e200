"""A memory as its workers see it: what it is made of, and how its sessions are folded, indexed and swept.

:mod:`.handles` puts it together with what a site calls.
"""

from __future__ import annotations

import abc
import datetime as dt
import functools
import logging
import operator
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from asgiref.sync import sync_to_async
from django.dispatch import Signal

from django_convmemory import observers, scheduling, signals, tokens
from django_convmemory.chat_models.base import ChatModel, Price
from django_convmemory.exceptions import InvalidSession
from django_convmemory.fold import run
from django_convmemory.fold.base import Fold, Steps, lease_seconds
from django_convmemory.fold.request import Requests
from django_convmemory.fold.run import Outcome, Result
from django_convmemory.messages import check_text
from django_convmemory.operations import arguments
from django_convmemory.operations.arguments import NOT_GIVEN, Named
from django_convmemory.prompts import DefaultPrompts, Prompts
from django_convmemory.rules.options import TYPES, Options
from django_convmemory.rules.pause import Pause, Reason
from django_convmemory.rules.strategies import Strategy, Threshold
from django_convmemory.rules.values import MAX_ALIAS_LENGTH, MAX_COUNTER_NAME, Claim, Release, SessionName
from django_convmemory.search import indexing, reranking
from django_convmemory.store import Store

logger = logging.getLogger(__name__)

# A sweep compares so many sessions with a new threshold.
_COMPARED_BY_SWEEP = 5000
# All times are in seconds. A healthy worker starts a task within this time.
PATIENCE = 60.0
# If no worker has begun a rebuild by then, its task counts as lost.
_REBUILD_WAIT = 300.0
# A session of a memory that folds nothing is due when it has more messages that are not indexed.
MAX_UNINDEXED = 256
# The lease of a run that only indexes.
_INDEXING_LEASE = 3 * indexing.LONGEST

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

# Calls its first argument in the thread that has Django's connection. It is made once, because asgiref takes as long to
# make it as to use it.
_in_thread = sync_to_async(operator.call)


def asynchronous(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous twin of a method. It runs the method in a thread.

    If the twin is cancelled, a method that has begun runs to its end, and one that waits for the thread does not run.
    """

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name, so that the twin calls the method of a subclass that overrides it.
        call: Callable[..., T] = getattr(self, method.__name__)
        return cast("T", await _in_thread(call, *args, **kwargs))

    functools.update_wrapper(twin, method)
    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = method.__qualname__.removesuffix(method.__name__) + twin.__name__
    twin.__doc__ = f"The asynchronous twin of :meth:`{method.__name__}`."
    return twin


class BaseMemory(scheduling.Memory):
    """A memory without the operations: what schedulers, tasks and sweeps use of it.

    :class:`.ConversationMemory` describes the arguments.
    """

    strategy_class: type[Strategy]
    summarizes = False
    # A sweep takes what has been due for so many seconds, if the scheduler sends tasks.
    swept_after = PATIENCE

    def __init__(
        self,
        store: Store,
        strategy: Strategy,
        *,
        model: ChatModel | None = None,
        fallback: ChatModel | None = None,
        counter: tokens.TokenCounter | None = None,
        scheduler: scheduling.Scheduler | None = None,
        alias: str = "default",
        price: Price | None = None,
        prompts: Prompts | None = None,
        reranker: reranking.Reranker | None = None,
        zone: dt.tzinfo = dt.UTC,
        **options: Any,
    ) -> None:
        self.store = store
        self.strategy = strategy
        self.model = model
        self.fallback = fallback
        self.counter = counter or tokens.Utf8TokenCounter()
        self.scheduler = scheduler or scheduling.InlineScheduler()
        self.alias = check_text(alias, "alias")
        # Returns the aliases whose sessions wait for the same workers.
        self.sharing: Callable[[], tuple[str, ...]] = lambda: (alias,)
        if not 0 < len(alias) <= MAX_ALIAS_LENGTH:
            raise ValueError(f"alias must be a string of 1 to {MAX_ALIAS_LENGTH} characters, not {alias!r:.120}.")
        self.price = price
        self.reranker = reranker
        if unknown := sorted(options.keys() - TYPES.keys()):
            raise ValueError(f"Unknown option {unknown[0]!r}. Choose one of: {', '.join(sorted(TYPES))}.")
        self.options = Options(**options).sized(strategy.threshold.tokens)
        self.requests = Requests(prompts or DefaultPrompts(), self.options, self.counter, zone)
        # When a session is due: to be folded, or to be indexed for searches if the memory folds nothing.
        self.threshold = strategy.threshold
        if self.options.index and self.threshold == Threshold():
            self.threshold = Threshold(unindexed=MAX_UNINDEXED)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias!r}: {self.strategy}>"

    @property
    def needs_worker(self) -> bool:
        """Whether a worker has something to do for this memory: to fold, or to index for searches."""
        return self.summarizes or self.options.index

    # Each append needs it, and it does not change.
    @functools.cached_property
    def counter_name(self) -> str:
        """The name of the token counter, as a session stores it."""
        return self.counter.name[:MAX_COUNTER_NAME]

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.sharing()

    def carry_out(
        self,
        session_id: int,
        work: scheduling.Work,
        *,
        asked: bool = True,
        gives_way: bool = False,
        swept: bool = False,
    ) -> Result:
        """Do ``work`` for the session with this id, now, in this process. For schedulers and tasks.

        ``gives_way``: leave the rest to a later run if sessions of other owners wait. ``swept``: its task, too, sends
        the next due session when it is done.
        """
        # Where a task runs at once, the next one would run inside this one. And an operator's retry is not to meet the
        # pause that it was to ignore.
        gives_way = gives_way and work != "retry" and not getattr(self.scheduler, "folds_in_request", False)
        if self.model is not None:
            with observers.folding(observers.Run(alias=self.alias, session_id=session_id, work=work)) as observed:
                steps = self._steps(self.model, observed, asked=asked, gives_way=gives_way, swept=swept)
                result = run.drive(steps)
        elif work in ("compact", "retry"):
            result = self._finish(session_id, self._index(session_id, asked=asked, gives_way=gives_way), swept=swept)
        else:
            result = Result(Outcome.NOT_DUE)
        if self.reranker is not None:
            reranking.prepare(self.reranker, session_id)
        return result

    def _steps(
        self,
        model: ChatModel,
        observed: observers.Run,
        *,
        asked: bool = True,
        gives_way: bool = False,
        swept: bool = False,
    ) -> Steps[Result]:
        """Take the steps of the run ``observed``."""
        fold = Fold(memory=self, model=model, run=observed, gives_way=gives_way)
        if observed.work in ("compact", "retry"):
            result = yield from run.compact(fold, asked=asked, despite_pause=observed.work == "retry")
        else:
            result = yield from run.rebuild(fold, whole=observed.work == "rebuild")
        observed.outcome = result.outcome.value
        if result.unfinished and gives_way:
            work: scheduling.Work = "rebuild" if observed.work == "rebuild" else "replace_stand_ins"
            self.scheduler.request(self, observed.session_id, work)
        return self._finish(observed.session_id, result, swept=swept)

    def _finish(self, session_id: int, result: Result, *, swept: bool) -> Result:
        if result.again:
            if swept and not result.delay and isinstance(self.scheduler, scheduling.SendingScheduler):
                self.scheduler.send(self, session_id, swept=True)
            else:
                self.schedule(session_id, result.delay)
        return result

    def compact_id(
        self, session_id: int, *, asked: bool = False, despite_pause: bool = False, swept: bool = False
    ) -> Result:
        """Fold what is due in the session with this id. If it is still due then, tell the scheduler.

        For schedulers, tasks and the sweep. It leaves the rest to a later run if sessions of other owners wait.
        ``asked`` ignores that the next attempt has to wait, and ``despite_pause`` that the alias is paused. A memory
        without summaries only indexes the session.
        """
        work: scheduling.Work = "retry" if despite_pause else "compact"
        return self.carry_out(session_id, work, asked=asked, gives_way=True, swept=swept)

    def _index(self, session_id: int, *, asked: bool, gives_way: bool) -> Result:
        """Index a session of a memory that folds nothing. It takes the lease only for that."""
        claim = self.store.claim(session_id, self.threshold, lease=_INDEXING_LEASE, prompt_hash="", force=asked)
        if claim == "not_due":
            # A search asks for sessions that are not due.
            count, _ = indexing.catch_up(self.store, session_id)
            return Result(Outcome.NOT_DUE, indexed=count > 0)
        if not isinstance(claim, Claim):
            return Result({"busy": Outcome.BUSY}.get(claim, Outcome.NOT_DUE))
        try:
            others_wait = functools.partial(self.store.others_wait, claim.scope, self.aliases) if gives_way else None
            count, _ = indexing.catch_up(self.store, session_id, others_wait=others_wait)
        finally:
            again = self.store.release(claim, self.threshold, Release(queued=self.queues(0.0)))
        logger.info("Indexed %d messages of session %s.", count, session_id)
        # If nothing could be indexed, a task that comes at once could not either.
        return Result(Outcome.NOT_DUE, again and count > 0, indexed=count > 0)

    @property
    def lease_seconds(self) -> float:
        """How many seconds a process may fold a session before another one may take over."""
        return _INDEXING_LEASE if self.model is None else lease_seconds(self.model, self.fallback)

    @property
    def pause(self) -> Pause:
        """The state of the memory's own model: how often it has failed, and until when nobody calls it."""
        return self.store.pause_of(self.alias)

    @property
    def paused(self) -> bool:
        """Whether nobody calls the model now, because it does not answer, is misconfigured, or its rate is limited."""
        return self.pause.paused

    @property
    def misconfigured(self) -> bool:
        """Whether the model's newest answer, however old, says that the configuration is wrong."""
        return self.pause.reason == Reason.MISCONFIGURED

    def sweep(
        self, *, limit: int = 1000, queued_for: float = 300.0, fewest_attempts: bool = False, chained: bool = False
    ) -> list[int]:
        """Return the ids of due sessions that nobody folds and that were not queued in the last ``queued_for`` seconds.

        If the scheduler sends tasks, they have been due for a minute: before that, the task of the append is on its
        way. With a ``queued_for`` of 0 there are all that nobody folds. They count as queued from now on.

        One of each owner or visitor comes first, or with ``fewest_attempts`` those that have failed less often.
        ``chained``: a task that is done sends the next one. That is the longest due, but of no owner who has workers
        enough. There are none while the alias is paused, and one after a pause, until the model answers; besides these,
        there are those for which the fallback may stand in, and those that have to be indexed, which needs no model.
        """
        # After a pause, the tasks of the appends have found the pause and ended.
        due_for = self.swept_after if self.scheduler.queues and queued_for and not fewest_attempts else 0.0
        most_leases = self.options.max_runs_per_owner if chained else None
        swept = functools.partial(self.store.sweep, self.alias, queued_for=queued_for, most_leases=most_leases)
        pause = self.pause
        if pause.holds:
            session_ids = []
            if self.fallback is not None and pause.silent_for(self.options.fallback_after):
                session_ids = swept(limit=limit, due_for=max(due_for, self.options.fallback_after))
            if not session_ids and (probes := pause.sent_by_sweep(limit)):
                session_ids = swept(limit=probes, due_for=due_for, fewest_attempts=True)
            if self.options.index and len(session_ids) < limit:
                session_ids += swept(limit=limit - len(session_ids), due_for=due_for, unindexed=MAX_UNINDEXED)
        else:
            session_ids = swept(limit=limit, due_for=due_for, fewest_attempts=fewest_attempts)
        if len(session_ids) < limit and self.model is not None:
            self.store.mark_unmarked(self.alias, self.threshold, limit=_COMPARED_BY_SWEEP)
        return session_ids

    def sweep_rebuilds(self, *, limit: int = 10) -> list[int]:
        """Return the ids of sessions whose summary is to be rebuilt, or whose rebuild is not finished.

        None of them is due. There are none while the alias is paused, and one after a pause, until the model answers.
        Those that were returned in the last five minutes, and that no worker has begun, count towards ``limit``. So
        slow workers do not leave a queue of rebuilds in front of a session that becomes due.
        """
        pause = self.pause
        if self.model is None:
            return []
        if not pause.holds:
            limit -= self.store.waiting_rebuilds(self.alias, within=_REBUILD_WAIT, limit=limit)
        limit = pause.sent_by_sweep(limit)
        return self.store.sweep_rebuilds(self.alias, limit=limit, wait=_REBUILD_WAIT) if limit > 0 else []

    @abc.abstractmethod
    def session(self, key: str | Named, *, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> Any:
        """Return a handle of a session."""

    def resolve(self, session: str | Named) -> SessionName:
        """Return the name of the session that a key, a handle or a ``Session`` row stands for.

        Raises :class:`~django_convmemory.exceptions.InvalidSession` for a session of another alias.
        """
        if isinstance(session, str):
            return SessionName(self.alias, arguments.check_key(session))
        # isinstance() with a protocol would take longer than the rest of this function.
        name = getattr(session, "session_name", None)
        if not isinstance(name, SessionName):
            raise InvalidSession(
                f"Pass the session as a key, a handle or a Session row, not as {type(session).__name__}."
            )
        if name.alias != self.alias:
            raise InvalidSession(
                f"The session {name.key!r} belongs to memories[{name.alias!r}], not to memories[{self.alias!r}]."
            )
        return name

    def _send(self, signal: Signal, name: SessionName, session_id: int, **arguments: Any) -> None:
        """Send a signal with a handle of the session."""
        session = self.session(name)
        signal.send_robust(sender=type(self), memory=self, session=session, session_id=session_id, **arguments)

    def published(self, claim: Claim) -> None:
        if claim.summary is not None:
            self._send(signals.summary_published, claim.name, claim.session_id, version=claim.summary.version)

    def failed(self, claim: Claim, error: Exception) -> None:
        self._send(signals.compaction_failed, claim.name, claim.session_id, error=error)

    def queues(self, delay: float) -> bool:
        """Whether :meth:`schedule` sends a task that folds a session in ``delay`` seconds."""
        return self.scheduler.queues and (not delay or getattr(self.scheduler, "defers", True))

    def schedule(self, session_id: int, delay: float = 0.0) -> None:
        if not self.summarizes and getattr(self.scheduler, "problem", None):
            return  # A site without summaries needs no broker. The sweep indexes, and a search reads what is new.
        schedule = functools.partial(self.scheduler.schedule, self, session_id, delay=delay)
        if self.scheduler.after_commit:
            self.store.on_commit(schedule)
        else:
            schedule()


class Folding(BaseMemory):
    """Folds the sessions that a site names."""

    def compact(self, session: str | Named, *, despite_pause: bool = False) -> Outcome:
        """Fold what is due in the session, now, in this process, even if the next attempt has to wait.

        While the alias is paused because its model does not answer, nothing is folded, unless ``despite_pause`` is
        true. Returns ``"published"``, ``"not_due"``, ``"busy"`` (another process folds it) or ``"stalled"`` (the model
        failed, or the alias is paused).
        """
        return self._fold(session, "retry" if despite_pause else "compact")

    async def acompact(self, session: str | Named, *, despite_pause: bool = False) -> Outcome:
        """The asynchronous twin of :meth:`compact`. The model's call does not occupy a thread."""
        return await self._afold(session, "retry" if despite_pause else "compact")

    def rebuild(self, session: str | Named) -> Outcome:
        """Make the summary of the session again from its messages, now, in this process.

        The old summary is shown until the new one covers as much. Returns ``"published"``, ``"not_due"`` (there is no
        summary), ``"busy"`` or ``"stalled"``. If the process ends before, or that takes longer than
        ``max_run_seconds``, a sweep or the next call continues.
        """
        return self._fold(session, "rebuild")

    async def arebuild(self, session: str | Named) -> Outcome:
        """The asynchronous twin of :meth:`rebuild`. The model's calls do not occupy a thread."""
        return await self._afold(session, "rebuild")

    def _fold(self, session: str | Named, work: scheduling.Work) -> Outcome:
        session_id = self.store.find(self.resolve(session))
        return Outcome.NOT_DUE if session_id is None else self.carry_out(session_id, work).outcome

    async def _afold(self, session: str | Named, work: scheduling.Work) -> Outcome:
        if self.model is None:
            return await sync_to_async(self._fold)(session, work)
        session_id = await sync_to_async(self.store.find)(self.resolve(session))
        if session_id is None:
            return Outcome.NOT_DUE
        with observers.folding(observers.Run(alias=self.alias, session_id=session_id, work=work)) as observed:
            return (await run.adrive(self._steps(self.model, observed))).outcome

    def request_compaction(self, session: str | Named, *, despite_pause: bool = False) -> bool:
        """Ask the scheduler to fold what is due in the session soon, even if the next attempt has to wait.

        This is for web requests, which must not wait for a model. ``despite_pause`` is as for :meth:`compact`. Returns
        False if nobody could be asked. The session then stays due, and a sweep finds it.
        """
        return self._request(session, "retry" if despite_pause else "compact")

    arequest_compaction = asynchronous(request_compaction)

    def request_rebuild(self, session: str | Named) -> bool:
        """Ask the scheduler to make the summary of the session again soon.

        Returns False if nobody could be asked. Then nothing happens.
        """
        return self._request(session, "rebuild")

    arequest_rebuild = asynchronous(request_rebuild)

    def _request(self, session: str | Named, work: scheduling.Work) -> bool:
        session_id = self.store.find(self.resolve(session))
        return session_id is not None and self.model is not None and self.scheduler.request(self, session_id, work)
