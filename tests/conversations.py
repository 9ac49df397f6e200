"""Conversations for hypothesis: lists of messages that a session takes, with tool calls as real ones have them.

Calls are made in parallel, stay unanswered, are answered in another order, later, or twice; their ids repeat across
exchanges; users speak while an exchange is open, and system messages come anywhere.

:func:`conversations` makes whole ones. For a test that goes step by step, :func:`batches` makes what can be appended
now, given the :class:`Calls` that the messages so far have left, which :meth:`Calls.after` tells::

    batch = data.draw(conversations.batches(calls))
    memory.append("user-1", *batch)
    calls = calls.after(*batch)
"""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from django_convmemory.core.counters import MAX_PINNED, Counters, Entry
from django_convmemory.core.exchanges import Placed
from django_convmemory.messages import ChatMessage

# Few, so that they repeat.
IDS = ("call_1", "call_2", "call_3", "call_%_4")

TEXTS = st.one_of(
    st.sampled_from(["What is Rust?", "一种系统编程语言。", '{"flights": []}', "I'm fine 🙂", "a\nb", ""]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
)


@dataclasses.dataclass(frozen=True)
class Calls:
    """The calls that may be answered: those of the open exchange, and which of them are not answered yet."""

    exchange: tuple[str, ...] = ()
    unanswered: frozenset[str] = frozenset()
    pinned: int = 0

    @property
    def open(self) -> bool:
        return bool(self.unanswered)

    def after(self, *messages: ChatMessage) -> Calls:
        """Return the calls as they are once ``messages`` were appended."""
        calls = self
        for message in messages:
            if message.pinned:
                calls = dataclasses.replace(calls, pinned=calls.pinned + 1)
            elif message.role == "assistant":
                calls = Calls(message.call_ids, frozenset(message.call_ids), calls.pinned)
            elif message.tool_call_id is not None:
                calls = dataclasses.replace(calls, unanswered=calls.unanswered - {message.tool_call_id})
        return calls


def call(call_id: str, arguments: str = "{}") -> dict[str, object]:
    """A tool call in chat-completions form."""
    return {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


@st.composite
def messages(draw: st.DrawFn, calls: Calls) -> ChatMessage:
    """A message that may come next."""
    kinds = ["user", "user", "assistant", "calls", "calls"]
    if calls.open:
        kinds += ["result"] * 6
    if calls.pinned < MAX_PINNED:
        kinds.append("pinned")
    kind = draw(st.sampled_from(kinds))
    text = draw(TEXTS)
    if kind == "user":
        return ChatMessage.human(text, name=draw(st.sampled_from([None, "anna"])))
    if kind == "assistant":
        return ChatMessage.ai(text)
    if kind == "pinned":
        return ChatMessage(draw(st.sampled_from(["system", "developer"])), text)
    if kind == "calls":
        ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=3))
        return ChatMessage.ai(text or None, tool_calls=[call(one, f'{{"text": "{len(text)}"}}') for one in ids])
    return ChatMessage.tool(text, draw(st.sampled_from(calls.exchange)))


@st.composite
def batches(draw: st.DrawFn, calls: Calls | None = None, *, min_size: int = 1, max_size: int = 6) -> list[ChatMessage]:
    """Messages that may be appended together, in order, where ``calls`` stand."""
    calls = calls or Calls()
    batch: list[ChatMessage] = []
    for _ in range(draw(st.integers(min_size, max_size))):
        batch.append(draw(messages(calls)))
        calls = calls.after(batch[-1])
    return batch


def conversations(*, min_size: int = 0, max_size: int = 20) -> st.SearchStrategy[list[ChatMessage]]:
    """A conversation from its first message on."""
    return batches(min_size=min_size, max_size=max_size)


def entries(conversation: list[ChatMessage]) -> list[Entry]:
    """The messages as an append takes them, each counting 1 to 20 tokens by its length."""
    return [Entry(message, len(message.text) % 20 + 1) for message in conversation]


def placed(conversation: list[ChatMessage]) -> tuple[Counters, list[Placed]]:
    """The messages as a session holds them, pinned ones too, and its counters."""
    given = entries(conversation)
    counters, rows = Counters().append(given)
    return counters, [
        Placed(row.position, entry.message, entry.tokens, row.answers) for entry, row in zip(given, rows, strict=True)
    ]
