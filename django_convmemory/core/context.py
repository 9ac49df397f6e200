"""The context: what a model is sent, put together from what a store holds."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, overload

from django_convmemory import messages
from django_convmemory.core import exchanges
from django_convmemory.core.exchanges import Placed
from django_convmemory.core.options import SYSTEM_MESSAGES, Options, SystemMessages
from django_convmemory.core.strategies import Strategy
from django_convmemory.core.values import Snapshot
from django_convmemory.exceptions import InvalidArgument, InvalidMessage
from django_convmemory.messages import ChatMessage
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
        leading: Sequence[Part] = (),
        tail: Sequence[Placed] = (),
        *,
        summary: str | None = None,
        covered: int = 0,
        omitted: int = 0,
        over_budget: bool = False,
        pending: bool = False,
        revision: int = 0,
        system_messages: str = "separate",
    ) -> None:
        self._leading = leading
        self._tail = tail
        self._messages = [part.message for part in leading] + [row.message for row in tail]
        self.summary = summary
        self.covered = covered
        self.tokens = sum([part.tokens for part in leading]) + sum([row.tokens for row in tail])
        self.omitted = omitted
        self.over_budget = over_budget
        self.pending = pending
        self.revision = revision
        self._system_messages = system_messages

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The messages with what each is there for, what it counts, and where it stands."""
        tail = (Part("tail", row.message, row.tokens, row.position or None) for row in self._tail)
        return (*self._leading, *tail)

    @overload
    def __getitem__(self, index: int) -> ChatMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[ChatMessage]: ...
    def __getitem__(self, index: int | slice) -> ChatMessage | list[ChatMessage]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[ChatMessage]:
        return iter(self._messages)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Context):
            return self.parts == other.parts
        return self._messages == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Context: {len(self)} messages, {self.tokens} tokens, {self.omitted} omitted>"

    def to_openai(self, system: SystemMessages | None = None) -> list[dict[str, Any]]:
        """Return the messages in chat-completions form.

        With ``system="merged"`` all system messages are one, the first, which some servers insist on; with
        ``"separate"`` each stands for itself. Without it the memory's option ``system_messages`` decides.
        """
        wire = [message.to_openai() for message in self._messages]
        form = system or self._system_messages
        if form not in SYSTEM_MESSAGES:
            raise InvalidArgument(f"system must be one of {', '.join(SYSTEM_MESSAGES)}, not {form!r}.")
        if form == "separate":
            return wire
        leading = self._messages[: len(self._leading)]
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
    leading: list[Part] = []
    if system is not None and system != "":
        message = ChatMessage.system(system) if isinstance(system, str) else messages.coerce(system)
        if not message.pinned:
            raise InvalidMessage(f"system must be a text, or a system or developer message, not from {message.role!r}.")
        leading.append(Part("system", message, counter.count(message)))
    if snapshot is None:
        over = max_tokens is not None and sum(part.tokens for part in leading) > max_tokens
        return Context(leading, over_budget=over, system_messages=options.system_messages)
    leading += [Part("pinned", row.message, row.tokens, row.position) for row in snapshot.pinned]

    left = math.inf
    if max_tokens is not None:
        left = max_tokens - sum(part.tokens for part in leading)
    elif max_context_tokens is not None:
        left = max_context_tokens

    shown, begins = _shown(snapshot, strategy, counter)
    summary = snapshot.summary
    total = sum([row.tokens for row in shown]) + (summary.tokens if summary else 0)
    first = 0
    for begin in begins[1:]:
        if total <= left:
            break
        total -= sum(row.tokens for row in shown[first:begin])
        first = begin
    if summary is not None and total > left:
        total -= summary.tokens
        summary = None
    if summary is not None:
        said = summary_message(options.summary_prefix, summary.text)
        leading.append(Part("summary", said, summary.tokens))
    tail = shown[first:]

    counters = snapshot.counters
    stored = len(snapshot.pinned) + len(tail) - [row.position for row in tail].count(0)
    covered = counters.covered_count if summary is not None else 0
    return Context(
        leading,
        tail,
        summary=summary.text if summary else None,
        covered=counters.covered_position if summary else 0,
        omitted=counters.unpinned_count + len(counters.pinned) - covered - stored,
        over_budget=total > left,
        pending=snapshot.due,
        revision=snapshot.revision,
        system_messages=options.system_messages,
    )


def summary_message(prefix: str, text: str) -> ChatMessage:
    """Return a summary as it is shown: a system message."""
    return ChatMessage.system(prefix + text, kind="summary")


def _shown(snapshot: Snapshot, strategy: Strategy, counter: TokenCounter) -> tuple[Sequence[Placed], Sequence[int]]:
    """Return what the strategy shows of the tail, as a provider accepts it, and where in that each exchange begins."""
    tail = snapshot.tail
    starts = exchanges.starts(tail, snapshot.counters.open_position)
    first = strategy.shown_from([row.tokens for row in tail], starts)
    if len(starts) == len(tail) and not any(row.message.tool_calls for row in tail):
        # As most are: each message is an exchange.
        shown = tail[first:]
        return shown, range(len(shown))
    arranged: list[Placed] = []
    begins = []
    for begin, end in itertools.pairwise([*starts, len(tail)]):
        if begin >= first:
            begins.append(len(arranged))
            arranged += [
                row if row.position else row._replace(tokens=counter.count(row.message))
                for row in exchanges.well_formed(tail[begin:end])
            ]
    return arranged, begins
