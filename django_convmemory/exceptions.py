"""Every error that the app raises on purpose.

Input errors are also :class:`ValueError`, so that code that knows nothing of this app can treat them as such.
Model errors say what a retry would change; compaction decides by their class, never by their text.
"""


class ConvMemoryError(Exception):
    """The base of all errors of this app."""


# Input: nothing was written.


class InvalidMessage(ConvMemoryError, ValueError):
    """A message cannot be stored as it is: wrong role or type, text that a database refuses, too large."""


class ToolResultRefused(InvalidMessage):
    """A tool result answers no call of the open exchange. ``call_id`` is that of the call which it names."""

    def __init__(self, message: str, call_id: str = "") -> None:
        super().__init__(message)
        self.call_id = call_id


class TooManyPinned(InvalidMessage):
    """A session holds as many system and developer messages as it may."""


class InvalidArgument(ConvMemoryError, ValueError):
    """An argument has a value that the operation does not accept."""


class InvalidSession(ConvMemoryError, ValueError):
    """What was given does not name a session of this memory."""


class UnknownSession(ConvMemoryError, ValueError):
    """The session does not exist, or was deleted or adopted since it was found."""


class SessionExists(ConvMemoryError, ValueError):
    """A session cannot be created under this name, because another session has it."""


class UnknownMessage(ConvMemoryError, ValueError):
    """The session has no message at that position."""


class StaleRevision(ConvMemoryError):
    """The session was changed since the revision that an edit was made for."""


class SessionContended(ConvMemoryError):
    """A session changed under every attempt to change it. Trying again later may succeed."""


class BrokerUnavailable(ConvMemoryError):
    """A sweep could not send what is due."""


class IdempotencyConflict(ConvMemoryError, ValueError):
    """An idempotency key was used before, with other content."""


class UnknownAlias(ConvMemoryError, KeyError, ValueError):
    """``memories[alias]`` names an alias that ``settings.CONVMEMORY`` does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


# Chat models: raised by a model's ``chat`` and ``achat``.


class ChatModelError(ConvMemoryError):
    """A call of a chat model gave no usable answer."""


class ModelUnavailable(ChatModelError):
    """A later call may succeed: rate limit, overload, network, deadline.

    ``retry_after`` is the pause in seconds that the provider asked for, or None.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelMisconfigured(ChatModelError):
    """No call can succeed until a person acts: key refused, model unknown, quota used up."""


class ContextLengthExceeded(ChatModelError):
    """The request is larger than the model's input window; a smaller one may pass."""


class ContentRefused(ChatModelError):
    """The model, or the provider's filter, refuses this content; other content may pass."""


class BadModelOutput(ChatModelError):
    """The model answered, and the answer cannot be used: malformed, empty, cut off."""
