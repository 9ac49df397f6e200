"""What is recorded of a model call: its outcome, its tokens and its cost, or its error."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import NamedTuple

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel, ChatResponse, Usage
from django_convmemory.rules.values import MAX_MODEL_NAME, AttemptOutcome, AttemptRecord, Claim

_MAX_ERROR_LENGTH = 1000
_MAX_COST = 1_000_000


class Price(NamedTuple):
    """The price of a million tokens. ``cached_input`` is for tokens from the provider's cache. None: as ``input``."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None

    def of(self, usage: Usage) -> Decimal:
        """Return what a call with this usage costs."""
        cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        prompt = (usage.prompt_tokens - cached) * self.input + cached * cached_price
        return (prompt + usage.completion_tokens * self.output) / 1_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A model's answer: its validated text, and what an :class:`.AttemptRecord` says about the call.

    ``claim`` is the claim with which ``asked`` was called. ``text`` is "" if the call failed.
    """

    claim: Claim
    asked: ChatModel
    by_fallback: bool
    response: ChatResponse | None
    text: str
    duration: float
    last_position: int
    price: Price | None

    @property
    def model(self) -> str:
        """The name of the model that answered: from its response, or else the configured one."""
        return ((self.response.model if self.response else "") or self.asked.name)[:MAX_MODEL_NAME]

    def attempt(self, outcome: AttemptOutcome, error: Exception | None = None) -> AttemptRecord:
        usage = self.response.usage if self.response else None
        cost = None
        if usage is not None and self.price is not None:
            cost = self.price.of(usage)
            # A nonsensical usage report must not keep the answer from being stored.
            cost = cost if cost < _MAX_COST else None
        return AttemptRecord(
            first_position=self.claim.counters.covered_position + 1,
            last_position=self.last_position,
            due_seconds=self.claim.due_seconds,
            duration_seconds=self.duration,
            outcome=outcome,
            error=type(error).__name__ if error else "",
            model=self.model,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            cost=cost,
        )


def outcome_of(error: Exception) -> AttemptOutcome:
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
