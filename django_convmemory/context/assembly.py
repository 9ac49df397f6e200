"""The context: the messages to send to a model, put together from what a store holds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

from django_convmemory import messages
from django_convmemory.context.wire import anthropic, calls, chat, responses
from django_convmemory.exceptions import InvalidArgument, InvalidMessage
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.rules import exchanges
from django_convmemory.rules.exchanges import MessageRef
from django_convmemory.rules.options import ROLES, Options, Roles
from django_convmemory.rules.strategies import Amount, Strategy, stepped
from django_convmemory.rules.values import Snapshot, StoredMessage
from django_convmemory.search.hits import Hit
from django_convmemory.tokens import TokenCounter

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam
    from openai.types.responses import ResponseInputItemParam

CLEARED = "[This old result is not shown any more.]"
PartName = Literal["system", "pinned", "summary", "tail", "recalled"]


class Part(NamedTuple):
    """A message of a context, with its purpose, its tokens, and its position. None: the message is not stored."""

    name: PartName
    message: ChatMessage
    tokens: int
    position: int | None = None


class QuotesPlace(NamedTuple):
    """Where quotes go in a context.

    - ``question``: the newest user message, or None. The quotes go before the index ``at`` of the tail.
    - ``first_position``: the position of the first message of the tail, or None if there is no message.
    - ``room``: how many more tokens fit into the budget. Infinity: there is no budget.
    """

    question: MessageRef | None
    at: int
    first_position: int | None
    room: float


@dataclasses.dataclass(eq=False, repr=False)
class Context(Sequence[ChatMessage]):
    """The messages to send, in order: the system prompt, pinned messages, the summary, and the tail as far as it fits.

    With recall, one message before the newest user message quotes what else matches it.

    - ``summary``: the text that stands for the messages through the position ``covered``, or None.
    - ``tokens``: the tokens of all messages of the context, and of what ``roles="alternating"`` adds to them.
    - ``omitted``: how many stored messages are neither shown nor covered by the summary.
    - ``over_budget``: the context exceeds the budget, because some messages are never left out.
    - ``pending``: a compaction is due.
    - ``recalled``: the stored messages that are quoted because they match the query of ``load(recall=…)``.
    - ``revision``: the session's revision. A message that is added, removed or redacted raises it, so an edit can be
      made conditional on it.
    - ``stable_prefix``: with so many messages the next context will begin too, unless messages are folded, left out or
      changed in between, or more results of tools give way. So a provider's cache can serve them.
    """

    _leading: Sequence[Part] = ()
    _tail: Sequence[MessageRef] = ()
    _: dataclasses.KW_ONLY
    tokens: int = 0
    summary: str | None = None
    covered: int = 0
    omitted: int = 0
    over_budget: bool = False
    pending: bool = False
    revision: int = 0
    recalled: Sequence[Hit] = ()
    _recalled_at: int | None = None
    _changing_position: int = 0
    _filler_tokens: int = 0
    _room: float = math.inf
    _roles: str = "any"

    @functools.cached_property
    def _messages(self) -> list[ChatMessage]:
        return [part.message for part in self._leading] + [row.message for row in self._tail]

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The messages, each with its purpose, tokens and position."""
        tail = [Part("tail", row.message, row.tokens, row.position or None) for row in self._tail]
        if self._recalled_at is not None:
            tail[self._recalled_at] = tail[self._recalled_at]._replace(name="recalled")
        return (*self._leading, *tail)

    @property
    def stable_prefix(self) -> int:
        # A message without a word is not sent.
        messages = chat.sendable(self._with_ids[: self._unchanging])
        stable = min(self._unchanging, len(messages))
        if self._roles != "alternating":
            return stable
        before = [message for message in messages[:stable] if not message.pinned]
        is_quoted = self._recalled_at is not None and self._unchanging == len(self._leading) + self._recalled_at
        if self._unchanging == len(self) or (is_quoted and before and before[-1].role == "user"):
            # What follows may be merged with the last one. A summary with the role user may be the last one too.
            stable -= chat.last_run(before)
        return stable

    @property
    def _unchanging(self) -> int:
        """How many messages stay as they are.

        In the exchange at the changing position, a result may yet take its place, or give way. The next context quotes
        other messages, or none.
        """
        for index, row in enumerate(self._tail, 1):
            if index - 1 == self._recalled_at:
                return len(self._leading) + index - 1
            if row.position == self._changing_position:
                return len(self._leading) + index
        return len(self)

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

    def to_openai(self, roles: Roles | None = None) -> list[ChatCompletionMessageParam]:
        """Return the messages in chat-completions form.

        ``roles`` says which roles the server accepts, and in what order. With ``"any"`` the messages stay as they are.
        With ``"one_system"`` all system messages are merged into one, which comes first. With ``"alternating"`` they
        are merged too, the user begins, and then the assistant and the user alternate, except for tool calls. Without
        the argument the memory's option ``roles`` decides. Characters of a name that OpenAI refuses are replaced by
        underscores.
        Raises :class:`~django_convmemory.exceptions.InvalidArgument` for other values.
        """
        plain = chat.are_plain(self._messages)
        messages = self._arranged(self._messages if plain else chat.sendable(self._with_ids), roles)
        return cast("list[ChatCompletionMessageParam]", chat.accepted(messages, plain=plain))

    def to_anthropic(self, *, cache_control: bool = False, model: str | None = None) -> dict[str, Any]:
        """Return the arguments ``system`` and ``messages`` of ``client.messages.create`` of the ``anthropic`` package.

        System and developer messages are blocks of ``system``. If there are none, ``system`` is missing. With
        ``cache_control`` at most three blocks are marked for the provider's cache: the last one of the system prompt
        and the pinned messages, the summary, and the last one that the next context will have too. With ``model``, the
        thoughts of other models are left out.
        """
        marks = set()
        if cache_control:
            ends = [count for count, part in enumerate(self._leading, 1) if part.name != "summary"]
            marks = {*ends[-1:], len(self._leading), self._unchanging}
        return anthropic.to_anthropic(self._with_ids, marks, model)

    def to_responses(self, roles: Roles | None = None, *, model: str | None = None) -> list[ResponseInputItemParam]:
        """Return the messages as input items of OpenAI's Responses API. See :meth:`to_openai` for ``roles``.

        With ``model``, the thoughts of other models are left out.
        """
        messages = self._arranged(self._with_ids, roles)
        return cast("list[ResponseInputItemParam]", responses.to_responses(messages, model))

    @functools.cached_property
    def _with_ids(self) -> Sequence[ChatMessage]:
        """The messages, with ids of calls that every provider accepts."""
        if not [message for message in self._messages if message.tool_calls]:
            return self._messages
        positions = [part.position for part in self._leading] + [row.position for row in self._tail]
        return calls.with_ids(self._messages, positions)

    def _arranged(self, messages: Sequence[ChatMessage], roles: str | None) -> Sequence[ChatMessage]:
        roles = roles or self._roles
        if roles not in ROLES:
            raise InvalidArgument(f"roles must be one of {', '.join(ROLES)}, not {roles!r}.")
        if roles == "alternating":
            return chat.alternating(messages)
        return chat.merged_system(messages) if roles == "one_system" else messages

    def to_text(self) -> str:
        """Return the messages as lines of ``role: text``, for people and for models that take one text.

        The second and later lines of a message are indented, so that no line can pass for another message.
        """
        return "\n".join("\n  ".join(f"{message.role}: {spoken(message)}".splitlines()) for message in self)


def assemble(
    snapshot: Snapshot | None,
    strategy: Strategy,
    options: Options,
    counter: TokenCounter,
    *,
    system: Any = None,
    max_tokens: int | None = None,
    question: StoredMessage | None = None,
) -> Context:
    """Return the context of a session.

    The ``question`` of a turn is always shown. If it is not in the tail, it stands after the summary once more.

    ``max_tokens`` bounds the whole context. Without it, ``max_context_tokens`` bounds all but the system prompt. The
    oldest exchanges of the tail are left out first, in steps, and then the summary. The system prompt, pinned messages
    and the newest exchange are never left out. Old results of tools give way afterwards: what is left out, and what is
    folded, goes by the tokens of what is stored.
    """
    prompt = system_message(system)
    leading = [] if prompt is None else [Part("system", prompt, counter.count(prompt))]
    if snapshot is None:
        total = _total(leading)
        over_budget = max_tokens is not None and total > max_tokens
        return Context(leading, tokens=total, over_budget=over_budget, _roles=options.roles)
    pinned = [Part("pinned", row.message, row.tokens, row.position) for row in snapshot.pinned]
    pinned_tokens = _total(pinned)
    if max_tokens is not None:
        budget: float = max_tokens - _total(leading) - pinned_tokens
        room = budget
    else:
        budget = (options.max_context_tokens or math.inf) - pinned_tokens
        # A pinned message that is larger than its share takes no room from the tail. Otherwise messages would be
        # neither shown nor folded.
        room = budget + max(0, pinned_tokens - options.pinned_tokens)
    leading += pinned

    summary = snapshot.summary
    summary_tokens = summary.tokens if summary else 0
    tail = _shown(snapshot, strategy, counter, room - summary_tokens)
    if question is not None and not any(row.position == question.position for row in tail):
        asked = MessageRef(question.position, question.message, question.tokens)
        tail = [asked, *_shown(snapshot, strategy, counter, room - summary_tokens - asked.tokens)]
    changing_position = snapshot.counters.open_position
    if options.clear_tool_results is not None:
        tail, gives_way_at = _cleared(tail, options.clear_tool_results, counter)
        changing_position = changing_position or gives_way_at
    tail_tokens = _total(tail)
    if summary is not None and summary_tokens + tail_tokens > room:
        summary, summary_tokens = None, 0
    # A summary is empty if there was nothing to summarize yet: see Chunk.is_wordless.
    if summary is not None and summary.text:
        leading.append(Part("summary", options.summary_message(summary.text), summary.tokens))

    filler_tokens = _filler_tokens(options.roles, leading, tail, counter)
    counters = snapshot.counters
    # A row at position 0 is the placeholder of a missing result: it is not stored.
    stored = len(snapshot.pinned) + len(tail) - [row.position for row in tail].count(0)
    covered = counters.covered_count if summary else 0
    return Context(
        leading,
        tail,
        tokens=_total(leading) + tail_tokens + filler_tokens,
        summary=summary.text or None if summary else None,
        covered=counters.covered_position if summary else 0,
        omitted=counters.unpinned_count + len(counters.pinned) - covered - stored,
        over_budget=summary_tokens + tail_tokens + filler_tokens > budget,
        pending=snapshot.due,
        revision=snapshot.revision,
        _changing_position=changing_position,
        _filler_tokens=filler_tokens,
        _room=budget - summary_tokens - tail_tokens - filler_tokens,
        _roles=options.roles,
    )


def _filler_tokens(roles: str, leading: Sequence[Part], tail: Sequence[MessageRef], counter: TokenCounter) -> int:
    """Return the tokens of what ``roles="alternating"`` adds."""
    if roles != "alternating":
        return 0
    shown = [*(part.message for part in leading), *(row.message for row in tail)]
    return sum([counter.count(message) for message in chat.fillers(shown)])


def for_quotes(context: Context) -> QuotesPlace:
    """Return where quotes go in ``context``, and how much room is left for them."""
    tail = context._tail
    newest = max((index for index, row in enumerate(tail) if row.message.role == "user"), default=None)
    return QuotesPlace(
        question=None if newest is None else tail[newest],
        at=newest or 0,
        first_position=min((row.position for row in tail if row.position), default=None),
        room=max(0.0, context._room),
    )


def quoting(context: Context, quotes: ChatMessage, hits: Sequence[Hit], at: int, counter: TokenCounter) -> Context:
    """Return ``context`` with ``quotes``, a message that quotes ``hits``, before the index ``at`` of the tail."""
    row = MessageRef(0, quotes, counter.count(quotes))
    tail = [*context._tail[:at], row, *context._tail[at:]]
    filler_tokens = _filler_tokens(context._roles, context._leading, tail, counter)
    added = row.tokens + filler_tokens - context._filler_tokens
    return dataclasses.replace(
        context,
        _tail=tail,
        tokens=context.tokens + added,
        recalled=hits,
        _recalled_at=at,
        _filler_tokens=filler_tokens,
        _room=context._room - added,
    )


def system_message(system: Any) -> ChatMessage | None:
    """Return the argument ``system`` of ``load`` as a message, or None if there is none. Raises InvalidMessage."""
    if system is None or system == "":
        return None
    message = ChatMessage.system(system) if isinstance(system, str) else messages.coerce(system)
    if not message.pinned:
        raise InvalidMessage(
            f"system must be a string, or a message with the role system or developer. Its role is {message.role!r}."
        )
    return message


def _total(rows: Sequence[Part] | Sequence[MessageRef]) -> int:
    return sum([row.tokens for row in rows])


def _shown(snapshot: Snapshot, strategy: Strategy, counter: TokenCounter, budget: float) -> Sequence[MessageRef]:
    """Return the messages of the tail that the strategy shows and that fit into ``budget``, well-formed.

    The newest exchange fits always.
    """
    tail, counters = snapshot.tail, snapshot.counters
    # The usual case: each message is an exchange.
    plain = not counters.open_calls and not [
        row for row in tail if row.answers is not None or row.message.tool_calls or row.message.role == "tool"
    ]
    starts = range(len(tail)) if plain else exchanges.starts(tail, counters.open_position)
    tokens = [row.tokens for row in tail]
    # Steps are counted from the beginning, or from the end of the summary.
    count, total = counters.unpinned_count, counters.unpinned_tokens
    if strategy.view().summary:
        count, total = count - counters.covered_count, total - counters.covered_tokens
    before = Amount(count - len(tail), total - sum(tokens))
    first = strategy.shown_from(tokens, starts, before)
    if sum(tokens[first:]) > budget:
        cut = stepped(total, max(0.0, budget), strategy.trims_to) - before.tokens
        first = _first_after(tokens, starts, first, cut)
    if plain:
        return tail[first:]
    bounds = itertools.pairwise([*starts, len(tail)])
    whole = [exchanges.well_formed(tail[start:end]) for start, end in bounds if start >= first]
    shown = [
        [row if row.position else row._replace(tokens=counter.count(row.message)) for row in rows] for rows in whole
    ]
    # The placeholders of missing results count, but no step knows of them.
    left = sum(map(_total, shown))
    while len(shown) > 1 and left > budget:
        left -= _total(shown.pop(0))
    return list(itertools.chain.from_iterable(shown))


def _first_after(tokens: Sequence[int], starts: Sequence[int], first: int, cut: float) -> int:
    """Return the index of the first exchange from ``first`` on before which there are ``cut`` tokens, or the newest."""
    passed = sum(tokens[:first])
    for start, end in itertools.pairwise([start for start in starts if start >= first]):
        if passed >= cut:
            return start
        passed += sum(tokens[start:end])
    return starts[-1] if starts and starts[-1] >= first else first


# Old results of tools give way: a context shows a short text in their place. The positions of the results decide which
# ones give way. So nothing is stored or counted, and all processes show the same.


def _cleared(rows: Sequence[MessageRef], newest: int, counter: TokenCounter) -> tuple[Sequence[MessageRef], int]:
    """Return well-formed ``rows`` with :data:`CLEARED` in place of old results.

    At least the ``newest`` results stay, and less than twice as many. Results that the model has not seen stay too. If
    some of them give way after the next reply, return also the position at which their exchange begins, otherwise 0.
    """
    positions = sorted([row.position for row in rows if row.message.role == "tool" and row.position])
    if len(positions) <= newest:
        return rows, 0
    first = _first_that_stays(positions, newest)
    seen_before = max([row.position for row in rows if row.message.role == "assistant"], default=0)
    shown, changing = list(rows), 0
    for index, row in enumerate(rows):
        if row.message.role != "tool" or not 0 < row.position < first:
            continue
        if row.position > seen_before:
            changing = row.answers or 0
        else:
            message = dataclasses.replace(row.message.without_item(), content=CLEARED, extra=messages.FrozenDict())
            shown[index] = row._replace(message=message, tokens=counter.count(message))
    return shown, changing


def _first_that_stays(positions: Sequence[int], newest: int) -> int:
    """Return the position from which on results stay: a multiple of a step. So contexts begin alike between two steps.

    A step of ``newest`` positions has at most as many results, so less than twice as many stay. In a loop of single
    calls, every second message is a result. Then a step of twice the length has no more, and is taken less often.
    """
    for step in (2 * newest, newest):
        first = positions[-newest] // step * step
        if sum([position >= first for position in positions]) < 2 * newest:
            break
    return first
