"""What a visitor is told if a message cannot be stored. The errors of the app speak to developers."""

from __future__ import annotations

import logging

import openai

from django_convmemory.exceptions import ConvMemoryError

logger = logging.getLogger(__name__)

# The most characters of a message.
LONGEST = 20_000


def too_long(text: str) -> str | None:
    """Return what to say if the text is too long, or None."""
    if len(text) <= LONGEST:
        return None
    return f"Your message has {len(text):,} characters, and {LONGEST:,} are the most. Please shorten it."


def of_store(error: ConvMemoryError) -> str:
    """Return what to say if the app has refused a message."""
    logger.warning("A message was refused: %s", error)
    return "Your message could not be stored. If it has unusual characters, remove them and send it again."


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
