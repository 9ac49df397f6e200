"""Which model folds a chunk: the alias's own one, or the fallback in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel
from django_convmemory.rules.breaker import Reason
from django_convmemory.rules.options import Options
from django_convmemory.rules.values import Claim

# Errors with which a model has answered that it cannot summarize this chunk.
ANSWERS = (exceptions.BadModelOutput, exceptions.ContentRefused, exceptions.ContextLengthExceeded)


class Admission(NamedTuple):
    """The models that a run may ask, by the state of the alias's breaker.

    ``own`` is the alias's own. ``fallback``: the own one has been silent for so long that the fallback may stand in.
    ``probe``: the run is the only one that may ask the own model now. ``reason`` is why the breaker is open, or ""
    if it is closed.
    """

    own: bool
    fallback: bool = False
    probe: bool = False
    reason: str = ""


class ModelChoice:
    """The models to ask for one chunk, one after the other, and their errors.

    ``due_seconds`` returns for how long the session has been due. ``own_error`` is the error of the alias's own model.
    """

    def __init__(
        self,
        own: ChatModel,
        fallback: ChatModel | None,
        *,
        admission: Admission,
        claim: Claim,
        options: Options,
        due_seconds: Callable[[], float],
    ) -> None:
        self._own, self._fallback = own, fallback
        self._admission, self._claim, self._options, self._due_seconds = admission, claim, options, due_seconds
        self.own_error: exceptions.ChatModelError | None = None
        self._fallback_error: exceptions.ChatModelError | None = None

    def first(self) -> ChatModel:
        """Return the fallback if the alias's own model may not be asked, or if there were too many attempts.

        Claims count as attempts, because a worker that is killed each time never reports a failure.
        """
        if self._fallback is None:
            return self._own
        if not self._admission.own:
            return self._fallback
        exhausted = self._claim.attempts > self._options.max_attempts
        return self._fallback if exhausted and self._may_stand_in() else self._own

    def next(self, failed: ChatModel, error: exceptions.ChatModelError) -> ChatModel | None:
        """Return the model to ask after ``failed``, or None."""
        if failed is self._own:
            self.own_error = error
        else:
            self._fallback_error = error
        if self.own_error is None:
            # The fallback was asked first. The model's own trouble may be over, or only it can fold this text.
            return self._own if self._admission.own else None
        # No fallback for a wrong configuration: a key that expires on Friday must not have replaced every session's
        # memory by Monday.
        if self._fallback_error is not None or isinstance(self.own_error, exceptions.ModelMisconfigured):
            return None
        refused = isinstance(self.own_error, exceptions.ContentRefused)
        return self._fallback if refused or self._may_stand_in() else None

    @property
    def is_hopeless(self) -> bool:
        """Whether both models have answered that they cannot summarize the chunk."""
        return isinstance(self.own_error, ANSWERS) and isinstance(self._fallback_error, ANSWERS)

    def _may_stand_in(self) -> bool:
        """Whether the fallback may be asked in the model's place.

        A rebuild never asks it: the summary is there. Nor does a run while the model is misconfigured.
        """
        if self._claim.rebuilding or self._admission.reason == Reason.MISCONFIGURED:
            return False
        options = self._options
        waited = self._due_seconds() >= options.fallback_after and self._claim.attempts >= options.max_attempts
        return waited or self._admission.fallback
