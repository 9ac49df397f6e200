"""The run of a fold, from the claim to the release.

A run claims the session, reads its tail, calls the model with no transaction open, and publishes the new summary. It
repeats this for each chunk. It yields each model call and does everything else itself: :func:`drive` and
:func:`adrive` are the two ways to carry it out.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import NamedTuple

from asgiref.sync import sync_to_async

from django_convmemory import exceptions, observers
from django_convmemory.fold import call, chunk as chunks, version
from django_convmemory.fold.base import Fold, LeaseLost, Steps
from django_convmemory.observers import ModelCall
from django_convmemory.rules import pause
from django_convmemory.rules.values import Claim
from django_convmemory.search import indexing

logger = logging.getLogger(__name__)

# In seconds. A rebuild that failed is tried again after this time.
_REBUILD_WAIT = 86_400.0


class Outcome(enum.StrEnum):
    """The result of a run."""

    PUBLISHED = "published"
    NOT_DUE = "not_due"
    BUSY = "busy"
    STALLED = "stalled"


class Result(NamedTuple):
    """What came of a run. ``again``: not all is done; a task should go on in ``delay`` seconds.

    ``recovered``: the alias's model has answered for the first time after an outage. ``indexed``: the memory folds
    nothing, and messages were indexed. ``unfinished``: a rebuild has left the rest to another run.
    """

    outcome: Outcome
    again: bool = False
    delay: float = 0.0
    recovered: bool = False
    indexed: bool = False
    unfinished: bool = False

    @property
    def progressed(self) -> bool:
        """Whether the session has less to do than before."""
        return self.indexed or self.outcome == Outcome.PUBLISHED


def compact(fold: Fold, *, asked: bool = False, despite_pause: bool = False) -> Steps[Result]:
    """Fold what is due in the session.

    ``asked`` ignores that the time of the next attempt has not come, and ``despite_pause`` that the alias is paused.
    Before that, what is settled is indexed for search, so that an outage leaves nothing unindexed. A worker that is
    wanted by others leaves the rest of that to the next run.
    """
    store, session_id = fold.memory.store, fold.run.session_id
    if fold.memory.options.index:
        others_wait = (lambda: fold.others_wait(store.scopes(session_id)[0])) if fold.gives_way else None
        count, more = indexing.catch_up(store, session_id, others_wait=others_wait)
        if more and fold.gives_way:
            return Result(Outcome.NOT_DUE, again=True, indexed=count > 0)
    fold.admission = call.admission(fold, despite_pause=despite_pause)
    if not (fold.admission.own or fold.admission.fallback):
        # The first sweep after the pause finds it: see models.SessionQuerySet.unqueued.
        logger.info("Session %s is not folded now: memories[%r] is paused.", session_id, fold.run.alias)
        return Result(Outcome.STALLED)
    if fold.gives_way and not asked and fold.is_crowded():
        # No retry. The next run of its owner sends it: see _send_next.
        store.unqueue(session_id)
        logger.info("Session %s is not folded now: it has workers enough, and others wait.", session_id)
        return Result(Outcome.BUSY)
    claim = store.claim(
        session_id,
        fold.memory.threshold,
        lease=fold.lease,
        prompt_hash=fold.memory.requests.prompt_hash,
        force=asked or despite_pause,
        # While only the fallback may be asked, it is for sessions that have waited.
        due_for=0.0 if fold.admission.own else fold.memory.options.fallback_after,
    )
    if claim == "waiting":
        logger.info("Session %s is not folded now: the time of its next attempt has not come.", session_id)
    return (yield from _claimed(fold, claim))


def rebuild(fold: Fold, *, whole: bool) -> Steps[Result]:
    """Make the session's summary again from its messages, or go on with that.

    It begins after the last version before the first one that the fallback made, and if ``whole``, at the first
    message. A person asks for that, so it does not matter then that the alias is paused.
    """
    fold.admission = call.admission(fold, despite_pause=whole)
    if not fold.admission.own:
        return Result(Outcome.STALLED)
    prompt_hash = fold.memory.requests.prompt_hash
    claim = fold.memory.store.claim_rebuild(
        fold.run.session_id, lease=fold.lease, prompt_hash=prompt_hash, whole=whole, wait=_REBUILD_WAIT
    )
    return (yield from _claimed(fold, claim))


def _claimed(fold: Fold, claim: Claim | str) -> Steps[Result]:
    """Fold with the claim, or say why there is none."""
    try:
        if not isinstance(claim, Claim):
            return Result({"not_due": Outcome.NOT_DUE, "busy": Outcome.BUSY}.get(claim, Outcome.STALLED))
        fold.begin(claim)
        result = yield from _fold(fold)
        _send_next(fold)
    except BaseException as error:
        # This is not a model's failure. It is a defect of ours or of a backend, the worker's time limit, or a
        # cancelled call. Release the lease, and let the error be seen.
        _give_up(fold, error)
        raise
    finally:
        if fold.probe_until is not None:
            fold.memory.store.change_pause(fold.run.alias, lambda state: state.not_probed(fold.probe_until))
    return result._replace(recovered=fold.recovered)


def _fold(fold: Fold) -> Steps[Result]:
    planned, done, published = chunks.plan(fold), 0, False
    while done < planned.split:
        try:
            done = yield from _fold_next(fold, planned, done)
        except exceptions.ChatModelError as error:
            return _fail(fold, error)
        except LeaseLost:
            return _lose(fold)
        published = True
        if done < planned.split or not planned.is_all:
            if _must_stop(fold):
                break
            _send_next(fold)
            if done == planned.split:
                planned, done = chunks.plan(fold), 0
    is_rest = done < planned.split or not planned.is_all
    rebuild_in = 0.0 if fold.claim.rebuilding and is_rest else None
    window = fold.known_window if is_rest else None
    # Without a version, the run does not go on.
    due = fold.release(rebuild_in=rebuild_in, window=window, queued=published and fold.memory.queues(0.0))
    if not published:
        if due:
            logger.warning("Session %s is marked due, but nothing in it can be folded.", fold.run.session_id)
        return Result(Outcome.NOT_DUE)
    return Result(Outcome.PUBLISHED, due, unfinished=fold.claim.rebuilding and is_rest and not due)


def _must_stop(fold: Fold) -> bool:
    """Whether the rest is left to another run."""
    if fold.claim.rebuilding and not fold.claim.due_seconds and fold.memory.store.is_due(fold.run.session_id):
        return True  # It became due meanwhile.
    is_late = fold.seconds > fold.memory.options.max_run_seconds
    return is_late or (fold.gives_way and fold.others_wait(fold.claim.scope))


def _send_next(fold: Fold) -> None:
    """Send a session of the same owner whose task was dropped, because the owner had workers enough."""
    if fold.gives_way and fold.memory.queues(0.0):
        following = fold.memory.store.following(fold.claim)
        if following is not None:
            fold.memory.schedule(following)


def _fold_next(fold: Fold, planned: chunks.Plan, start: int) -> Steps[int]:
    """Fold the chunk that begins at ``start``, or a part of it. Return the index of the first turn not covered.

    If the model fails, try a smaller chunk or the other model at once, as far as that makes sense.
    Raises LeaseLost, or the last ChatModelError.
    """
    model, known_window = call.first(fold), fold.window
    while True:
        chunk = chunks.choose(fold, planned.turns, planned.ends, start)
        if chunk.is_wordless:
            version.carry(fold, chunk)
            return chunk.following
        try:
            yield from version.write(fold, chunk, model)
        except exceptions.ChatModelError as error:
            smaller = chunks.smaller_window(fold, chunk, error)
            if smaller is not None:
                if isinstance(error, exceptions.ContextLengthExceeded):
                    known_window = smaller
                    fold.known_window = smaller if model is fold.model else fold.known_window
                fold.window = smaller
                continue
            # Half of a chunk may have been a guess, which was of no use.
            fold.window = known_window
            other = call.following(fold, model, error)
            if other is not None:
                model = other
            elif isinstance(fold.own_error, pause.ANSWERS) and isinstance(fold.fallback_error, pause.ANSWERS):
                # Both models have answered that they cannot summarize it.
                version.carry(fold, chunk)
                return chunk.following
            else:
                raise
        else:
            return chunk.following


def _fail(fold: Fold, error: exceptions.ChatModelError) -> Result:
    """End a run whose models failed, the last one with ``error``."""
    claim, reason, text = fold.claim, pause.reason_of(error), call.printable(error)
    if claim.rebuilding:
        # The current summary stays, so nothing is urgent. A provider that fails again says nothing of the session.
        of_provider = reason is not None and not fold.situation.is_about_the_session(reason)
        rebuild_in = pause.LONGEST_OUTAGE_WAIT if of_provider else None
        delay = 0.0
        again = fold.release(rebuild_in=rebuild_in, queued=fold.memory.queues(delay))
        logger.warning("The rebuild of session %s failed: %s", claim.session_id, text)
    else:
        delay, counts = fold.situation.retry(error)
        queued = fold.memory.queues(delay)
        again = fold.release(retry_in=delay, error=text, uncount=not counts, window=fold.known_window, queued=queued)
        logger.warning(
            "Compaction of session %s failed. It is tried again in %.0f s or later: %s", claim.session_id, delay, text
        )
    fold.memory.store.on_commit(lambda: fold.memory.failed(claim, error))
    return Result(Outcome.STALLED, again, delay)


def _lose(fold: Fold) -> Result:
    """End a run whose lease expired, or whose session changed meanwhile. Its result is dropped."""
    delay = fold.situation.retry(exceptions.ChatModelError()).seconds
    error = "The lease expired before the model answered."
    again = fold.release(retry_in=delay, error=error, queued=fold.memory.queues(delay))
    # A person's rebuild is tried again.
    return Result(Outcome.BUSY, again, delay) if again or fold.claim.rebuilding else Result(Outcome.NOT_DUE)


def _give_up(fold: Fold, error: BaseException) -> None:
    """End a run that ``error`` interrupted, which is no model's failure."""
    if isinstance(error, Exception):
        fold.release(retry_in=pause.backoff(fold.claim.attempts), error=type(error).__name__)
    else:
        rebuild_in = 0.0 if fold.claim.rebuilding else None
        fold.release(error="Cancelled", uncount=True, rebuild_in=rebuild_in)


def drive(steps: Steps[Result]) -> Result:
    """Carry out a run. Blocks while a model answers."""
    try:
        request = _step(steps.__next__)
        while not isinstance(request, Result):
            try:
                with observers.calling(request):
                    request.response = request.model.chat(request.request)
            except Exception as error:  # noqa: BLE001  the run decides what to do
                request = _step(steps.throw, error)
            else:
                request = _step(steps.send, request.response)
        return request
    finally:
        # If the process was told to stop, the run is not at its end: closing it releases the lease.
        steps.close()


async def adrive(steps: Steps[Result]) -> Result:
    """Carry out a run. Its own steps run in a thread, one after the other, and the model's calls on the event loop."""
    step = sync_to_async(_step)
    try:
        request = await step(steps.__next__)
        while not isinstance(request, Result):
            try:
                with observers.calling(request):
                    request.response = await request.model.achat(request.request)
            except Exception as error:  # noqa: BLE001  the run decides what to do
                request = await step(steps.throw, error)
            else:
                request = await step(steps.send, request.response)
        return request
    finally:
        # If the task was cancelled, the run is not at its end: closing it releases the lease.
        await asyncio.shield(sync_to_async(steps.close)())


def _step(advance: Callable[..., ModelCall], *args: object) -> ModelCall | Result:
    try:
        return advance(*args)
    except StopIteration as stop:  # A future cannot carry it.
        result: Result = stop.value
        return result
