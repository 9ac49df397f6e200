"""A chat model with prepared replies, for the tests of this app and of the sites that use it."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable

from django_convmemory import messages
from django_convmemory.chat_models import base

Reply = str | messages.ChatMessage | base.ChatResponse | BaseException | type[BaseException]


class ScriptExhausted(AssertionError):
    """A :class:`ScriptedChatModel` received a request and had no reply left.

    It is not a :class:`~django_convmemory.exceptions.ChatModelError`: compaction would handle it, and the test would
    pass.
    """


class ScriptedChatModel:
    """A chat model that gives ``replies`` in order. Threads can share it.

    A reply is a text, a :class:`~django_convmemory.messages.ChatMessage`, a
    :class:`~django_convmemory.chat_models.base.ChatResponse`, or an exception, which the model raises. For example::

        model = ScriptedChatModel(["They talked about Rust.", ModelUnavailable("busy")])

    ``name`` is the name of the model, which is stored with each summary. ``requests`` lists the requests to the model,
    in order. The model answers at once: nothing enforces ``deadline``, the longest time of a call in seconds.

    Raises :class:`TypeError` for a reply of another type, and :class:`ScriptExhausted` if no reply is left.
    """

    def __init__(self, replies: Iterable[Reply] = (), *, name: str = "scripted", deadline: float = 60.0) -> None:
        if isinstance(replies, (str, messages.ChatMessage, base.ChatResponse)):
            raise TypeError(f"replies must be a list of replies, not a {type(replies).__name__}. Put it in a list.")
        self.name = name
        self.deadline = deadline
        self._lock = threading.Lock()
        self._replies: collections.deque[base.ChatResponse | BaseException] = collections.deque()
        self.requests: list[base.ChatRequest] = []
        self.add(*replies)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {len(self._replies)} replies left>"

    def add(self, *replies: Reply) -> None:
        """Queue ``replies`` after those that are left.

        If a reply has a wrong type, this raises :class:`TypeError` and queues none of them.
        """
        prepared = [_prepared(reply) for reply in replies]
        with self._lock:
            self._replies.extend(prepared)

    def chat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Record ``request``, then return or raise the next reply."""
        with self._lock:
            self.requests.append(request)
            count = len(self.requests)
            reply = self._replies.popleft() if self._replies else None
        if reply is None:
            raise ScriptExhausted(
                f"The chat model {self.name!r} has no reply left for request {count}. Pass it more replies when it "
                "is created, or with add()."
            )
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def achat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Call :meth:`chat`."""
        return self.chat(request)


def _prepared(reply: object) -> base.ChatResponse | BaseException:
    if isinstance(reply, (base.ChatResponse, BaseException)):
        return reply
    if isinstance(reply, messages.ChatMessage):
        return base.ChatResponse(reply)
    if isinstance(reply, str):
        return base.ChatResponse(messages.ChatMessage.ai(reply))
    if isinstance(reply, type) and issubclass(reply, BaseException):
        return reply("scripted")
    raise TypeError(f"A reply must be a str, ChatMessage, ChatResponse or exception, not {type(reply).__name__}.")
