"""Hypothesis strategies for conversations: lists of messages that a session accepts, with realistic tool calls.

Calls are made in parallel. They stay unanswered, or are answered in another order, later, or twice. Their ids repeat
across exchanges. Users speak while an exchange is open. System messages come anywhere.

:func:`conversations` makes whole conversations. For a test that goes step by step, :func:`batches` makes messages that
can be appended next. It needs the :class:`Calls` of the messages so far, which :meth:`Calls.after` returns::

    batch = data.draw(conversations.batches(calls))
    memory.append("user-1", *batch)
    calls = calls.after(*batch)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from hypothesis import strategies as st

from django_convmemory.messages import ChatMessage
from django_convmemory.rules.counters import MAX_PINNED, Counters, Entry
from django_convmemory.rules.exchanges import MessageRef

# Few ids, so that they repeat.
IDS = ("call_1", "call_2", "call_3", "call_%_4")

# Providers refuse some of them. As they are sent, some are equal if nobody sees to it.
NAMES = (None, "anna", "Anna B.", "Anna/B.", "Anna_B.", "安 娜", "long " * 20, "long " * 21)

TEXTS = st.one_of(
    st.sampled_from(["What is Rust?", "一种系统编程语言。", '{"flights": []}', "I'm fine 🙂", "a\nb", ""]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
)


@dataclasses.dataclass(frozen=True)
class Calls:
    """The calls of the newest exchange, and which of them are unanswered."""

    exchange: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()
    pinned: int = 0

    @property
    def open(self) -> bool:
        return bool(self.unanswered)

    def after(self, *messages: ChatMessage) -> Calls:
        """Return the calls after ``messages`` are appended."""
        calls = self
        for message in messages:
            if message.pinned:
                calls = dataclasses.replace(calls, pinned=calls.pinned + 1)
            elif message.role == "assistant":
                calls = Calls(message.call_ids, message.call_ids, calls.pinned)
            elif message.tool_call_id in calls.unanswered:
                at = calls.unanswered.index(message.tool_call_id)
                calls = dataclasses.replace(calls, unanswered=calls.unanswered[:at] + calls.unanswered[at + 1 :])
        return calls


def call(call_id: str, arguments: str = "{}") -> dict[str, object]:
    """A tool call in chat-completions form."""
    return {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


@st.composite
def messages(draw: st.DrawFn, calls: Calls) -> ChatMessage:
    """A message that can come next."""
    kinds = ["user", "user", "assistant", "calls", "calls"]
    if calls.open:
        kinds += ["result"] * 6
    if calls.pinned < MAX_PINNED:
        kinds.append("pinned")
    kind = draw(st.sampled_from(kinds))
    text = draw(TEXTS)
    if kind == "user":
        return ChatMessage.human(text, name=draw(st.sampled_from(NAMES)))
    if kind == "assistant":
        return ChatMessage.ai(text)
    if kind == "pinned":
        return ChatMessage(draw(st.sampled_from(["system", "developer"])), text)
    if kind == "calls":
        ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=3))
        return ChatMessage.ai(text or None, tool_calls=[call(call_id, f'{{"text": "{len(text)}"}}') for call_id in ids])
    return ChatMessage.tool(text, draw(st.sampled_from(calls.exchange)))


@st.composite
def batches(draw: st.DrawFn, calls: Calls | None = None, *, min_size: int = 1, max_size: int = 6) -> list[ChatMessage]:
    """Messages that can be appended together, in order, after ``calls``."""
    calls = calls or Calls()
    batch: list[ChatMessage] = []
    for _ in range(draw(st.integers(min_size, max_size))):
        batch.append(draw(messages(calls)))
        calls = calls.after(batch[-1])
    return batch


def conversations(*, min_size: int = 0, max_size: int = 20) -> st.SearchStrategy[list[ChatMessage]]:
    """A conversation from its first message."""
    return batches(min_size=min_size, max_size=max_size)


def entries(conversation: list[ChatMessage]) -> list[Entry]:
    """The messages as entries of a batch. Each counts 1 to 20 tokens, depending on its length."""
    return [Entry(message, len(message.text) % 20 + 1) for message in conversation]


def placed(conversation: list[ChatMessage]) -> tuple[Counters, list[MessageRef]]:
    """The counters of a session with these messages, and the messages as it holds them, pinned ones included."""
    batch = entries(conversation)
    counters, rows = Counters().append(batch)
    return counters, [
        MessageRef(row.position, entry.message, entry.tokens, row.answers)
        for entry, row in zip(batch, rows, strict=True)
    ]


def is_well_formed(messages: Iterable[ChatMessage]) -> bool:
    """Whether each message that makes calls is followed by their results, in order, and no result stands elsewhere."""
    expected: list[str] = []
    for message in messages:
        if expected:
            if message.tool_call_id != expected.pop(0):
                return False
        elif message.role == "tool":
            return False
        expected = expected or list(message.call_ids)
    return not expected
