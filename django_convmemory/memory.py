"""The memories, under the names that the field knows them by, and ``memories``, which has those of the settings."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from django_convmemory import conf, strategies, tokens
from django_convmemory.buffer_summary import BufferSummaryChatMemory
from django_convmemory.chat_models.base import ChatModel
from django_convmemory.conversation import ConversationMemory, Receipt
from django_convmemory.exceptions import UnknownAlias
from django_convmemory.handles import SessionHandle
from django_convmemory.stores.base import Store
from django_convmemory.twins import asynchronous

__all__ = [
    "BufferSummaryChatMemory",
    "ConversationBufferMemory",
    "ConversationMemory",
    "ConversationSummaryBufferMemory",
    "ConversationSummaryMemory",
    "ConversationTokenBufferMemory",
    "ConversationWindowMemory",
    "Receipt",
    "SessionHandle",
    "memories",
]


class ConversationBufferMemory(ConversationMemory):
    """Shows everything, always."""

    strategy_class = strategies.Buffer

    def __init__(self, store: Store, **options: Any) -> None:
        super().__init__(store, strategies.Buffer(), **options)


class ConversationWindowMemory(ConversationMemory):
    """Shows the last ``window_size`` messages."""

    strategy_class = strategies.Window

    def __init__(self, store: Store, window_size: int, **options: Any) -> None:
        super().__init__(store, strategies.Window(window_size), **options)


class ConversationTokenBufferMemory(ConversationMemory):
    """Shows the newest messages that count ``max_tokens`` tokens together."""

    strategy_class = strategies.TokenBuffer

    def __init__(self, store: Store, max_tokens: int, **options: Any) -> None:
        options.setdefault("counter", tokens.TokenBufferEstimate())
        super().__init__(store, strategies.TokenBuffer(max_tokens), **options)


class ConversationSummaryMemory(ConversationMemory):
    """Shows a summary and the last messages; folds all but ``buffer_size`` once there are more than twice as many."""

    strategy_class = strategies.Summary
    summarizes = True

    def __init__(self, store: Store, model: ChatModel, buffer_size: int, **options: Any) -> None:
        options.setdefault("counter", tokens.SummaryBufferEstimate())
        super().__init__(store, strategies.Summary(buffer_size), model=model, **options)


class ConversationSummaryBufferMemory(ConversationMemory):
    """Shows a summary and the newest messages; folds down to half of ``max_token_limit`` once they count more."""

    strategy_class = strategies.SummaryBuffer
    summarizes = True

    def __init__(self, store: Store, model: ChatModel, max_token_limit: int, **options: Any) -> None:
        options.setdefault("counter", tokens.SummaryBufferEstimate())
        super().__init__(store, strategies.SummaryBuffer(max_token_limit), model=model, **options)


_Change = Callable[[ConversationMemory], Callable[[], None]]


class Memories:
    """The memories of ``settings.CONVMEMORY``, by alias, made when first asked for.

    Raises :class:`~django_convmemory.exceptions.UnknownAlias`, and ``ImproperlyConfigured`` where the system checks
    report an error.
    """

    def __init__(self) -> None:
        self._made: dict[str, ConversationMemory] = {}
        self._lock = threading.RLock()
        self._change: _Change | None = None
        self._undo: list[Callable[[], None]] = []

    def __getitem__(self, alias: str) -> ConversationMemory:
        memory = self._made.get(alias)
        if memory is None:
            with self._lock:
                memory = self._made.get(alias) or self._made.setdefault(alias, self._make(alias))
        return memory

    def __iter__(self) -> Iterator[str]:
        return iter(conf.aliases())

    def __contains__(self, alias: object) -> bool:
        return alias in conf.aliases()

    def all(self) -> list[ConversationMemory]:
        """Return the memories of all aliases."""
        return [self[alias] for alias in self]

    def erase(self, *, owner: Any = None, visitor: str | None = None) -> int:
        """Delete every session of a user or of a visitor, in all memories; return how many there were.

        Sessions of an alias that has gone from the settings are deleted by ``manage.py convmemory_erase``.
        """
        return sum(memory.erase(owner=owner, visitor=visitor) for memory in self.all())

    aerase = asynchronous(erase)

    def claim(self, visitor: str, user: Any) -> list[SessionHandle]:
        """Give a visitor's sessions to a user, as at login, in all memories, and return them."""
        return [session for memory in self.all() for session in memory.claim(visitor, user)]

    aclaim = asynchronous(claim)

    def forget(self) -> None:
        """Read the settings again at the next use."""
        with self._lock:
            self._made.clear()

    @contextlib.contextmanager
    def changed(self, change: _Change) -> Iterator[None]:
        """Make ``change`` to every memory that is there or is made meanwhile, and take it back at the end.

        ``change`` is called with a memory, changes it in place, for a site may hold one in a variable of a module, and
        returns what takes that back. For the test kit; one at a time.
        """
        try:
            # Memories are made under this lock: each of them was made before or after.
            with self._lock:
                self._undo.extend(map(change, self._made.values()))
                self._change = change
            yield
        finally:
            with self._lock:
                self._change = None
                while self._undo:
                    self._undo.pop()()

    def _make(self, alias: str) -> ConversationMemory:
        if alias not in conf.aliases():
            known = ", ".join(map(repr, conf.aliases()))
            raise UnknownAlias(f"CONVMEMORY has no alias {alias!r}; there are {known}.")
        memory: ConversationMemory = conf.build(alias)
        if self._change is not None:
            self._undo.append(self._change(memory))
        return memory


memories = Memories()
