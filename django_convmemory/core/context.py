"""The context: the messages to send to a model, put together from what a store holds."""

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
    """A message of a context, with its purpose, its tokens, and its position. None: the message is not stored."""

    name: PartName
    message: ChatMessage
    tokens: int
    position: int | None = None


class Context(Sequence[ChatMessage]):
    """The messages to send, in order: the system prompt, pinned messages, the summary, and the tail as far as it fits.

    - ``summary``: the text that stands for the messages through the position ``covered``, or None.
    - ``tokens``: the tokens of all messages of the context.
    - ``omitted``: how many stored messages are neither shown nor covered by the summary.
    - ``over_budget``: the messages that may never be left out exceed the budget.
    - ``pending``: a compaction is due.
    - ``revision``: the session's revision. Every change raises it, so an edit can be made conditional on it.
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
        """The messages, each with its purpose, tokens and position."""
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

        With ``system="merged"`` all system messages are merged into one, which comes first. Some servers need that.
        With ``"separate"`` each stays a message. Without ``system`` the memory's option ``system_messages`` decides.
        Raises :class:`~django_convmemory.exceptions.InvalidArgument` for another value.
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
        """Return the messages as lines of ``role: text``, for people and for models that take one text.

        The second and later lines of a message are indented, so that no line can pass for another message.
        """
        return "\n".join("\n  ".join(f"{message.role}: {spoken(message)}".splitlines()) for message in self)


def spoken(message: ChatMessage) -> str:
    """Return ``message`` as one text: content, tool calls, and a word in brackets for each part that is not text."""
    texts = []
    if isinstance(message.content, str):
        texts.append(message.content)
    else:
        parts = message.content or ()
        texts += [part["text"] if isinstance(part.get("text"), str) else f"[{part['type']}]" for part in parts]
    for call in message.tool_calls:
        function = call.get("function") or call.get("custom")
        if not isinstance(function, Mapping):
            function = {}
        arguments = function.get("arguments", function.get("input", ""))
        texts.append(f"[calls {function.get('name', 'a tool')}({arguments})]")
    return "\n".join(text for text in texts if text)


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
    """Return the context of a session.

    ``max_tokens`` bounds the whole context. Without it, ``max_context_tokens`` bounds the summary and the tail. The
    oldest exchanges of the tail are left out first, then the summary. The system prompt, pinned messages and the newest
    exchange are never left out.
    """
    leading = _system_part(system, counter)
    if snapshot is None:
        over_budget = max_tokens is not None and _total(leading) > max_tokens
        return Context(leading, over_budget=over_budget, system_messages=options.system_messages)
    leading += [Part("pinned", row.message, row.tokens, row.position) for row in snapshot.pinned]
    if max_tokens is not None:
        budget: float = max_tokens - _total(leading)
    else:
        budget = math.inf if max_context_tokens is None else max_context_tokens

    tail, starts = _shown(snapshot, strategy, counter)
    summary = snapshot.summary
    summary_tokens = summary.tokens if summary else 0
    first = _first_that_fits(tail, starts, budget - summary_tokens)
    tail = tail[first:]
    tail_tokens = _total(tail)
    if summary is not None and summary_tokens + tail_tokens > budget:
        summary, summary_tokens = None, 0
    if summary is not None:
        leading.append(Part("summary", summary_message(options.summary_prefix, summary.text), summary.tokens))

    counters = snapshot.counters
    # A row at position 0 is the placeholder of a missing result: it is not stored.
    stored = len(snapshot.pinned) + len(tail) - [row.position for row in tail].count(0)
    covered = counters.covered_count if summary else 0
    return Context(
        leading,
        tail,
        summary=summary.text if summary else None,
        covered=counters.covered_position if summary else 0,
        omitted=counters.unpinned_count + len(counters.pinned) - covered - stored,
        over_budget=summary_tokens + tail_tokens > budget,
        pending=snapshot.due,
        revision=snapshot.revision,
        system_messages=options.system_messages,
    )


def _system_part(system: Any, counter: TokenCounter) -> list[Part]:
    if system is None or system == "":
        return []
    message = ChatMessage.system(system) if isinstance(system, str) else messages.coerce(system)
    if not message.pinned:
        raise InvalidMessage(
            f"system must be a text, or a message with the role system or developer. Its role is {message.role!r}."
        )
    return [Part("system", message, counter.count(message))]


def _total(rows: Sequence[Part] | Sequence[Placed]) -> int:
    return sum([row.tokens for row in rows])


def _first_that_fits(tail: Sequence[Placed], starts: Sequence[int], budget: float) -> int:
    """Return the index of the first exchange from which on ``tail`` fits. The newest exchange always fits."""
    total = _total(tail)
    first = 0
    for start in starts[1:]:
        if total <= budget:
            break
        total -= _total(tail[first:start])
        first = start
    return first


def summary_message(prefix: str, text: str) -> ChatMessage:
    """Return the system message that shows a summary."""
    return ChatMessage.system(prefix + text, kind="summary")


def _shown(snapshot: Snapshot, strategy: Strategy, counter: TokenCounter) -> tuple[Sequence[Placed], Sequence[int]]:
    """Return the messages of the tail that the strategy shows, well-formed, and where exchanges begin in them."""
    tail = snapshot.tail
    starts = exchanges.starts(tail, snapshot.counters.open_position)
    first = strategy.shown_from([row.tokens for row in tail], starts)
    if len(starts) == len(tail) and not any(row.message.tool_calls for row in tail):
        # The usual case: each message is an exchange.
        rows = tail[first:]
        return rows, range(len(rows))
    arranged: list[Placed] = []
    new_starts = []
    for start, end in itertools.pairwise([*starts, len(tail)]):
        if start >= first:
            new_starts.append(len(arranged))
            arranged += [
                row if row.position else row._replace(tokens=counter.count(row.message))
                for row in exchanges.well_formed(tail[start:end])
            ]
    return arranged, new_starts
