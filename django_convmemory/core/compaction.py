"""Compaction: one run of folding for one session.

Claim, read, call the model with no transaction open, publish, and again for the next chunk. The run is a generator: it
does everything but the model's call, which it yields, so that the same run serves a worker that blocks and an event
loop that does not.
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

PAUSE_SECONDS = 60.0
LONGEST_WAIT = 3600.0
# Doubled each time, and half of that on average: an outage of minutes is waited for, and not left to the fallback.
_FIRST_WAIT = 8.0
_LONGEST_PROBE = 60.0
_SMALLEST_CHUNK = 50
_DEFAULT_CHUNK = 8000
_LONGEST_ERROR = 1000
_MOST_COST = 1_000_000


class Outcome(enum.StrEnum):
    """What a run came to."""

    PUBLISHED = "published"
    NOT_DUE = "not_due"
    BUSY = "busy"
    STALLED = "stalled"


class Result(NamedTuple):
    """``again``: the session is still due, and a task should come back for it in ``delay`` seconds."""

    outcome: Outcome
    again: bool = False
    delay: float = 0.0


class Price(NamedTuple):
    """What a million tokens cost."""

    input: Decimal
    output: Decimal


class Call(NamedTuple):
    """A request that a run wants answered, and by whom."""

    model: ChatModel
    request: ChatRequest


Run = Generator[Call, ChatResponse, Result]


def drive(run: Run) -> Result:
    """Carry out a run, blocking while a model answers."""
    try:
        call = next(run)
        while True:
            try:
                response = call.model.chat(call.request)
            except Exception as error:  # noqa: BLE001  the run decides what to do about it
                call = run.throw(error)
            else:
                call = run.send(response)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        # Where it is not at its end, the process was told to: the lease is given back.
        run.close()


async def adrive(run: Run) -> Result:
    """Carry out a run: its own steps in a thread, each in turn, and the model's calls on the event loop."""
    step = sync_to_async(_step)
    try:
        call = await step(run.__next__)
        while not isinstance(call, Result):
            try:
                response = await call.model.achat(call.request)
            except Exception as error:  # noqa: BLE001  the run decides what to do about it
                call = await step(run.throw, error)
            else:
                call = await step(run.send, response)
        return call
    finally:
        # Where it is not at its end, the task was cancelled: the lease is given back.
        await asyncio.shield(sync_to_async(run.close)())


def _step(advance: Callable[..., Call], *args: object) -> Call | Result:
    try:
        return advance(*args)
    except StopIteration as stop:  # which no future can carry
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
    published: Callable[[Claim], None] = lambda claim: None
    failed: Callable[[Claim, Exception], None] = lambda claim, error: None
    # Whether a task will come back where a result says ``again``; it is noted in the session.
    hints: bool = False

    @property
    def lease(self) -> float:
        """The seconds for which a claim holds: two calls and some time to write."""
        deadlines = [model.deadline for model in (self.model, self.fallback) if model is not None]
        return 2 * max(deadlines) + 30

    def run(self, alias: str, session_id: int, *, force: bool = False) -> Run:
        """Fold what is due in the session. ``force`` waits neither for the next attempt nor for a paused alias."""
        if not force and self.store.paused(alias, seconds=PAUSE_SECONDS):
            logger.info(
                "Session %s waits: less than %.0f s ago the chat model of %r was misconfigured.",
                session_id,
                PAUSE_SECONDS,
                alias,
            )
            return Result(Outcome.STALLED)
        claim = self.store.claim(session_id, lease=self.lease, force=force)
        if claim == "waiting":
            logger.info("Session %s waits for the time of its next attempt.", session_id)
        return (yield from self._fold(claim))

    def rebuild(self, session_id: int) -> Run:
        """Fold anew, from the first message, what the session's summary stands for."""
        claim = self.store.claim_rebuild(session_id, lease=self.lease, prompt_hash=prompts.HASH)
        return (yield from self._fold(claim))

    def _fold(self, claim: Claim | str) -> Run:
        if not isinstance(claim, Claim):
            return Result({"not_due": Outcome.NOT_DUE, "busy": Outcome.BUSY}.get(claim, Outcome.STALLED))
        folding = _Folding(self, claim)
        try:
            return (yield from folding.run())
        except BaseException as error:
            # Not a model's failure but a defect, ours or a backend's, the worker's time limit, or that nobody waits for
            # the result any more: give the lease back and let the error be seen.
            folding.give_up(error)
            raise


class _Folding:
    """One run, from claim to release."""

    def __init__(self, compactor: Compactor, claim: Claim) -> None:
        self.compactor = compactor
        self.store = compactor.store
        self.options = compactor.options
        self.counter = compactor.counter
        self.rule = DueRule(compactor.strategy.threshold, compactor.hints)
        self.claim = claim
        self.started = time.monotonic()
        # Also where nothing failed that could be seen: a worker that was killed every time never got to say why.
        given_up = claim.attempts > self.options.max_attempts
        self.first = compactor.fallback if given_up and compactor.fallback else compactor.model
        self.model = self.first
        # Those that could not fold the chunk at hand.
        self.failed: list[ChatModel] = []
        self.window = self.options.max_chunk_tokens or max(_DEFAULT_CHUNK, self.rule.threshold.tokens or 0)

    def run(self) -> Run:
        # What came after the claim is left alone: which exchange is open is known as of the claim.
        turns = self.store.turns(self.claim)
        starts = exchanges.starts(turns, self.claim.counters.open_position)
        split = len(turns)
        if not self.claim.rebuilding:
            split = self.compactor.strategy.plan([turn.tokens for turn in turns], starts)
        edges = [*(start for start in starts if start < split), split]
        at = 0
        while at < split:
            end = self._chunk_end(turns, edges, at)
            try:
                published = yield from self._fold(turns[at:end])
            except exceptions.ChatModelError as error:
                if not self._adapted(error, turns[at:end]):
                    return self._fail(error)
                # The lease is long enough for two calls.
                if not self.store.extend(self.claim, lease=self.compactor.lease):
                    return self._lost()
                continue
            if not published:
                return self._lost()
            at = end
            # The next chunk may be one that the model takes.
            self.model, self.failed = self.compactor.model, []
            if not self.claim.rebuilding and time.monotonic() - self.started > self.options.max_run_seconds:
                break
        due = self.store.release(self.claim, self.rule)
        if not at:
            if due:
                logger.warning("Session %s is marked due, but nothing in it can be folded.", self.claim.session_id)
            return Result(Outcome.NOT_DUE)
        return Result(Outcome.PUBLISHED, due)

    def _adapted(self, error: exceptions.ChatModelError, turns: Sequence[Turn]) -> bool:
        """Change what the next call is, and return whether that makes it worth a try at once."""
        if isinstance(error, exceptions.ModelMisconfigured):
            # No fallback: a key that expires on Friday must not have replaced every session's memory by Monday.
            return False
        if isinstance(error, exceptions.ContextLengthExceeded):
            self.window = min(self.window, sum(turn.tokens for turn in turns)) // 2
            if self.window >= _SMALLEST_CHUNK:
                return True
        self.failed.append(self.model)
        given_up = isinstance(error, exceptions.ContentRefused) or self.claim.attempts >= self.options.max_attempts
        # The other one, which is the model itself again where the fallback was asked first: what was wrong with it may
        # be over, and there may be texts that only it can fold.
        others = [self.compactor.fallback] if given_up else []
        others += [self.compactor.model] if self.first is not self.compactor.model else []
        left = [model for model in others if model is not None and model not in self.failed]
        if left:
            self.model = left[0]
        return bool(left)

    def _chunk_end(self, turns: Sequence[Turn], edges: Sequence[int], at: int) -> int:
        """Return where the chunk that begins ``at`` ends: as many whole exchanges as the window holds, at least one."""
        end, total = at, 0
        for edge in itertools.islice(edges, bisect.bisect_right(edges, at), None):
            total += sum(turn.tokens for turn in turns[end:edge])
            if end > at and total > self.window:
                break
            end = edge
        return end

    def _fold(self, turns: Sequence[Turn]) -> Generator[Call, ChatResponse, bool]:
        """Make a version of the current summary and ``turns``, and publish it."""
        first, last = self.claim.counters.covered_position + 1, turns[-1].position
        rows = self.store.messages(self.claim, first, last)
        if len(rows) != len(turns):
            return False  # Removed since the claim; the epoch would refuse what a call could make of the rest.
        previous = self.claim.summary.text if self.claim.summary else ""
        cap = self.options.max_summary_tokens
        request = ChatRequest(
            prompts.fold(previous, self._transcript(rows), max_tokens=cap, counter=self.counter),
            Fold(previous=previous, turns=[row.message for row in rows], max_tokens=cap, count=self._count),
        )
        answer = yield from self._ask(request, last)
        text, attempt = answer.text, None
        if self._count(text) > cap:
            self.store.record(self.claim, answer.attempt(AttemptOutcome.SHORTEN))
            answer, shorter = yield from self._shorten(answer, last)
            text = validation.fitting(answer.text, lambda text: self._count(text) <= cap)
            if not text:
                error = exceptions.BadModelOutput("Not even the beginning of the answer fits into max_summary_tokens.")
                if shorter:
                    self.store.record(self.claim, answer.attempt(AttemptOutcome.BAD_OUTPUT, error))
                raise error
            attempt = answer.attempt(AttemptOutcome.PUBLISHED) if shorter else None
        else:
            attempt = answer.attempt(AttemptOutcome.PUBLISHED)
        version = NewVersion(
            first_position=first,
            last_position=last,
            count=self.claim.counters.covered_count + len(turns),
            tokens_through=self.claim.counters.covered_tokens + sum(turn.tokens for turn in turns),
            text=text,
            tokens=self._count(text),
            model=answer.model,
            shortened=text != answer.text,
            fallback=answer.by_fallback,
            prompt_hash=prompts.HASH,
        )
        claim = self.store.publish(self.claim, version, attempt, self.rule, lease=self.compactor.lease)
        if claim is None:
            return False
        self.claim = claim
        self.store.on_commit(lambda: self.compactor.published(claim))
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
        return True

    def _shorten(self, answer: _Answer, last: int) -> Generator[Call, ChatResponse, tuple[_Answer, bool]]:
        """Ask once more for a shorter text; where that fails, the answer that there is must do.

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
            return (yield from self._ask(request, last)), True
        except exceptions.ChatModelError:
            return answer, False

    def _ask(self, request: ChatRequest, last: int) -> Generator[Call, ChatResponse, _Answer]:
        """Have the model answer, and return its text once it passed the gate; record the attempt where it did not."""
        model, began = self.model, time.monotonic()
        response, text = None, ""
        failure: Exception | None = None
        self.store.release_connection()
        try:
            response = yield Call(model, request)
            text = validation.checked(response)
        except Exception as error:  # noqa: BLE001  raised again, once it is in the books
            failure = error
        answer = _Answer(self, model, response, text, time.monotonic() - began, last)
        if failure is None:
            return answer
        if isinstance(failure, exceptions.ModelMisconfigured) and answer.by_fallback:
            # The alias is paused for what is wrong with its own model only.
            failure = exceptions.ModelUnavailable(f"The fallback model is misconfigured: {failure}")
        self.store.record(self.claim, answer.attempt(_outcome(failure), failure))
        raise failure

    def _transcript(self, rows: Sequence[Placed]) -> list[str]:
        """Return the turns as texts, the longest of them cut where all together are more than the window."""
        longest = _longest([row.tokens for row in rows], self.window)
        turns = [prompts.turn(row.message, max_tokens=longest, counter=self.counter) for row in rows]
        return prompts.within(turns, self.window, self.counter)

    def _count(self, text: str) -> int:
        return self.counter.count(summary_message(self.options.summary_prefix, text))

    def _fail(self, error: exceptions.ChatModelError) -> Result:
        if self.claim.rebuilding:
            # The summary that there is stays, and nothing is late.
            again = self.store.release(self.claim, self.rule)
            logger.warning("The summary of session %s was not made anew: %s", self.claim.session_id, _printable(error))
            self._tell(error)
            return Result(Outcome.STALLED, again)
        counted = not isinstance(error, exceptions.ModelMisconfigured)
        # Not all come back when the pause ends: were it one session's content that the model takes for a wrong key, it
        # would keep all others from trying.
        delay = self._wait(error) if counted else PAUSE_SECONDS + random.uniform(0, _LONGEST_PROBE)  # noqa: S311
        again = self.store.release(
            self.claim,
            self.rule,
            retry_in=delay,
            error=_printable(error),
            uncount=not counted,
        )
        logger.warning(
            "Compaction of session %s failed, and is tried again in %.0f s or later: %s",
            self.claim.session_id,
            delay,
            _printable(error),
        )
        self._tell(error)
        return Result(Outcome.STALLED, again, delay)

    def _lost(self) -> Result:
        """End a run whose lease ran out, or whose session was changed under it: what it made is dropped."""
        delay = self._wait(exceptions.ModelUnavailable(""))
        again = self.store.release(
            self.claim,
            self.rule,
            retry_in=delay,
            error="The lease ran out before the result was there.",
        )
        return Result(Outcome.BUSY, again, delay) if again else Result(Outcome.NOT_DUE)

    def _tell(self, error: exceptions.ChatModelError) -> None:
        claim = self.claim
        self.store.on_commit(lambda: self.compactor.failed(claim, error))

    def _wait(self, error: exceptions.ChatModelError) -> float:
        """Return the seconds until the next attempt: exponential backoff with full jitter, as the provider asks.

        M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
        """
        if self.claim.attempts >= self.options.max_attempts:
            return LONGEST_WAIT
        wait = random.uniform(0, self._backoff)  # noqa: S311
        asked = getattr(error, "retry_after", None) or 0.0
        return min(LONGEST_WAIT, max(wait, asked))

    @property
    def _backoff(self) -> float:
        # No power of a number that grows for ever.
        return min(LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(self.claim.attempts, 20))

    def give_up(self, error: BaseException) -> None:
        rule = self.rule._replace(hint=False)
        if isinstance(error, Exception):
            self.store.release(self.claim, rule, retry_in=self._backoff, error=type(error).__name__)
        else:
            self.store.release(self.claim, rule, error="Cancelled", uncount=True)


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """A model's answer: its text, and what the books say of the call."""

    folding: _Folding
    asked: ChatModel
    response: ChatResponse | None
    text: str
    duration: float
    last_position: int

    @property
    def model(self) -> str:
        """The name of the model that answered, by its own word or by ours, in what of it a row holds."""
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
            # A provider that reports nonsense must not keep its answer from being stored.
            cost = cost if cost < _MOST_COST else None
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
    """Return what an error says in a line of the log, whatever a backend put into it."""
    said = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    return "".join(character if character.isprintable() else " " for character in said)


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


def _longest(tokens: Sequence[int], window: int) -> int:
    """Return the most that one message may count so that all of them, each cut to it, count ``window`` together."""
    left = window
    for index, count in enumerate(sorted(tokens)):
        share = left // (len(tokens) - index)
        if count > share:
            return max(1, share)
        left -= count
    return window
