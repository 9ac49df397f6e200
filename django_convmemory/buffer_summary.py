"""tinygent's ``BufferSummaryChatMemory``, over a store."""

from __future__ import annotations

from typing import Any

from django_convmemory import strategies, tokens
from django_convmemory.chat_models.base import ChatModel
from django_convmemory.context import spoken
from django_convmemory.conversation import ConversationMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.schedulers import NullScheduler
from django_convmemory.stores.base import Store
from django_convmemory.stores.in_memory import InMemoryStore

_SPEAKERS = {"plan": "AI Plan", "reasoning": "AI Reasoning", "summary": "AI Summary"}
_MEMORY_KEY = "summarized_chat"


class BufferSummaryChatMemory:
    """One conversation with the interface of tinygent's memory of that name.

    Once its messages count more than ``max_token_limit``, the oldest are folded into a summary until the rest does not.
    The newest exchange is kept whatever it counts, and nothing is lost: the messages stay in the store.
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
        """Store a message, and prune where that is due."""
        if self.memory.append(self.session, message).due:
            self.prune()

    def save_multiple_context(self, messages: list[Any]) -> None:
        """Store messages, one after the other."""
        for message in messages:
            self.save_context(message)

    def load_variables(self) -> dict[str, str | list[ChatMessage]]:
        """Return ``{"summarized_chat": …}``: the summary and the messages, as one text or as a list."""
        shown = list(self.memory.load(self.session))
        if self.return_messages:
            return {_MEMORY_KEY: shown}
        return {_MEMORY_KEY: "\n".join(map(line, shown))}

    def prune(self) -> None:
        """Fold the oldest messages where the limit is exceeded; a failure of the model leaves everything as it is."""
        self.memory.compact(self.session)

    def clear(self) -> None:
        """Delete the messages and the summary."""
        self.memory.clear(self.session)


def line(message: ChatMessage) -> str:
    """Return a message as tinygent writes it: who speaks, and what."""
    text = spoken(message)
    if message.kind in _SPEAKERS:
        return f"{_SPEAKERS[message.kind]}: {text}"
    if message.role == "tool":
        return f"Tool Result - {message.tool_call_id}: {text}"
    speaker = {"assistant": "AI", "user": "USER (instruction)"}.get(message.role, "SYSTEM (instruction)")
    return f"{speaker}: {text}"


class _LineCounter:
    """Counts a message by its line, as tinygent does, with the vocabulary of OpenAI's models where it is on disk."""

    name = "line"

    def __init__(self) -> None:
        self._texts = tokens.TiktokenCounter()

    def count_text(self, text: str) -> int:
        return self._texts.count_text(text)

    def count(self, message: ChatMessage) -> int:
        return self.count_text(line(message))
