"""The model call of a fold: which model is asked, its lease and its record, and what it says of the alias's pause."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import NamedTuple

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse
from django_convmemory.fold import quoting, replacing, validate
from django_convmemory.fold.base import Fold, LeaseLost, Steps
from django_convmemory.fold.chunk import Chunk
from django_convmemory.messages import spoken
from django_convmemory.observers import ModelCall
from django_convmemory.rules import pause
from django_convmemory.rules.pause import Admission, Choice, Pause, Reason
from django_convmemory.rules.values import MAX_MODEL_NAME, AttemptOutcome, AttemptRecord

logger = logging.getLogger(__name__)

_MAX_ERROR_LENGTH = 1000
_MAX_COST = 1_000_000


def admission(fold: Fold, *, despite_pause: bool) -> Admission:
    """Return which models the fold may ask. It becomes the probe if the pause of the alias has ended."""
    store, alias = fold.memory.store, fold.run.alias
    fallback_after = fold.memory.options.fallback_after if fold.memory.fallback is not None else None
    admitted = pause.admission(store.pause_of(alias), fallback_after=fallback_after, despite_pause=despite_pause)
    if admitted.probe:
        before, after = store.change_pause(alias, lambda state: state.probed(fold.lease))
        if after == before:  # Another one has become the probe.
            return admitted._replace(own=False)
        fold.probe_until = after.paused_until
    return admitted


def first(fold: Fold) -> ChatModel:
    """Return the model to ask for a chunk."""
    fold.own_error = fold.fallback_error = None
    return _model(fold, fold.situation.first())


def following(fold: Fold, failed: ChatModel, error: exceptions.ChatModelError) -> ChatModel | None:
    """Return the model to ask for a chunk after ``failed``, or None."""
    if failed is fold.model:
        fold.own_error = error
    else:
        fold.fallback_error = error
    choice = fold.situation.following(fold.own_error, fold.fallback_error)
    return None if choice is None else _model(fold, choice)


def _model(fold: Fold, choice: Choice) -> ChatModel:
    return fold.memory.fallback if choice == Choice.FALLBACK and fold.memory.fallback is not None else fold.model


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
    if not fold.memory.store.extend(fold.claim, lease=fold.lease):
        raise LeaseLost
    began = time.monotonic()
    response, text = None, ""
    failure: Exception | None = None
    fold.memory.store.release_connection()
    by_fallback = model is fold.memory.fallback
    try:
        response = yield ModelCall(
            model=model, request=request, alias=fold.run.alias, public_id=fold.run.public_id, by_fallback=by_fallback
        )
        text = validate.checked(response)
        judge(fold, model, request, text)
        text = _quoted(fold, chunk, model, text)
    except Exception as error:  # noqa: BLE001  raised again once it is recorded
        failure = error
    answer = Answer(model, response, text, time.monotonic() - began)
    if model is fold.model:
        _note(fold, failure, answer.seconds)
    if failure is None:
        return answer
    if isinstance(failure, exceptions.ModelMisconfigured) and by_fallback:
        # Only an error of the alias's own model pauses the alias.
        failure = exceptions.ModelUnavailable(f"The fallback model is misconfigured: {failure}")
    record(fold, chunk, answer, _outcome_of(failure), failure)
    raise failure


def judge(fold: Fold, model: ChatModel, request: ChatRequest, text: str) -> None:
    """Raise :class:`~django_convmemory.exceptions.BadModelOutput` if ``text`` may not replace what it summarizes."""
    # An extractive model says nothing of its own. It may choose a line without a telling word.
    if request.fold is not None and not getattr(model, "quotes_labels", False):
        replacing.check_is_no_echo(text, request, fold.memory.options.instructions)
        replacing.check(text, request.fold.previous, request.fold.turns)


def _quoted(fold: Fold, chunk: Chunk, model: ChatModel, text: str) -> str:
    """Return ``text`` with quotes around what passes for another speaker's turn."""
    if getattr(model, "quotes_labels", False):
        return quoting.one_form(text)
    messages = chunk.messages
    names = [message.name for message in messages if message.name]
    return quoting.quoted(text, fold.previous, map(spoken, messages), names)


def _note(fold: Fold, failure: Exception | None, seconds: float) -> None:
    """Note for the alias that its own model has answered, or failed after ``seconds``."""
    store, alias, session_id = fold.memory.store, fold.run.alias, fold.run.session_id
    if failure is None or isinstance(failure, pause.ANSWERS):
        before, after = store.change_pause(alias, Pause.answered)
        if before.until_answered and after != before:
            fold.recovered = True
            logger.warning("The model of memories[%r] answers again. The pause has ended.", alias)
        return
    is_outage = pause.reason_of(failure) == Reason.OUTAGE
    fold.others_answered = is_outage and store.has_folded_another(alias, session_id, seconds)
    counts = is_outage and not fold.others_answered
    text, until = printable(failure), fold.probe_until
    before, after = store.change_pause(
        alias, lambda state: state.failed(failure, session_id, text=text, counts=counts, probe_until=until)
    )
    if after.paused_until not in (before.paused_until, None):
        left = (after.paused_until - after.now).total_seconds()
        logger.warning("memories[%r] is paused for %.0f s: %s", alias, left, text)


def record(fold: Fold, chunk: Chunk, answer: Answer, outcome: AttemptOutcome, error: Exception | None = None) -> None:
    """Record a call that made no version."""
    fold.memory.store.record(fold.claim, attempt(fold, chunk, answer, outcome, error))


def attempt(
    fold: Fold, chunk: Chunk, answer: Answer, outcome: AttemptOutcome, error: Exception | None = None
) -> AttemptRecord:
    """Return what is recorded of a call: its outcome, its tokens and its cost, or its error."""
    usage = answer.response.usage if answer.response else None
    cost = None
    if usage is not None and fold.memory.price is not None and answer.asked is not fold.memory.fallback:
        cost = fold.memory.price.of(usage)
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
        cost=cost,
        **(dataclasses.asdict(usage) if usage else {}),
    )


def _outcome_of(error: Exception) -> AttemptOutcome:
    """Return the outcome of a call that failed with ``error``."""
    outcomes = {
        exceptions.ModelUnavailable: AttemptOutcome.UNAVAILABLE,
        exceptions.ModelMisconfigured: AttemptOutcome.MISCONFIGURED,
        exceptions.ContextLengthExceeded: AttemptOutcome.TOO_LONG,
        exceptions.ContentRefused: AttemptOutcome.REFUSED,
        exceptions.ChatModelError: AttemptOutcome.BAD_OUTPUT,
    }
    return next((outcome for kind, outcome in outcomes.items() if isinstance(error, kind)), AttemptOutcome.ERROR)


def printable(error: Exception) -> str:
    """Return an error as one line, without control characters, for logs and rows."""
    text = f"{type(error).__name__}: {error}"[:_MAX_ERROR_LENGTH]
    return "".join(character if character.isprintable() else " " for character in text)
