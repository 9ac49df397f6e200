"""Every error that the app raises on purpose.

Input errors are also :class:`ValueError`, so code that does not know this app can handle them. Nothing was written
when an input error is raised.

Model errors are classified by what a retry would change. Compaction decides by the class of an error, never by its
text.

``status`` and ``code`` are what the HTTP API answers with: a status of HTTP, and a name that does not change between
releases. A view of a site can use them too.
"""

from __future__ import annotations

import math
import typing


class ConvMemoryError(Exception):
    """The base class of all errors of this app."""

    status, code = 500, "error"

    @property
    def headers(self) -> dict[str, str]:
        """``Retry-After`` if it is known when to try again."""
        seconds: float | None = getattr(self, "retry_after", None)
        return {} if seconds is None else {"Retry-After": str(math.ceil(seconds))}


# Input errors.


class InvalidMessage(ConvMemoryError, ValueError):
    """A message, or a value stored with it, has a wrong role or type, is too large, or no database could store it.

    Correct the message. The text of the error names the field and the repair.
    """

    status, code = 400, "invalid_message"


class ToolResultRefused(InvalidMessage):
    """A tool result answers no call of the open exchange.

    Store a tool result after the assistant message that made the call, and before the next assistant message.
    Otherwise leave the result out. ``call_id`` is the call id that the result names.
    """

    status, code = 409, "tool_result_refused"

    def __init__(self, message: str, call_id: str = "") -> None:
        super().__init__(message)
        self.call_id = call_id


class TooManyPinned(InvalidMessage):
    """A session already holds the 64 system and developer messages that it may hold.

    Pass the site's own prompt to ``load(system=…)`` instead of storing it.
    """

    status, code = 409, "too_many_pinned"


class InvalidArgument(ConvMemoryError, ValueError):
    """An argument of an operation has the wrong type or is out of range. The error names what is allowed."""

    status, code = 400, "invalid_argument"


class InvalidSession(ConvMemoryError, ValueError):
    """The key, the owner or the visitor does not name a session of this memory.

    A key is a text. An owner is a saved user, a visitor is a text, and a session has at most one of the two. An owner
    or visitor of None is an error too: leave the argument out to name a session of nobody. A handle names a session of
    its own memory only.
    """

    status, code = 400, "invalid_session"


class UnknownSession(ConvMemoryError, ValueError):
    """The session does not exist, or was deleted or adopted since it was read. Look it up again."""

    status, code = 404, "not_found"


class SessionExists(ConvMemoryError, ValueError):
    """A session cannot be created under this name, because another session has it. Choose another key."""

    status, code = 409, "session_exists"


class UnknownMessage(ConvMemoryError, ValueError):
    """The session has no message at that position or with that id. Read the history for those that exist."""

    status, code = 404, "unknown_message"


class RedactedMessage(ConvMemoryError, ValueError):
    """The metadata of a redacted message cannot be set: it could bring back what the redaction removed."""

    status, code = 409, "message_redacted"


class StaleRevision(ConvMemoryError):
    """The session was changed after the revision that an edit was made for.

    Load the session again, and repeat the edit with the new revision if it is still wanted.
    """

    status, code = 412, "stale_revision"


class SessionContended(ConvMemoryError):
    """Other transactions changed the session during every attempt to change it. Try again later."""

    status, code = 503, "session_contended"


class ConnectionLost(ConvMemoryError):
    """The connection to the database was lost in each try of a transaction. Nothing was stored. Try again later.

    What is raised is an ``OperationalError`` of Django too.
    """

    status, code = 503, "database_unavailable"


class OutcomeUnknown(ConvMemoryError):
    """The connection to the database was lost during the COMMIT, or during a statement that is a transaction by itself.

    Nobody knows whether the changes were stored. Look before you repeat them. What is raised is an ``OperationalError``
    of Django too.
    """

    status, code = 500, "outcome_unknown"


class BrokerUnavailable(ConvMemoryError):
    """A sweep could not send tasks to the Celery broker.

    Start the broker or correct its address. The sessions stay due, and a later sweep sends them.
    """

    status, code = 503, "broker_unavailable"


class IdempotencyConflict(ConvMemoryError, ValueError):
    """An idempotency key was used before with other content, or for another request. Use a new key for that."""

    status, code = 422, "idempotency_conflict"


# Errors of a turn: ``answer`` and ``stream_answer`` raise them.


class TurnError(ConvMemoryError):
    """A question was not answered. ``reply`` has the messages of the model that were not stored, or is empty.

    They are a list of :class:`~django_convmemory.messages.ChatMessage`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.reply: list[typing.Any] = []


class TurnInProgress(TurnError):
    """Another request answers in this session, and has not ended within the time that this one may wait.

    Try again in ``retry_after`` seconds, which are five at most: the next request waits too.
    """

    status, code = 409, "turn_in_progress"

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TurnLost(TurnError):
    """The turn had lasted too long without a sign of life, and another request has opened one. Nothing was stored.

    Raise the option ``turn_timeout`` if the model takes longer than that.
    """

    status, code = 409, "turn_lost"


class QuestionChanged(TurnError):
    """The question is not there any more, or other messages follow it. The reply was not stored.

    Read the session again, and ask again if the question is still wanted.
    """

    status, code = 409, "question_changed"


class NothingToAnswer(TurnError, ValueError):
    """The session has no question without a reply. Pass the question, or ``again`` with the one to answer anew."""

    status, code = 400, "nothing_to_answer"


class EmptyReply(TurnError):
    """The model's reply has no text, call, refusal, transcript or file. Nothing was stored. Ask again."""

    status, code = 502, "empty_reply"


class MessageTooLong(ConvMemoryError, ValueError):
    """The question does not fit into the context. Nothing was stored.

    It has ``tokens``, and there is room for ``limit``. Shorten it, or raise ``max_context_tokens``.
    """

    status, code = 413, "message_too_large"

    def __init__(self, message: str, *, tokens: int, limit: int) -> None:
        super().__init__(message)
        self.tokens, self.limit = tokens, limit


class UnknownAlias(ConvMemoryError, KeyError, ValueError):
    """``memories[alias]`` names an alias that ``settings.CONVMEMORY`` does not have. Correct the alias, or add it."""

    status, code = 400, "unknown_alias"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would show the repr of the text.


# Model errors: a chat model's ``chat`` and ``achat`` raise them.


class ChatModelError(ConvMemoryError):
    """A call of a chat model returned no usable answer."""


class ModelUnavailable(ChatModelError):
    """A later call may succeed: a rate limit, an overload, a network failure or a missed deadline.

    Compaction tries again by itself. If it keeps failing, check the provider's status, the network, and the model's
    option ``timeout``. ``retry_after`` is the pause in seconds that the provider asked for, or None.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(ModelUnavailable):
    """The provider takes no more calls for the moment (HTTP 429). It is up, so this does not count as an outage.

    Compaction pauses for the alias, and goes on by itself. If it happens often, run fewer workers, or raise the limit
    at the provider.
    """


class RequestRejected(ModelUnavailable):
    """The provider refuses this one request with an error that may be ours or its own (HTTP 4xx other than 429).

    It is tried again later. It says nothing about other sessions, so it does not count as an outage.
    ``may_be_too_long``: the reason is not known, so it may be the length. Compaction then tries half of the messages,
    once.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, may_be_too_long: bool = False) -> None:
        super().__init__(message, retry_after=retry_after)
        self.may_be_too_long = may_be_too_long


class ModelMisconfigured(ChatModelError):
    """No call can succeed until a person acts: the key is refused, the model unknown, the quota used up.

    Correct the model's options or its environment variables, or the account at the provider.
    """


class ContextLengthExceeded(ChatModelError):
    """The request is larger than the model's input window. A smaller request may succeed.

    Compaction tries a smaller one. If none fits, choose a model with a larger window.
    """


class ContentRefused(ChatModelError):
    """The model, or the provider's filter, refuses this content. Other content may be accepted.

    Configure a fallback model, or redact the messages that are refused.
    """


class BadModelOutput(ChatModelError):
    """The model answered, but the answer is unusable: malformed, empty, cut off or too large.

    Compaction tries again by itself. If every answer is unusable, check ``base_url``, and try another model.
    """
