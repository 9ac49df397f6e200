"""The memory classes, with the names that other libraries use, and ``memories``: the memories of the settings."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_convmemory import conf, tokens
from django_convmemory.chat_models.base import ChatModel
from django_convmemory.exceptions import UnknownAlias
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.operations.folding import asynchronous
from django_convmemory.operations.handles import ConversationMemory, SessionHandle
from django_convmemory.rules import strategies
from django_convmemory.rules.values import Receipt
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore

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
    """Shows every message, always."""

    strategy_class = strategies.Buffer

    def __init__(self, store: Store, **options: Any) -> None:
        super().__init__(store, strategies.Buffer(), **options)


class ConversationWindowMemory(ConversationMemory):
    """Shows the last ``window_size`` messages.

    With ``evict_to`` it leaves out many at once, and then none for a while.
    """

    strategy_class = strategies.Window

    def __init__(self, store: Store, window_size: int, evict_to: float = 1.0, **options: Any) -> None:
        super().__init__(store, strategies.Window(window_size, evict_to), **options)


class ConversationTokenBufferMemory(ConversationMemory):
    """Shows the newest messages that have at most ``max_tokens`` tokens together.

    With ``evict_to`` it leaves out many at once, and then none for a while.
    """

    strategy_class = strategies.TokenBuffer

    def __init__(self, store: Store, max_tokens: int, evict_to: float = 1.0, **options: Any) -> None:
        options.setdefault("counter", tokens.TokenBufferEstimate())
        super().__init__(store, strategies.TokenBuffer(max_tokens, evict_to), **options)


class ConversationSummaryMemory(ConversationMemory):
    """Shows a summary and the last messages.

    Folds all messages but the last ``buffer_size`` when more than twice as many are unfolded.
    """

    strategy_class = strategies.SummaryWindow
    summarizes = True

    def __init__(self, store: Store, model: ChatModel, buffer_size: int, **options: Any) -> None:
        options.setdefault("counter", tokens.SummaryBufferEstimate())
        super().__init__(store, strategies.SummaryWindow(buffer_size), model=model, **options)


class ConversationSummaryBufferMemory(ConversationMemory):
    """Shows a summary and the newest messages.

    Folds down to half of ``max_token_limit`` tokens when the unfolded messages have more than ``max_token_limit``.
    """

    strategy_class = strategies.SummaryBuffer
    summarizes = True

    def __init__(self, store: Store, model: ChatModel, max_token_limit: int, **options: Any) -> None:
        options.setdefault("counter", tokens.SummaryBufferEstimate())
        super().__init__(store, strategies.SummaryBuffer(max_token_limit), model=model, **options)


_SPEAKERS = {"plan": "AI Plan", "reasoning": "AI Reasoning", "summary": "AI Summary"}
_MEMORY_KEY = "summarized_chat"


class BufferSummaryChatMemory:
    """One conversation, with the interface of tinygent's memory of the same name.

    When its messages have more than ``max_token_limit`` tokens, the oldest ones are folded into a summary until the
    rest fits. The newest exchange is never folded. Folded messages stay in the store, so nothing is lost.
    """

    memory_keys = [_MEMORY_KEY]

    def __init__(
        self,
        llm: ChatModel,
        max_token_limit: int = 2000,
        return_messages: bool = False,
        *,
        store: Store | None = None,
        session: str = "default",
        **options: Any,
    ) -> None:
        options.setdefault("counter", _LineCounter())
        options.setdefault("scheduler", NullScheduler())
        options.setdefault("summary_prefix", "")
        self.memory = ConversationMemory(
            store if store is not None else InMemoryStore(), strategies.Pruning(max_token_limit), model=llm, **options
        )
        self.return_messages = return_messages
        self.session = session

    def save_context(self, message: Any) -> None:
        """Store a message. Prune if that is due."""
        if self.memory.append(self.session, message).due:
            self.prune()

    def save_multiple_context(self, messages: list[Any]) -> None:
        """Store messages, one after the other."""
        for message in messages:
            self.save_context(message)

    def load_variables(self) -> dict[str, str | list[ChatMessage]]:
        """Return ``{"summarized_chat": …}``: the summary and the messages, as one text or as a list of messages."""
        messages = list(self.memory.load(self.session))
        if self.return_messages:
            return {_MEMORY_KEY: messages}
        return {_MEMORY_KEY: "\n".join(map(line, messages))}

    def prune(self) -> None:
        """Fold the oldest messages if the limit is exceeded. If the model fails, nothing changes."""
        self.memory.compact(self.session)

    def clear(self) -> None:
        """Delete the messages and the summary."""
        self.memory.clear(self.session)


def line(message: ChatMessage) -> str:
    """Return a message as tinygent writes it: the speaker, a colon and the text."""
    text = spoken(message)
    if message.kind in _SPEAKERS:
        return f"{_SPEAKERS[message.kind]}: {text}"
    if message.role == "tool":
        return f"Tool Result - {message.tool_call_id}: {text}"
    speaker = {"assistant": "AI", "user": "USER (instruction)"}.get(message.role, "SYSTEM (instruction)")
    return f"{speaker}: {text}"


class _LineCounter(tokens.TiktokenCounter):
    """Counts the line of a message, as tinygent does, with OpenAI's vocabulary if it is on disk."""

    name = "line"

    def count(self, message: ChatMessage) -> int:
        return self.count_text(line(message))


class Memories:
    """The memories of ``settings.CONVMEMORY`` by alias. Each is made at its first use.

    Raises :class:`~django_convmemory.exceptions.UnknownAlias`. Raises ``ImproperlyConfigured`` if the system checks
    report an error for the alias.
    """

    def __init__(self) -> None:
        self._made: dict[str, ConversationMemory] = {}
        self._lock = threading.RLock()

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
        """Delete every session of a user or of a visitor, in all memories. Return how many were deleted.

        ``manage.py convmemory_erase`` also deletes the sessions of aliases that are no longer in the settings.
        """
        return sum(memory.erase(owner=owner, visitor=visitor) for memory in self.all())

    aerase = asynchronous(erase)

    def adopt(self, visitor: str, user: Any) -> list[SessionHandle]:
        """Let a user adopt the sessions of a visitor, as at login, in all memories. Return the sessions."""
        return [session for memory in self.all() for session in memory.adopt(visitor, user)]

    aadopt = asynchronous(adopt)

    def forget(self) -> None:
        """Read the settings again at the next use."""
        with self._lock:
            self._made.clear()

    def _sharing(self, memory: ConversationMemory) -> tuple[str, ...]:
        """Return the aliases whose tasks go where those of ``memory`` go."""
        shared = [memory.alias]
        for alias in self:
            with contextlib.suppress(ImproperlyConfigured):  # The checks report it.
                other = self[alias]
                if other is not memory and other.needs_worker and _queue(other) == _queue(memory):
                    shared.append(alias)
        return tuple(shared)

    def _make(self, alias: str) -> ConversationMemory:
        if alias not in conf.aliases():
            known = ", ".join(map(repr, conf.aliases()))
            raise UnknownAlias(f"CONVMEMORY has no alias {alias!r}. Use one of these: {known}.")
        memory: ConversationMemory = conf.build(alias)
        memory.sharing = functools.cache(functools.partial(self._sharing, memory))
        return memory


def _queue(memory: ConversationMemory) -> tuple[Any, ...]:
    scheduler = memory.scheduler
    return (
        type(scheduler),
        getattr(scheduler, "backend", None),
        getattr(scheduler, "queue", None),
        getattr(memory.store, "using", None),
    )


memories = Memories()
