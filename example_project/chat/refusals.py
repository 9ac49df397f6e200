"""What a visitor is told if a message cannot be stored or answered. The errors of the app speak to developers."""

from __future__ import annotations

import logging

import openai

from django_convmemory.exceptions import (
    ConvMemoryError,
    MessageTooLong,
    QuestionChanged,
    TurnInProgress,
    UnknownMessage,
    UnknownSession,
)

logger = logging.getLogger(__name__)

# The most characters of a message.
LONGEST = 20_000
CHANGED = "The conversation has changed meanwhile. Reload the page to see it."


class Refused(Exception):
    """A request that is refused, with the status of the response. Its text is for the visitor."""

    def __init__(self, text: str, status: int = 422) -> None:
        super().__init__(text)
        self.status = status


def too_long(text: str) -> str | None:
    """Return what to say if the text is too long, or None."""
    if len(text) <= LONGEST:
        return None
    return f"Your message has {len(text):,} characters, and {LONGEST:,} are the most. Please shorten it."


def of_store(error: ConvMemoryError) -> str:
    """Return what to say if the app has refused a message."""
    logger.warning("A message was refused: %s", error)
    return "Your message could not be stored. If it has unusual characters, remove them and send it again."


def of_question(error: ConvMemoryError) -> Refused:
    """Return the refusal of a question that the app does not store, or does not answer now."""
    match error:
        case TurnInProgress():
            return Refused("Another window waits for a reply in this conversation. Try again when it is there.", 409)
        case QuestionChanged() | UnknownMessage() | UnknownSession():
            return Refused(CHANGED, 409)
        case MessageTooLong():
            return Refused("Your message is too long for the model. Please shorten it.")
        case _:
            return Refused(of_store(error))


def of_model(error: openai.OpenAIError) -> str:
    """Return what to say if the model has failed. A provider's own text may quote keys, organizations or prompts."""
    if isinstance(error, openai.RateLimitError):
        cause = "The model is overloaded right now."
    elif isinstance(error, openai.AuthenticationError):
        cause = "The model does not accept the key of this site."
    elif isinstance(error, openai.APITimeoutError):
        cause = "The model took too long."
    elif isinstance(error, openai.APIStatusError):
        cause = "The model could not answer."
    else:
        cause = "The model cannot be reached."
    return f"{cause} Your message is stored."
