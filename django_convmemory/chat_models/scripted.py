"""A chat model that answers what it was told to: for tests, of this app and of the sites that use it."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable

from django_convmemory import messages
from django_convmemory.chat_models import base

Reply = str | messages.ChatMessage | base.ChatResponse | BaseException | type[BaseException]


class ScriptExhausted(AssertionError):
    """A :class:`ScriptedChatModel` was asked more often than it has replies.

    Not a :class:`~django_convmemory.exceptions.ChatModelError`: those are handled, and the test would pass.
    """


class ScriptedChatModel:
    """A chat model that gives ``replies`` one after the other, to as many threads as ask.

    A reply is a text, a :class:`~django_convmemory.messages.ChatMessage`, a
    :class:`~django_convmemory.chat_models.base.ChatResponse`, or an exception, which is raised. ``requests`` lists
    what the model was asked, in order. ``deadline`` is in seconds and only reported: replies come at once.

    Raises :class:`TypeError` for a reply of another type, and :class:`ScriptExhausted` when no reply is left::

        model = ScriptedChatModel(["They talked about Rust.", ModelUnavailable("busy")])
    """

    def __init__(self, replies: Iterable[Reply] = (), *, name: str = "scripted", deadline: float = 60.0) -> None:
        if isinstance(replies, (str, messages.ChatMessage, base.ChatResponse)):
            raise TypeError(f"replies must be a list of replies, not one {type(replies).__name__}; put it in a list.")
        self._name = name
        self._deadline = deadline
        self._lock = threading.Lock()
        self._replies: collections.deque[base.ChatResponse | BaseException] = collections.deque()
        self.requests: list[base.ChatRequest] = []
        self.add(*replies)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}: {len(self._replies)} replies left>"

    @property
    def name(self) -> str:
        """The name that is stored with each summary."""
        return self._name

    @property
    def deadline(self) -> float:
        """The seconds that a call is said to take at most."""
        return self._deadline

    def add(self, *replies: Reply) -> None:
        """Queue ``replies`` after those that are left. Raises :class:`TypeError`, and then queues none of them."""
        queued = [_reply(reply) for reply in replies]
        with self._lock:
            self._replies.extend(queued)

    def chat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Record ``request`` and give, or raise, the next reply."""
        with self._lock:
            self.requests.append(request)
            count = len(self.requests)
            reply = self._replies.popleft() if self._replies else None
        if reply is None:
            raise ScriptExhausted(
                f"The chat model {self._name!r} has no reply left for request {count}; give it more replies when it "
                "is made, or with add()."
            )
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def achat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Do as :meth:`chat` does."""
        return self.chat(request)


def _reply(reply: object) -> base.ChatResponse | BaseException:
    if isinstance(reply, (base.ChatResponse, BaseException)):
        return reply
    if isinstance(reply, messages.ChatMessage):
        return base.ChatResponse(reply)
    if isinstance(reply, str):
        return base.ChatResponse(messages.ChatMessage.ai(reply))
    if isinstance(reply, type) and issubclass(reply, BaseException):
        return reply("scripted")
    raise TypeError(f"A reply is a text, a ChatMessage, a ChatResponse or an exception, not {type(reply).__name__}.")
