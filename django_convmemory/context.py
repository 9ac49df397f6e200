"""The context: what a model is sent, put together from what a store holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

from django_convmemory import exchanges, messages
from django_convmemory.exceptions import InvalidArgument, InvalidMessage
from django_convmemory.exchanges import Placed
from django_convmemory.messages import ChatMessage
from django_convmemory.options import SYSTEM_MESSAGES, Options, SystemMessages
from django_convmemory.stores.values import Snapshot
from django_convmemory.strategies import Strategy
from django_convmemory.tokens import TokenCounter

PartName = Literal["system", "pinned", "summary", "tail"]


class Part(NamedTuple):
    """A message of a context: what it is there for, what it counts, and its position; None where none is stored."""

    name: PartName
    message: ChatMessage
    tokens: int
    position: int | None = None


class Context(Sequence[ChatMessage]):
    """The messages to send, in order: system, pinned, the summary, then the tail or what of it fits.

    ``summary`` is the text that stands for the messages through the position ``covered``, or None. ``tokens`` is what
    all of it counts. ``omitted`` are the stored messages that are shown neither themselves nor through the summary.
    ``over_budget``: what may never be left out is already more than the budget. ``pending``: a compaction is due.
    ``revision`` is the session's, which every change raises: what an edit can be made conditional on.
    """

    def __init__(
        self,
        parts: Sequence[Part] = (),
        *,
        summary: str | None = None,
        covered: int = 0,
        omitted: int = 0,
        over_budget: bool = False,
        pending: bool = False,
        revision: int = 0,
        system_messages: str = "separate",
    ) -> None:
        self.parts = tuple(parts)
        self.summary = summary
        self.covered = covered
        self.tokens = sum(part.tokens for part in self.parts)
        self.omitted = omitted
        self.over_budget = over_budget
        self.pending = pending
        self.revision = revision
        self._system_messages = system_messages

    @overload
    def __getitem__(self, index: int) -> ChatMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[ChatMessage]: ...
    def __getitem__(self, index: int | slice) -> ChatMessage | list[ChatMessage]:
        if isinstance(index, slice):
            return [part.message for part in self.parts[index]]
        return self.parts[index].message

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[ChatMessage]:
        return (part.message for part in self.parts)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Context):
            return self.parts == other.parts
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Context: {len(self)} messages, {self.tokens} tokens, {self.omitted} omitted>"

    def to_openai(self, system: SystemMessages | None = None) -> list[dict[str, Any]]:
        """Return the messages in chat-completions form.

        With ``system="merged"`` all system messages are one, the first, which some servers insist on; with
        ``"separate"`` each stands for itself. Without it the memory's option ``system_messages`` decides.
        """
        wire = [message.to_openai() for message in self]
        form = system or self._system_messages
        if form not in SYSTEM_MESSAGES:
            raise InvalidArgument(f"system must be one of {', '.join(SYSTEM_MESSAGES)}, not {form!r}.")
        if form == "separate":
            return wire
        leading = [part.message for part in self.parts if part.name != "tail"]
        if not leading or [message.role for message in leading] == ["system"]:
            return wire
        merged = ChatMessage.system(_joined(leading))
        return [merged.to_openai(), *wire[len(leading) :]]

    def to_text(self) -> str:
        """Return the messages as lines of ``role: text``, for people and for models that take a single text.

        Further lines of a message are indented, so that none can pass for another message.
        """
        return "\n".join("\n  ".join(f"{message.role}: {spoken(message)}".splitlines()) for message in self)


def spoken(message: ChatMessage) -> str:
    """Return what ``message`` says in one text: its content, its tool calls, and a word for what is not text."""
    said = []
    if isinstance(message.content, str):
        said.append(message.content)
    else:
        parts = message.content or ()
        said += [part["text"] if isinstance(part.get("text"), str) else f"[{part['type']}]" for part in parts]
    for call in message.tool_calls:
        function = call.get("function") or call.get("custom")
        if not isinstance(function, Mapping):
            function = {}
        arguments = function.get("arguments", function.get("input", ""))
        said.append(f"[calls {function.get('name', 'a tool')}({arguments})]")
    return "\n".join(text for text in said if text)


def _joined(leading: Sequence[ChatMessage]) -> str | list[dict[str, Any]]:
    if all(isinstance(message.content, str) for message in leading):
        return "\n\n".join(message.text for message in leading)
    parts: list[dict[str, Any]] = []
    for message in leading:
        content = messages.thaw(message.content)
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def assemble(
    snapshot: Snapshot | None,
    strategy: Strategy,
    options: Options,
    counter: TokenCounter,
    *,
    system: Any = None,
    max_tokens: int | None = None,
    max_context_tokens: int | None = None,
) -> Context:
    """Put a context together.

    ``max_tokens`` bounds all of it; without it ``max_context_tokens`` bounds the summary and the tail. Left out first
    are the oldest exchanges of the tail, then the summary; never system, pinned messages or the newest exchange.
    """
    parts: list[Part] = []
    if system is not None and system != "":
        message = ChatMessage.system(system) if isinstance(system, str) else messages.coerce(system)
        if not message.pinned:
            raise InvalidMessage(f"system must be a text, or a system or developer message, not from {message.role!r}.")
        parts.append(Part("system", message, counter.count(message)))
    if snapshot is None:
        over = max_tokens is not None and sum(part.tokens for part in parts) > max_tokens
        return Context(parts, over_budget=over, system_messages=options.system_messages)
    parts += [Part("pinned", row.message, row.tokens, row.position) for row in snapshot.pinned]

    left = math.inf
    if max_tokens is not None:
        left = max_tokens - sum(part.tokens for part in parts)
    elif max_context_tokens is not None:
        left = max_context_tokens

    shown = _exchanges(snapshot, strategy, counter)
    summary = snapshot.summary
    total = sum(part.tokens for one in shown for part in one) + (summary.tokens if summary else 0)
    first = 0
    while total > left and first < len(shown) - 1:
        total -= sum(part.tokens for part in shown[first])
        first += 1
    if summary is not None and total > left:
        total -= summary.tokens
        summary = None
    if summary is not None:
        said = summary_message(options.summary_prefix, summary.text)
        parts.append(Part("summary", said, summary.tokens))
    parts += [part for one in shown[first:] for part in one]

    ledger = snapshot.ledger
    stored = sum(part.position is not None for part in parts)
    covered = ledger.covered_count if summary is not None else 0
    return Context(
        parts,
        summary=summary.text if summary else None,
        covered=ledger.covered_position if summary else 0,
        omitted=ledger.unpinned_count + len(ledger.pinned) - covered - stored,
        over_budget=total > left,
        pending=snapshot.due,
        revision=snapshot.revision,
        system_messages=options.system_messages,
    )


def summary_message(prefix: str, text: str) -> ChatMessage:
    """Return a summary as it is shown: a system message."""
    return ChatMessage.system(prefix + text, kind="summary")


def _exchanges(snapshot: Snapshot, strategy: Strategy, counter: TokenCounter) -> list[list[Part]]:
    """Return what the strategy shows of the tail, exchange by exchange, each as a provider accepts it."""
    tail = snapshot.tail
    starts = exchanges.starts(tail, snapshot.ledger.open_position)
    first = strategy.shown_from([row.tokens for row in tail], starts)
    if len(starts) == len(tail) and not any(row.message.tool_calls for row in tail):
        # As most are: each message is an exchange.
        return [[Part("tail", row.message, row.tokens, row.position)] for row in tail[first:]]
    found = []
    for at, begin in enumerate(starts):
        if begin >= first:
            end = starts[at + 1] if at + 1 < len(starts) else len(tail)
            found.append(_parts(tail[begin:end], counter))
    return found


def _parts(rows: Sequence[Placed], counter: TokenCounter) -> list[Part]:
    if len(rows) == 1 and not rows[0].message.tool_calls:
        row = rows[0]
        return [Part("tail", row.message, row.tokens, row.position)]
    return [
        Part("tail", row.message, row.tokens, row.position)
        if row.position
        else Part("tail", row.message, counter.count(row.message))
        for row in exchanges.well_formed(rows)
    ]
