"""One model call: its lease, its answer, its record, and what the alias's breaker learns from it."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Generator

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse
from django_convmemory.fold import attempts, validation
from django_convmemory.fold.attempts import Answer, Price
from django_convmemory.fold.model_choice import ANSWERS
from django_convmemory.fold.runs import LeaseLost
from django_convmemory.observers import Call
from django_convmemory.rules import breaker
from django_convmemory.rules.breaker import Reason
from django_convmemory.rules.values import Claim
from django_convmemory.store.either import Store

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True, kw_only=True)
class ModelCaller:
    """Calls the models of one run.

    - Each call renews the lease for ``lease`` seconds. ``price`` is that of ``own``, the alias's own model.
    - ``probe``: the run is the only one that may ask the own model now.
    - ``asked_own``: the own model was called. ``recovered``: its answer closed the alias's breaker.
    """

    store: Store
    own: ChatModel
    fallback: ChatModel | None
    price: Price | None
    lease: float
    probe: bool
    asked_own: bool = False
    recovered: bool = False

    def ask(
        self,
        model: ChatModel,
        request: ChatRequest,
        *,
        claim: Claim,
        last_position: int,
        finish: Callable[[str], str],
    ) -> Generator[Call, ChatResponse, Answer]:
        """Have the model answer, and validate its text. Record the attempt if that fails.

        ``last_position`` is that of the last message in the request. ``finish`` returns the text of the answer from
        what the model wrote.
        Raises :class:`.LeaseLost`, or the :class:`~django_convmemory.exceptions.ChatModelError` of the call.
        """
        # The last thing before the call: if a message was redacted meanwhile, its text does not leave.
        if not self.store.extend(claim, lease=self.lease):
            raise LeaseLost
        began = time.monotonic()
        response, text = None, ""
        failure: Exception | None = None
        self.store.release_connection()
        own, by_fallback = model is self.own, model is self.fallback
        self.asked_own = self.asked_own or own
        try:
            response = yield Call(
                model=model,
                request=request,
                alias=claim.name.alias,
                public_id=claim.public_id,
                by_fallback=by_fallback,
            )
            text = finish(validation.checked(response))
        except Exception as error:  # noqa: BLE001  raised again once it is recorded
            failure = error
        answer = Answer(
            claim=claim,
            asked=model,
            by_fallback=by_fallback,
            response=response,
            text=text,
            duration=time.monotonic() - began,
            last_position=last_position,
            price=None if by_fallback else self.price,
        )
        if own:
            self._tell_breaker(claim, failure, answer.duration)
        if failure is None:
            return answer
        if isinstance(failure, exceptions.ModelMisconfigured) and by_fallback:
            # Only an error of the alias's own model pauses the alias.
            failure = exceptions.ModelUnavailable(f"The fallback model is misconfigured: {failure}")
        self.store.record(claim, answer.attempt(attempts.outcome_of(failure), failure))
        raise failure

    def _tell_breaker(self, claim: Claim, failure: Exception | None, seconds: float) -> None:
        """Count a failure of the alias's own model after ``seconds``, or close the breaker: it has answered."""
        alias = claim.name.alias
        if failure is None or isinstance(failure, ANSWERS):
            if self.store.close_breaker(alias):
                self.recovered = True
                logger.warning("The model of memories[%r] answers again. The pause has ended.", alias)
            return
        reason = breaker.reason_of(failure)
        if self.probe and reason in (None, Reason.RATE_LIMIT):
            # The probe did not find out whether the model answers. Another session tries soon, and not only when the
            # time for this probe is over. A rate limit shows that the provider is up: nobody stands in for it.
            pause = breaker.pause(Reason.OUTAGE, retry_after=getattr(failure, "retry_after", None))
            if self.store.end_probe(alias, seconds=pause, silent=reason is None):
                return
        if reason is None:
            return
        text, failures = attempts.printable(failure), 0
        if reason == Reason.OUTAGE:
            failures = self.store.count_failure(alias, claim.session_id, text, seconds=seconds)
            if failures < breaker.MAX_FAILURES and not self.probe:
                return
        pause = breaker.pause(reason, failures=failures, retry_after=getattr(failure, "retry_after", None))
        self.store.open_breaker(alias, reason, text, seconds=pause)
        logger.warning("memories[%r] is paused for %.0f s: %s", alias, pause, text)
