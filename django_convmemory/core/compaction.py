"""Compaction: one run of folding for one session.

A run claims the session, reads its tail, calls the model with no transaction open, and publishes the new summary. It
repeats this for each chunk. The run is a generator: it yields each call of the model and does everything else itself.
So the same code serves a worker that blocks and an event loop that must not.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import enum
import itertools
import logging
import random
import time
from collections.abc import Callable, Generator, Sequence
from decimal import Decimal
from typing import NamedTuple

from asgiref.sync import sync_to_async

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse, Fold
from django_convmemory.core import exchanges, prompts, validation
from django_convmemory.core.context import summary_message
from django_convmemory.core.exchanges import Placed, Turn
from django_convmemory.core.options import Options
from django_convmemory.core.store import Store
from django_convmemory.core.strategies import Strategy
from django_convmemory.core.values import MAX_MODEL_NAME, AttemptOutcome, AttemptRecord, Claim, DueRule, NewVersion
from django_convmemory.tokens import TokenCounter

logger = logging.getLogger(__name__)

# All times are in seconds.
PAUSE_SECONDS = 60.0
LONGEST_WAIT = 3600.0
# Doubled at each attempt; the real wait is half of it on average. So an outage of minutes is not left to the fallback.
_FIRST_WAIT = 8.0
# After a pause, sessions come back spread over this time.
_PAUSE_JITTER = 60.0
_SMALLEST_CHUNK_TOKENS = 50
_MAX_ERROR_LENGTH = 1000
_MAX_COST = 1_000_000


class Outcome(enum.StrEnum):
    """The result of a run."""

    PUBLISHED = "published"
    NOT_DUE = "not_due"
    BUSY = "busy"
    STALLED = "stalled"


class Result(NamedTuple):
    """What came of a run. ``again``: the session is still due; a task should fold it in ``delay`` seconds."""

    outcome: Outcome
    again: bool = False
    delay: float = 0.0


class Price(NamedTuple):
    """The price of a million tokens."""

    input: Decimal
    output: Decimal


class Call(NamedTuple):
    """A request that a run yields, and the model that is to answer it."""

    model: ChatModel
    request: ChatRequest


Run = Generator[Call, ChatResponse, Result]


def drive(run: Run) -> Result:
    """Carry out a run. Blocks while a model answers."""
    try:
        call = next(run)
        while True:
            try:
                response = call.model.chat(call.request)
            except Exception as error:  # noqa: BLE001  the run decides what to do
                call = run.throw(error)
            else:
                call = run.send(response)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        # If the process was told to stop, the run is not at its end: closing it releases the lease.
        run.close()


async def adrive(run: Run) -> Result:
    """Carry out a run. Its own steps run in a thread, one after the other, and the model's calls on the event loop."""
    step = sync_to_async(_step)
    try:
        call = await step(run.__next__)
        while not isinstance(call, Result):
            try:
                response = await call.model.achat(call.request)
            except Exception as error:  # noqa: BLE001  the run decides what to do
                call = await step(run.throw, error)
            else:
                call = await step(run.send, response)
        return call
    finally:
        # If the task was cancelled, the run is not at its end: closing it releases the lease.
        await asyncio.shield(sync_to_async(run.close)())


def _step(advance: Callable[..., Call], *args: object) -> Call | Result:
    try:
        return advance(*args)
    except StopIteration as stop:  # A future cannot carry it.
        result: Result = stop.value
        return result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """Folds the sessions of one memory."""

    store: Store
    strategy: Strategy
    options: Options
    counter: TokenCounter
    model: ChatModel
    fallback: ChatModel | None = None
    price: Price | None = None
    on_published: Callable[[Claim], None] = lambda claim: None
    on_failed: Callable[[Claim, Exception], None] = lambda claim, error: None
    # Whether a task will fold the session later if a result says ``again``. The session's row notes it.
    hints: bool = False

    @property
    def lease(self) -> float:
        """How many seconds a claim holds: two calls of the model, and 30 seconds to write."""
        deadlines = [model.deadline for model in (self.model, self.fallback) if model is not None]
        return 2 * max(deadlines) + 30

    def run(self, alias: str, session_id: int, *, force: bool = False) -> Run:
        """Fold what is due in the session.

        ``force`` ignores that the alias is paused, and that the time of the next attempt has not come.
        """
        if not force and self.store.paused(alias, seconds=PAUSE_SECONDS):
            logger.info(
                "Session %s is not folded now: the chat model of memories[%r] was misconfigured less than %.0f s ago.",
                session_id,
                alias,
                PAUSE_SECONDS,
            )
            return Result(Outcome.STALLED)
        claim = self.store.claim(session_id, lease=self.lease, force=force)
        if claim == "waiting":
            logger.info("Session %s is not folded now: the time of its next attempt has not come.", session_id)
        return (yield from self._fold(claim))

    def rebuild(self, session_id: int) -> Run:
        """Make the session's summary again, from its first message."""
        claim = self.store.claim_rebuild(session_id, lease=self.lease, prompt_hash=prompts.HASH)
        return (yield from self._fold(claim))

    def _fold(self, claim: Claim | str) -> Run:
        if not isinstance(claim, Claim):
            return Result({"not_due": Outcome.NOT_DUE, "busy": Outcome.BUSY}.get(claim, Outcome.STALLED))
        folding = _Folding(self, claim)
        try:
            return (yield from folding.run())
        except BaseException as error:
            # This is not a model's failure. It is a defect of ours or of a backend, the worker's time limit, or a
            # cancelled call. Release the lease, and let the error be seen.
            folding.give_up(error)
            raise


class _LeaseLost(Exception):
    """The lease expired, or the session changed: another process may fold it now."""


class _Folding:
    """One run, from claim to release.

    ``claim`` is replaced after each version that is published. ``window``, in tokens, shrinks if the model says that a
    chunk was too long.
    """

    def __init__(self, compactor: Compactor, claim: Claim) -> None:
        self.compactor = compactor
        self.store = compactor.store
        self.options = compactor.options
        self.counter = compactor.counter
        self.rule = DueRule(compactor.strategy.threshold, compactor.hints)
        self.claim = claim
        self.started = time.monotonic()
        self.window = self.options.chunk_tokens(self.rule.threshold.tokens)

    def run(self) -> Run:
        # Messages that came after the claim are left alone: the claim knows which exchange was open then.
        turns = self.store.turns(self.claim)
        starts = exchanges.starts(turns, self.claim.counters.open_position)
        split = len(turns)
        if not self.claim.rebuilding:
            split = self.compactor.strategy.plan([turn.tokens for turn in turns], starts)
        ends = [*(start for start in starts if start < split), split]
        model = self._first_model()
        done = 0
        while done < split:
            try:
                done = yield from self._fold_chunk(turns, ends, done, model)
            except exceptions.ChatModelError as error:
                return self._fail(error)
            except _LeaseLost:
                return self._lost()
            # The next chunk may be one that the alias's own model takes.
            model = self.compactor.model
            if not self.claim.rebuilding and time.monotonic() - self.started > self.options.max_run_seconds:
                break
        due = self.store.release(self.claim, self.rule)
        if not done:
            if due:
                logger.warning("Session %s is marked due, but nothing in it can be folded.", self.claim.session_id)
            return Result(Outcome.NOT_DUE)
        return Result(Outcome.PUBLISHED, due)

    def _first_model(self) -> ChatModel:
        """Return the fallback if there were too many attempts, else the alias's own model.

        Claims count as attempts, because a worker that is killed each time never reports a failure.
        """
        exhausted = self.claim.attempts > self.options.max_attempts
        return self.compactor.fallback if exhausted and self.compactor.fallback else self.compactor.model

    def _fold_chunk(
        self, turns: Sequence[Turn], ends: Sequence[int], start: int, model: ChatModel
    ) -> Generator[Call, ChatResponse, int]:
        """Fold the chunk that begins at ``start``, and return where it ends.

        If the model fails, try a smaller chunk or the other model at once, as far as that makes sense.
        Raises _LeaseLost, or the last ChatModelError.
        """
        first_model, failed = model, []
        while True:
            end = _chunk_end(turns, ends, start, self.window)
            try:
                yield from self._fold(turns[start:end], model)
            except exceptions.ChatModelError as error:
                smaller = False
                if isinstance(error, exceptions.ContextLengthExceeded):
                    self.window = min(self.window, sum(turn.tokens for turn in turns[start:end])) // 2
                    smaller = self.window >= _SMALLEST_CHUNK_TOKENS
                if not smaller:
                    failed.append(model)
                    model = self._other_model(error, first_model, failed)
            else:
                return end
            # The lease is long enough for two calls.
            if not self.store.extend(self.claim, lease=self.compactor.lease):
                raise _LeaseLost

    def _other_model(
        self, error: exceptions.ChatModelError, first: ChatModel, failed: Sequence[ChatModel]
    ) -> ChatModel:
        """Return the model to try next for the same chunk. If there is none, raise ``error``."""
        candidates = []
        if isinstance(error, exceptions.ContentRefused) or self.claim.attempts >= self.options.max_attempts:
            candidates.append(self.compactor.fallback)
        if first is not self.compactor.model:
            # The fallback was asked first. The model's own trouble may be over, or only it can fold this text.
            candidates.append(self.compactor.model)
        for model in candidates:
            # No fallback for a wrong configuration: a key that expires on Friday must not have replaced every session's
            # memory by Monday.
            if model is not None and model not in failed and not isinstance(error, exceptions.ModelMisconfigured):
                return model
        raise error

    def _fold(self, turns: Sequence[Turn], model: ChatModel) -> Generator[Call, ChatResponse, None]:
        """Make a version from the current summary and ``turns``, and publish it. Raises _LeaseLost."""
        first, last = self.claim.counters.covered_position + 1, turns[-1].position
        rows = self.store.messages(self.claim, first, last)
        if len(rows) != len(turns):
            raise _LeaseLost  # Messages were removed since the claim: the epoch would refuse the result of a call.
        previous = self.claim.summary.text if self.claim.summary else ""
        cap = self.options.max_summary_tokens
        request = ChatRequest(
            prompts.fold(previous, self._transcript(rows), max_tokens=cap, counter=self.counter),
            Fold(previous=previous, turns=[row.message for row in rows], max_tokens=cap, count=self._count),
        )
        answer = yield from self._ask(model, request, last)
        text, attempt = answer.text, None
        if self._count(text) > cap:
            self.store.record(self.claim, answer.attempt(AttemptOutcome.SHORTEN))
            answer, is_new = yield from self._shorten(answer, last)
            text = validation.fitting(answer.text, lambda text: self._count(text) <= cap)
            if not text:
                error = exceptions.BadModelOutput("Not even the beginning of the answer fits into max_summary_tokens.")
                if is_new:
                    self.store.record(self.claim, answer.attempt(AttemptOutcome.BAD_OUTPUT, error))
                raise error
            attempt = answer.attempt(AttemptOutcome.PUBLISHED) if is_new else None
        else:
            attempt = answer.attempt(AttemptOutcome.PUBLISHED)
        version = NewVersion(
            first_position=first,
            last_position=last,
            covered_count=self.claim.counters.covered_count + len(turns),
            covered_tokens=self.claim.counters.covered_tokens + sum(turn.tokens for turn in turns),
            text=text,
            tokens=self._count(text),
            model=answer.model,
            shortened=text != answer.text,
            fallback=answer.by_fallback,
            prompt_hash=prompts.HASH,
        )
        claim = self.store.publish(self.claim, version, attempt, self.rule, lease=self.compactor.lease)
        if claim is None:
            raise _LeaseLost
        self.claim = claim
        self.store.on_commit(lambda: self.compactor.on_published(claim))
        logger.log(
            logging.WARNING if answer.by_fallback else logging.INFO,
            "Folded messages %d to %d of session %s into its summary %d: %s%s, %.1f s.",
            first,
            last,
            claim.session_id,
            claim.last_version,
            "the fallback, " if answer.by_fallback else "",
            answer.model,
            answer.duration,
        )

    def _shorten(self, answer: _Answer, last: int) -> Generator[Call, ChatResponse, tuple[_Answer, bool]]:
        """Ask once more, for a shorter text. If that fails, use the first answer.

        Returns the answer to use, and whether it is the new one.
        """
        cap = self.options.max_summary_tokens
        request = ChatRequest(
            prompts.shorten(answer.text, max_tokens=cap, counter=self.counter),
            Fold(previous=answer.text, turns=(), max_tokens=cap, count=self._count),
        )
        if not self.store.extend(self.claim, lease=self.compactor.lease):
            return answer, False
        try:
            return (yield from self._ask(answer.asked, request, last)), True
        except exceptions.ChatModelError:
            return answer, False

    def _ask(self, model: ChatModel, request: ChatRequest, last: int) -> Generator[Call, ChatResponse, _Answer]:
        """Have the model answer, and validate its text. Record the attempt if that fails."""
        began = time.monotonic()
        response, text = None, ""
        failure: Exception | None = None
        self.store.release_connection()
        try:
            response = yield Call(model, request)
            text = validation.checked(response)
        except Exception as error:  # noqa: BLE001  raised again once it is recorded
            failure = error
        answer = _Answer(self, model, response, text, time.monotonic() - began, last)
        if failure is None:
            return answer
        if isinstance(failure, exceptions.ModelMisconfigured) and answer.by_fallback:
            # Only an error of the alias's own model pauses the alias.
            failure = exceptions.ModelUnavailable(f"The fallback model is misconfigured: {failure}")
        self.store.record(self.claim, answer.attempt(_outcome(failure), failure))
        raise failure

    def _transcript(self, rows: Sequence[Placed]) -> list[str]:
        """Return the turns as texts. If they exceed the window together, the longest ones are cut."""
        longest = _fair_share([row.tokens for row in rows], self.window)
        turns = [prompts.turn(row.message, max_tokens=longest, counter=self.counter) for row in rows]
        return prompts.within(turns, self.window, self.counter)

    def _count(self, text: str) -> int:
        return self.counter.count(summary_message(self.options.summary_prefix, text))

    def _fail(self, error: exceptions.ChatModelError) -> Result:
        if self.claim.rebuilding:
            # The current summary stays, so nothing is urgent.
            again = self.store.release(self.claim, self.rule)
            logger.warning("The rebuild of session %s failed: %s", self.claim.session_id, _printable(error))
            self._report(error)
            return Result(Outcome.STALLED, again)
        counted = not isinstance(error, exceptions.ModelMisconfigured)
        # Sessions come back at different times after the pause. Otherwise one session whose content the model answers
        # with "wrong key" could keep all others from trying.
        delay = self._wait(error) if counted else PAUSE_SECONDS + random.uniform(0, _PAUSE_JITTER)  # noqa: S311
        again = self.store.release(
            self.claim,
            self.rule,
            retry_in=delay,
            error=_printable(error),
            uncount=not counted,
        )
        logger.warning(
            "Compaction of session %s failed. It is tried again in %.0f s or later: %s",
            self.claim.session_id,
            delay,
            _printable(error),
        )
        self._report(error)
        return Result(Outcome.STALLED, again, delay)

    def _lost(self) -> Result:
        """End a run whose lease expired, or whose session changed meanwhile. Its result is dropped."""
        delay = self._wait(exceptions.ModelUnavailable(""))
        again = self.store.release(
            self.claim,
            self.rule,
            retry_in=delay,
            error="The lease expired before the model answered.",
        )
        return Result(Outcome.BUSY, again, delay) if again else Result(Outcome.NOT_DUE)

    def _report(self, error: exceptions.ChatModelError) -> None:
        claim = self.claim
        self.store.on_commit(lambda: self.compactor.on_failed(claim, error))

    def _wait(self, error: exceptions.ChatModelError) -> float:
        """Return the seconds until the next attempt: exponential backoff with full jitter, or what the provider asks.

        Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
        """
        if self.claim.attempts >= self.options.max_attempts:
            return LONGEST_WAIT
        wait = random.uniform(0, self._backoff)  # noqa: S311
        retry_after = getattr(error, "retry_after", None) or 0.0
        return min(LONGEST_WAIT, max(wait, retry_after))

    @property
    def _backoff(self) -> float:
        # The exponent is bounded: attempts can grow without end.
        return min(LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(self.claim.attempts, 20))

    def give_up(self, error: BaseException) -> None:
        rule = self.rule._replace(hint=False)
        if isinstance(error, Exception):
            self.store.release(self.claim, rule, retry_in=self._backoff, error=type(error).__name__)
        else:
            self.store.release(self.claim, rule, error="Cancelled", uncount=True)


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """A model's answer: its validated text, and what an :class:`AttemptRecord` says about the call."""

    folding: _Folding
    asked: ChatModel
    response: ChatResponse | None
    text: str
    duration: float
    last_position: int

    @property
    def model(self) -> str:
        """The name of the model that answered: from its response, or else the configured one."""
        return ((self.response.model if self.response else "") or self.asked.name)[:MAX_MODEL_NAME]

    @property
    def by_fallback(self) -> bool:
        return self.asked is self.folding.compactor.fallback

    def attempt(self, outcome: AttemptOutcome, error: Exception | None = None) -> AttemptRecord:
        folding = self.folding
        usage = self.response.usage if self.response else None
        price = None if self.by_fallback else folding.compactor.price
        cost = None
        if usage is not None and price is not None:
            cost = (usage.prompt_tokens * price.input + usage.completion_tokens * price.output) / 1_000_000
            # A nonsensical usage report must not keep the answer from being stored.
            cost = cost if cost < _MAX_COST else None
        return AttemptRecord(
            first_position=folding.claim.counters.covered_position + 1,
            last_position=self.last_position,
            due_seconds=folding.claim.due_seconds,
            duration_seconds=self.duration,
            outcome=outcome,
            error=type(error).__name__ if error else "",
            model=self.model,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            cost=cost,
        )


def _printable(error: Exception) -> str:
    """Return an error as one line, without control characters, for logs and rows."""
    text = f"{type(error).__name__}: {error}"[:_MAX_ERROR_LENGTH]
    return "".join(character if character.isprintable() else " " for character in text)


def _outcome(error: Exception) -> AttemptOutcome:
    for kind, outcome in (
        (exceptions.ModelUnavailable, AttemptOutcome.UNAVAILABLE),
        (exceptions.ModelMisconfigured, AttemptOutcome.MISCONFIGURED),
        (exceptions.ContextLengthExceeded, AttemptOutcome.TOO_LONG),
        (exceptions.ContentRefused, AttemptOutcome.REFUSED),
        (exceptions.ChatModelError, AttemptOutcome.BAD_OUTPUT),
    ):
        if isinstance(error, kind):
            return outcome
    return AttemptOutcome.ERROR


def _chunk_end(turns: Sequence[Turn], ends: Sequence[int], start: int, window: int) -> int:
    """Return where the chunk that begins at ``start`` ends: it has the exchanges that fit the window, at least one.

    ``ends`` are the indexes at which exchanges end.
    """
    chunk_end, total = start, 0
    for end in itertools.islice(ends, bisect.bisect_right(ends, start), None):
        total += sum(turn.tokens for turn in turns[chunk_end:end])
        if chunk_end > start and total > window:
            break
        chunk_end = end
    return chunk_end


def _fair_share(tokens: Sequence[int], window: int) -> int:
    """Return the number of tokens to cut each message to, so that all of them fit into ``window`` together.

    Shorter messages are kept whole, and the longer ones share the rest evenly.
    """
    left = window
    for index, count in enumerate(sorted(tokens)):
        share = left // (len(tokens) - index)
        if count > share:
            return max(1, share)
        left -= count
    return max(1, *tokens, window)
