"""Compaction: one run of folding for one session.

A run claims the session, reads its tail, calls the model with no transaction open, and publishes the new summary. It
repeats this for each chunk.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Generator, Sequence

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel, ChatResponse
from django_convmemory.fold import chunks
from django_convmemory.fold.attempts import Price
from django_convmemory.fold.chunks import Chunk
from django_convmemory.fold.failures import EarlyEnd
from django_convmemory.fold.model_calls import ModelCaller
from django_convmemory.fold.model_choice import Admission, ModelChoice
from django_convmemory.fold.requests import Requests
from django_convmemory.fold.runs import LeaseLost, Outcome, Result, Run
from django_convmemory.fold.versions import VersionMaker
from django_convmemory.observers import Call
from django_convmemory.rules import exchanges
from django_convmemory.rules.exchanges import Turn
from django_convmemory.rules.options import Options
from django_convmemory.rules.strategies import Strategy
from django_convmemory.rules.values import AttemptRecord, Claim, DueRule, NewVersion, is_final
from django_convmemory.search import indexing
from django_convmemory.store.either import Store
from django_convmemory.tokens import TokenCounter

logger = logging.getLogger(__name__)

# All times are in seconds. A lease lasts for one model call, and this time to write.
_WRITING = 30.0
# A rebuild that failed is tried again after this time.
_REBUILD_WAIT = 86_400.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """Folds the sessions of one memory."""

    store: Store
    strategy: Strategy
    options: Options
    counter: TokenCounter
    requests: Requests
    model: ChatModel
    fallback: ChatModel | None = None
    price: Price | None = None
    on_claimed: Callable[[Claim], None] = lambda claim: None
    on_published: Callable[[Claim], None] = lambda claim: None
    on_failed: Callable[[Claim, Exception], None] = lambda claim, error: None
    # Whether a task will fold the session later if a result says ``again``. The session's row notes it.
    queues: bool = False

    @property
    def lease(self) -> float:
        """How many seconds a lease lasts: one model call, and 30 seconds to write. Each call renews it before."""
        return max(model.deadline for model in (self.model, self.fallback) if model is not None) + _WRITING

    @property
    def rule(self) -> DueRule:
        """When a session is due."""
        return DueRule(self.strategy.threshold, self.options.reanchor_every)

    def run(self, alias: str, session_id: int, *, asked: bool = False, despite_pause: bool = False) -> Run:
        """Fold what is due in the session.

        ``asked`` ignores that the time of the next attempt has not come, and ``despite_pause`` that the alias is
        paused. Before that, what is settled is indexed for search, so that an outage leaves nothing unindexed.
        """
        if self.options.index:
            indexing.catch_up(self.store, session_id)
        admission = self._admission(alias, despite_pause=despite_pause)
        if not (admission.own or admission.fallback):
            # The first sweep after the pause finds it: see models.SessionQuerySet.unqueued.
            logger.info("Session %s is not folded now: memories[%r] is paused.", session_id, alias)
            return Result(Outcome.STALLED)
        claim = self.store.claim(
            session_id,
            self.rule,
            lease=self.lease,
            prompt_hash=self.requests.prompt_hash,
            force=asked or despite_pause,
        )
        if claim == "waiting":
            logger.info("Session %s is not folded now: the time of its next attempt has not come.", session_id)
        return (yield from self._fold(alias, claim, admission))

    def rebuild(self, alias: str, session_id: int, *, stand_ins: bool = False) -> Run:
        """Make the session's summary again, from its first message.

        With ``stand_ins``, begin after the last version before the first one that the fallback made, and stop when the
        session becomes due.
        """
        admission = self._admission(alias, despite_pause=not stand_ins)
        if not admission.own:
            return Result(Outcome.STALLED)
        claim = self.store.claim_rebuild(
            session_id,
            lease=self.lease,
            prompt_hash=self.requests.prompt_hash,
            stand_ins=stand_ins,
            wait=_REBUILD_WAIT,
            reanchor_every=self.options.reanchor_every,
        )
        return (yield from self._fold(alias, claim, admission, stand_ins=stand_ins))

    def _admission(self, alias: str, *, despite_pause: bool) -> Admission:
        state = self.store.breaker(alias)
        fallback = self.fallback is not None and state.silent_for(self.options.fallback_after)
        reason = state.reason if state.open else ""
        if despite_pause or not (state.open or state.paused):
            return Admission(own=True, fallback=fallback, reason=reason)
        probe = state.open and not state.paused and self.store.probe(alias, seconds=self.lease)
        return Admission(own=probe, fallback=fallback, probe=probe, reason=reason)

    def _fold(self, alias: str, claim: Claim | str, admission: Admission, *, stand_ins: bool = False) -> Run:
        if not isinstance(claim, Claim):
            if admission.probe:
                self.store.end_probe(alias)
            return Result({"not_due": Outcome.NOT_DUE, "busy": Outcome.BUSY}.get(claim, Outcome.STALLED))
        self.on_claimed(claim)
        folding = _Folding(self, claim, admission, stand_ins=stand_ins)
        try:
            result = yield from folding.run()
        except BaseException as error:
            # This is not a model's failure. It is a defect of ours or of a backend, the worker's time limit, or a
            # cancelled call. Release the lease, and let the error be seen.
            folding.early_end.given_up(folding.claim, error)
            raise
        finally:
            if admission.probe and not folding.caller.asked_own:
                self.store.end_probe(alias)
        return result._replace(recovered=folding.caller.recovered)


class _Folding:
    """One run, from claim to release.

    ``claim`` is replaced after each version that is published. ``window``, in tokens, shrinks if the model says that a
    chunk was too long.
    """

    def __init__(self, compactor: Compactor, claim: Claim, admission: Admission, *, stand_ins: bool) -> None:
        self.compactor = compactor
        self.store = compactor.store
        self.options = compactor.options
        self.counter = compactor.counter
        self.rule = compactor.rule
        self.claim = claim
        self.admission = admission
        self.stand_ins = stand_ins
        self.started = time.monotonic()
        self.window = self.options.chunk_tokens(self.rule.threshold.tokens)
        self.caller = ModelCaller(
            store=self.store,
            own=compactor.model,
            fallback=compactor.fallback,
            price=compactor.price,
            lease=compactor.lease,
            probe=admission.probe,
        )
        self.maker = VersionMaker(
            store=self.store,
            options=self.options,
            requests=compactor.requests,
            caller=self.caller,
        )
        self.early_end = EarlyEnd(
            store=self.store,
            options=self.options,
            rule=self.rule,
            admission=admission,
            has_fallback=compactor.fallback is not None,
            stand_ins=stand_ins,
            queues=compactor.queues,
            on_failed=compactor.on_failed,
        )

    def run(self) -> Run:
        # Messages that came after the claim are left alone: the claim knows which exchange was open then.
        turns = self.store.turns(self.claim)
        starts = exchanges.starts(turns, self.claim.counters.open_position)
        split = len(turns)
        if not self.claim.rebuilding:
            user_starts = [start for start in starts if turns[start].role == "user"]
            split = self.compactor.strategy.plan([turn.tokens for turn in turns], starts, user_starts)
        ends = [*(start for start in starts if start < split), split]
        done, published = 0, False
        while done < split:
            try:
                done = yield from self._fold_next(turns, ends, done)
            except exceptions.ChatModelError as error:
                return self.early_end.failed(self.claim, error, due_seconds=self._due_seconds())
            except LeaseLost:
                return self.early_end.lost(self.claim, due_seconds=self._due_seconds())
            published = True
            if done < split and self._must_stop():
                break
        unfinished = done < split
        due = self.store.release(
            self.claim,
            self.rule,
            rebuild_in=0.0 if self.stand_ins and unfinished else None,
            # Without a version, the run does not go on.
            queued=self.compactor.queues and published,
        )
        if not published:
            if due:
                logger.warning("Session %s is marked due, but nothing in it can be folded.", self.claim.session_id)
            return Result(Outcome.NOT_DUE)
        return Result(Outcome.PUBLISHED, due)

    def _must_stop(self) -> bool:
        """Whether the rest is left to another run."""
        if self.claim.rebuilding and not self.stand_ins:
            return False
        if self.stand_ins and self.store.is_due(self.claim.session_id):
            return True
        return time.monotonic() - self.started > self.options.max_run_seconds

    def _fold_next(self, turns: Sequence[Turn], ends: Sequence[int], start: int) -> Generator[Call, ChatResponse, int]:
        """Fold the chunk that begins at ``start``, or a part of it. Return the index of the first turn not covered.

        If the model fails, try a smaller chunk or the other model at once, as far as that makes sense.
        Raises LeaseLost, or the last ChatModelError.
        """
        choice = ModelChoice(
            self.compactor.model,
            self.compactor.fallback,
            admission=self.admission,
            claim=self.claim,
            options=self.options,
            due_seconds=self._due_seconds,
        )
        model = choice.first()
        while True:
            first_end = chunks.end_of(turns, ends, start, 0)
            # An exchange that is folded in part is finished first.
            end = first_end if self.claim.parts else chunks.end_of(turns, ends, start, self.window)
            chunk = chunks.read(self.store, self.claim, turns[start:end])
            if end == first_end:
                chunk = chunks.next_part(
                    chunk,
                    self.claim,
                    window=self.window,
                    counter=self.counter,
                    max_parts=self.options.max_slices,
                )
            covered = start if chunk.part_end is not None else end
            if chunk.is_wordless:
                self._publish(chunk, self.maker.carried(self.claim, chunk))
                return covered
            try:
                made = yield from self.maker.fold(self.claim, chunk, model, own_error=choice.own_error)
                self._publish(chunk, *made)
            except exceptions.ChatModelError as error:
                if isinstance(error, exceptions.ContextLengthExceeded):
                    self.window = chunks.smaller_window(chunk, self.window, self.counter)
                    if self.window >= chunks.SMALLEST_WINDOW:
                        continue
                other = choice.next(model, error)
                if other is not None:
                    model = other
                elif choice.is_hopeless:
                    self._publish(chunk, self.maker.carried(self.claim, chunk))
                    return covered
                else:
                    raise
            else:
                return covered

    def _publish(
        self, chunk: Chunk, version: NewVersion, attempt: AttemptRecord | None = None, seconds: float = 0.0
    ) -> None:
        """Publish ``version``, which ``chunk`` was folded into. Raises LeaseLost."""
        final = is_final(self.claim, version)
        claim = self.store.publish(self.claim, version, attempt, self.rule, lease=self.compactor.lease)
        if claim is None:
            raise LeaseLost
        self.claim = claim
        if final:
            self.store.on_commit(lambda: self.compactor.on_published(claim))
        if version.carried:
            logger.warning(
                "Messages %d to %d of session %s have nothing that could be summarized. "
                "Its summary %d is the same text.",
                chunk.first,
                chunk.last,
                claim.session_id,
                claim.last_version,
            )
            return
        logger.log(
            logging.WARNING if version.fallback else logging.INFO,
            "Folded messages %d to %d%s of session %s into its summary %d: %s%s, %.1f s.",
            chunk.first,
            chunk.last,
            f", part {chunk.part}," if chunk.part else "",
            claim.session_id,
            claim.last_version,
            "the fallback, " if version.fallback else "",
            version.model,
            seconds,
        )

    def _due_seconds(self) -> float:
        return self.claim.due_seconds + time.monotonic() - self.started
