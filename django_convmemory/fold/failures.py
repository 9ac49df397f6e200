"""The end of a run that failed: until when the session waits, and what its row says about it."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable

from django_convmemory import exceptions
from django_convmemory.fold.attempts import printable
from django_convmemory.fold.model_choice import Admission
from django_convmemory.fold.runs import Outcome, Result
from django_convmemory.rules import breaker
from django_convmemory.rules.breaker import Reason
from django_convmemory.rules.options import Options
from django_convmemory.rules.values import LONGEST_WAIT, Claim, DueRule, backoff
from django_convmemory.store.either import Store

logger = logging.getLogger(__name__)

# All times are in seconds.
# A session waits so long at most after a failure of the provider: the breaker keeps the calls few.
LONGEST_OUTAGE_WAIT = 300.0
# After a wrong configuration, sessions come back spread over this time.
_PAUSE_JITTER = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnd:
    """Ends a run before everything is folded, and releases its claim.

    ``stand_ins``: the run makes again what the fallback made. ``due_seconds`` is for how long the session has been due.
    """

    store: Store
    options: Options
    rule: DueRule
    admission: Admission
    has_fallback: bool
    stand_ins: bool
    queues: bool
    on_failed: Callable[[Claim, Exception], None]

    def failed(self, claim: Claim, error: exceptions.ChatModelError, *, due_seconds: float) -> Result:
        """End a run whose models failed, the last one with ``error``."""
        reason = breaker.reason_of(error)
        if claim.rebuilding:
            # The current summary stays, so nothing is urgent. A provider that fails again says nothing of the session.
            of_provider = reason is not None and not self._may_be_the_session(reason)
            rebuild_in = LONGEST_OUTAGE_WAIT if self.stand_ins and of_provider else None
            again = self.store.release(claim, self.rule, rebuild_in=rebuild_in, queued=self.queues)
            logger.warning("The rebuild of session %s failed: %s", claim.session_id, printable(error))
            self._report(claim, error)
            return Result(Outcome.STALLED, again)
        delay = self._wait(claim, error, due_seconds)
        again = self.store.release(
            claim,
            self.rule,
            retry_in=delay,
            error=printable(error),
            uncount=reason in (Reason.MISCONFIGURED, Reason.RATE_LIMIT) and not self._may_be_the_session(reason),
            queued=self.queues,
        )
        logger.warning(
            "Compaction of session %s failed. It is tried again in %.0f s or later: %s",
            claim.session_id,
            delay,
            printable(error),
        )
        self._report(claim, error)
        return Result(Outcome.STALLED, again, delay)

    def lost(self, claim: Claim, *, due_seconds: float) -> Result:
        """End a run whose lease expired, or whose session changed meanwhile. Its result is dropped."""
        delay = self._wait(claim, exceptions.ChatModelError(), due_seconds)
        again = self.store.release(
            claim,
            self.rule,
            retry_in=delay,
            error="The lease expired before the model answered.",
            queued=self.queues,
        )
        return Result(Outcome.BUSY, again, delay) if again else Result(Outcome.NOT_DUE)

    def given_up(self, claim: Claim, error: BaseException) -> None:
        """End a run that ``error`` interrupted, which is no model's failure."""
        rebuild_in = 0.0 if self.stand_ins else None
        if isinstance(error, Exception):
            wait = backoff(claim.attempts)
            self.store.release(claim, self.rule, retry_in=wait, error=type(error).__name__)
        else:
            self.store.release(claim, self.rule, error="Cancelled", uncount=True, rebuild_in=rebuild_in)

    def _wait(self, claim: Claim, error: exceptions.ChatModelError, due_seconds: float) -> float:
        """Return the seconds until the next attempt: exponential backoff with full jitter, or what the provider asks.

        Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
        """
        reason = breaker.reason_of(error)
        retry_after = getattr(error, "retry_after", None) or 0.0
        if reason == Reason.MISCONFIGURED:
            # At different times: one session whose content the model answers with "wrong key" must not be the one that
            # is tried first each time. And less and less often, because each time it pauses the alias.
            wait = breaker.MISCONFIGURED_PAUSE + random.uniform(0, _PAUSE_JITTER)  # noqa: S311
            return max(wait, backoff(claim.attempts)) if self._may_be_the_session(reason) else wait
        if reason == Reason.RATE_LIMIT:
            return min(LONGEST_OUTAGE_WAIT, breaker.pause(reason, retry_after=retry_after))
        wait = max(random.uniform(0, backoff(claim.attempts)), retry_after)  # noqa: S311
        if reason == Reason.OUTAGE:
            return min(LONGEST_OUTAGE_WAIT, wait)
        if claim.attempts >= self.options.max_attempts:
            # Not longer than until the fallback may stand in: see ModelChoice.
            left = self.options.fallback_after - due_seconds if self.has_fallback else 0.0
            return max(wait, left) if 0.0 < left < LONGEST_WAIT else LONGEST_WAIT
        return min(LONGEST_WAIT, wait)

    def _may_be_the_session(self, reason: Reason | None) -> bool:
        """Whether a wrong configuration may be an answer to this session's content alone.

        Other sessions were just answered: the breaker was closed. If the configuration is wrong indeed, it stays open
        from now on, so this happens to a session once.
        """
        return reason == Reason.MISCONFIGURED and not self.admission.reason

    def _report(self, claim: Claim, error: exceptions.ChatModelError) -> None:
        self.store.on_commit(lambda: self.on_failed(claim, error))
