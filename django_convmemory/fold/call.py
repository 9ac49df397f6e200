"""The model call of a fold: which model is asked, its lease and its record, and what the breaker learns from it."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse
from django_convmemory.fold import quoting, validate
from django_convmemory.fold.base import Admission, Fold, LeaseLost, Steps
from django_convmemory.fold.chunk import Chunk
from django_convmemory.observers import ModelCall
from django_convmemory.rules import breaker
from django_convmemory.rules.breaker import Reason
from django_convmemory.rules.transcript import spoken
from django_convmemory.rules.values import MAX_MODEL_NAME, AttemptOutcome, AttemptRecord

logger = logging.getLogger(__name__)

_MAX_ERROR_LENGTH = 1000
_MAX_COST = 1_000_000
# Errors with which a model has answered that it cannot summarize this chunk.
_ANSWERS = (exceptions.BadModelOutput, exceptions.ContentRefused, exceptions.ContextLengthExceeded)


def admission(fold: Fold, *, despite_pause: bool) -> Admission:
    """Return which models the fold may ask. It becomes the probe if the pause of the alias has ended."""
    state = fold.store.breaker(fold.run.alias)
    fallback = fold.fallback is not None and state.silent_for(fold.options.fallback_after)
    reason = state.reason if state.open else ""
    if despite_pause or not (state.open or state.paused):
        return Admission(own=True, fallback=fallback, reason=reason)
    probe = state.open and not state.paused and fold.store.probe(fold.run.alias, seconds=fold.lease)
    return Admission(own=probe, fallback=fallback, probe=probe, reason=reason)


def first(fold: Fold) -> ChatModel:
    """Return the model to ask for a chunk.

    It is the fallback if the alias's own model may not be asked, or if there were too many attempts. Claims count as
    attempts, because a worker that is killed each time never reports a failure.
    """
    fold.own_error = fold.fallback_error = None
    if fold.fallback is None:
        return fold.model
    if not fold.admission.own:
        return fold.fallback
    exhausted = fold.claim.attempts > fold.options.max_attempts
    return fold.fallback if exhausted and _may_stand_in(fold) else fold.model


def following(fold: Fold, failed: ChatModel, error: exceptions.ChatModelError) -> ChatModel | None:
    """Return the model to ask for a chunk after ``failed``, or None."""
    if failed is fold.model:
        fold.own_error = error
    else:
        fold.fallback_error = error
    if fold.own_error is None:
        # The fallback was asked first. The model's own trouble may be over, or only it can fold this text.
        return fold.model if fold.admission.own else None
    # No fallback for a wrong configuration: a key that expires on Friday must not have replaced every session's
    # memory by Monday.
    if fold.fallback_error is not None or isinstance(fold.own_error, exceptions.ModelMisconfigured):
        return None
    refused = isinstance(fold.own_error, exceptions.ContentRefused)
    return fold.fallback if refused or _may_stand_in(fold) else None


def is_hopeless(fold: Fold) -> bool:
    """Whether both models have answered that they cannot summarize the chunk."""
    return isinstance(fold.own_error, _ANSWERS) and isinstance(fold.fallback_error, _ANSWERS)


def _may_stand_in(fold: Fold) -> bool:
    """Whether the fallback may be asked in the model's place.

    A rebuild never asks it: the summary is there. Nor does a fold while the model is misconfigured.
    """
    if fold.claim.rebuilding or fold.admission.reason == Reason.MISCONFIGURED:
        return False
    options = fold.options
    waited = fold.due_seconds >= options.fallback_after and fold.claim.attempts >= options.max_attempts
    return waited or fold.admission.fallback


class Answer(NamedTuple):
    """The answer of ``asked``: its validated text, or "" if the call failed after ``seconds``."""

    asked: ChatModel
    response: ChatResponse | None
    text: str
    seconds: float

    @property
    def model(self) -> str:
        """The name of the model that answered: from its response, or else the configured one."""
        return ((self.response.model if self.response else "") or self.asked.name)[:MAX_MODEL_NAME]


def ask(fold: Fold, chunk: Chunk, model: ChatModel, request: ChatRequest) -> Steps[Answer]:
    """Have the model answer, and validate its text. Record the attempt if that fails.

    Raises :class:`.LeaseLost`, or the :class:`~django_convmemory.exceptions.ChatModelError` of the call.
    """
    # The last thing before the call: if a message was redacted meanwhile, its text does not leave.
    if not fold.store.extend(fold.claim, lease=fold.lease):
        raise LeaseLost
    began = time.monotonic()
    response, text = None, ""
    failure: Exception | None = None
    fold.store.release_connection()
    by_fallback = model is fold.fallback
    fold.asked_own = fold.asked_own or model is fold.model
    try:
        response = yield ModelCall(
            model=model, request=request, alias=fold.run.alias, public_id=fold.run.public_id, by_fallback=by_fallback
        )
        text = _quoted(fold, chunk, model, validate.checked(response))
    except Exception as error:  # noqa: BLE001  raised again once it is recorded
        failure = error
    answer = Answer(model, response, text, time.monotonic() - began)
    if model is fold.model:
        _tell_breaker(fold, failure, answer.seconds)
    if failure is None:
        return answer
    if isinstance(failure, exceptions.ModelMisconfigured) and by_fallback:
        # Only an error of the alias's own model pauses the alias.
        failure = exceptions.ModelUnavailable(f"The fallback model is misconfigured: {failure}")
    record(fold, chunk, answer, _outcome_of(failure), failure)
    raise failure


def _quoted(fold: Fold, chunk: Chunk, model: ChatModel, text: str) -> str:
    """Return ``text`` with quotes around what passes for another speaker's turn."""
    if getattr(model, "quotes_labels", False):
        return quoting.one_form(text)
    messages = chunk.messages
    names = [message.name for message in messages if message.name]
    return quoting.quoted(text, fold.previous, map(spoken, messages), names)


def _tell_breaker(fold: Fold, failure: Exception | None, seconds: float) -> None:
    """Count a failure of the alias's own model after ``seconds``, or close the breaker: it has answered."""
    store, alias, probe = fold.store, fold.run.alias, fold.admission.probe
    if failure is None or isinstance(failure, _ANSWERS):
        if store.close_breaker(alias):
            fold.recovered = True
            logger.warning("The model of memories[%r] answers again. The pause has ended.", alias)
        return
    reason = breaker.reason_of(failure)
    retry_after = getattr(failure, "retry_after", None)
    if probe and reason in (None, Reason.RATE_LIMIT):
        # The probe did not find out whether the model answers. Another session tries soon, and not only when the
        # time for this probe is over. A rate limit shows that the provider is up: nobody stands in for it.
        pause = breaker.pause(Reason.OUTAGE, retry_after=retry_after)
        if store.end_probe(alias, seconds=pause, silent=reason is None):
            return
    if reason is None:
        return
    text, failures = printable(failure), 0
    if reason == Reason.OUTAGE:
        failures = store.count_failure(alias, fold.run.session_id, text, seconds=seconds)
        if failures < breaker.MAX_FAILURES and not probe:
            return
    pause = breaker.pause(reason, failures=failures, retry_after=retry_after)
    store.open_breaker(alias, reason, text, seconds=pause)
    logger.warning("memories[%r] is paused for %.0f s: %s", alias, pause, text)


def record(fold: Fold, chunk: Chunk, answer: Answer, outcome: AttemptOutcome, error: Exception | None = None) -> None:
    """Record a call that made no version."""
    fold.store.record(fold.claim, attempt(fold, chunk, answer, outcome, error))


def attempt(
    fold: Fold, chunk: Chunk, answer: Answer, outcome: AttemptOutcome, error: Exception | None = None
) -> AttemptRecord:
    """Return what is recorded of a call: its outcome, its tokens and its cost, or its error."""
    usage = answer.response.usage if answer.response else None
    cost = None
    if usage is not None and fold.price is not None and answer.asked is not fold.fallback:
        cost = fold.price.of(usage)
        # A nonsensical usage report must not keep the answer from being stored.
        cost = cost if cost < _MAX_COST else None
    return AttemptRecord(
        first_position=fold.claim.counters.covered_position + 1,
        last_position=chunk.last,
        due_seconds=fold.claim.due_seconds,
        duration_seconds=answer.seconds,
        outcome=outcome,
        error=type(error).__name__ if error else "",
        model=answer.model,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        cost=cost,
    )


def _outcome_of(error: Exception) -> AttemptOutcome:
    """Return the outcome of a call that failed with ``error``."""
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


def printable(error: Exception) -> str:
    """Return an error as one line, without control characters, for logs and rows."""
    text = f"{type(error).__name__}: {error}"[:_MAX_ERROR_LENGTH]
    return "".join(character if character.isprintable() else " " for character in text)
