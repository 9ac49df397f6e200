"""Strategies: which messages are folded into a summary, and which messages are shown.

A strategy is pure: it decides, and other modules read, fold and write. It sees the token counts of unpinned messages
and the indexes at which their exchanges begin. It returns an index.

What is not folded is trimmed in steps (:func:`stepped`): many messages at once, and then none for a while. Between two
steps a context begins with all of the last one, which a provider's cache can serve.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

# More than a session holds, so the same as no limit. Databases cannot calculate with larger integers.
_NO_LIMIT = 2**53


@dataclasses.dataclass(frozen=True, slots=True)
class Threshold:
    """When a session is due: its tail has more than ``tokens`` tokens, or more than ``messages`` messages.

    A tail of one exchange is not due for these two, because nothing in it can be folded. A session is also due if its
    newest exchange begins more than ``unindexed`` positions after the last message in the index of recall: so many
    messages before that exchange are not in the index. None means no limit.
    """

    tokens: int | None = None
    messages: int | None = None
    unindexed: int | None = None

    def __post_init__(self) -> None:
        for field in ("tokens", "messages", "unindexed"):
            if (getattr(self, field) or 0) > _NO_LIMIT:
                object.__setattr__(self, field, None)

    def exceeded(self, *, tokens: int, messages: int, settled: bool, unindexed: int = 0) -> bool:
        """Return whether a tail of this size is due. ``settled``: the tail has more than its newest exchange.

        The newest exchange begins ``unindexed`` positions after the last message in the index.
        """
        over_tokens = self.tokens is not None and tokens > self.tokens
        over_messages = self.messages is not None and messages > self.messages
        over_unindexed = self.unindexed is not None and unindexed > self.unindexed
        return over_unindexed or (settled and (over_tokens or over_messages))


class View(NamedTuple):
    """How much of the end of a conversation must be read to show it. A store reads no more than that.

    The view has the last ``messages`` unpinned messages, or those that fit into ``tokens`` tokens. It always has the
    newest exchange. None means no limit. With ``summary`` it has only messages that the current summary does not cover.
    """

    messages: int | None = None
    tokens: int | None = None
    summary: bool = False


class Amount(NamedTuple):
    """A number of messages, and their tokens together."""

    messages: int = 0
    tokens: int = 0


def stepped(total: int, limit: float, evict_to: float) -> float:
    """Return how much of ``total`` is left out at its beginning, so that at most ``limit`` is shown.

    What is left out grows in steps of ``limit × (1 - evict_to)``, at least 1: so ``evict_to`` is the least share of the
    limit that is shown. It depends on the total only, so that no state is needed.
    """
    step = max(1.0, limit * (1 - evict_to))
    return math.ceil(max(0.0, total - limit) / step) * step


_EVERYTHING = View()
_UNFOLDED = View(summary=True)
_NEVER = Threshold()
_NOTHING = Amount()
# While folding lags behind, what exceeds the limit is left out in steps of a quarter of it.
_LAGGING_EVICT_TO = 0.75


@dataclasses.dataclass(frozen=True, slots=True)
class Strategy:
    """Shows every message and folds nothing, unless a subclass overrides that."""

    @property
    def threshold(self) -> Threshold:
        """When a session is due."""
        return _NEVER

    def view(self) -> View:
        """Return how much of the conversation is read to show it."""
        return _EVERYTHING

    @property
    def trims_to(self) -> float:
        """The share of a limit that is left when a context is trimmed to it: see :func:`stepped`."""
        share: float = getattr(self, "evict_to", 1.0)
        return share

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int], before: Amount = _NOTHING) -> int:
        """Return the index of the first message that is shown.

        ``before`` is how much comes before these messages. For a view with a summary it counts from the summary's end.
        """
        return 0

    def plan(self, tokens: Sequence[int], starts: Sequence[int], user_starts: Sequence[int] = ()) -> int:
        """Return the index of the first message that is kept when the tail is folded. 0: nothing is folded.

        ``user_starts`` are those of ``starts`` at which a user speaks. Kept messages best begin with one of them.
        """
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer(Strategy):
    """Shows everything, always."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window(Strategy):
    """Shows the last ``window_size`` messages. 0 shows none.

    A window that would begin inside an exchange begins after it. The newest exchange is always shown whole. With
    ``evict_to`` it grows from this share of its size to its size, and then begins anew.
    """

    window_size: int
    evict_to: float = 1.0

    def __post_init__(self) -> None:
        _check_limit(self.window_size, "window_size", minimum=0)
        _check_share(self.evict_to)

    def view(self) -> View:
        return View(messages=self.window_size)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int], before: Amount = _NOTHING) -> int:
        if not self.window_size or not starts:
            return len(tokens)
        return _last_messages(len(tokens), starts, before, self.window_size, self.evict_to)


@dataclasses.dataclass(frozen=True, slots=True)
class TokenBuffer(Strategy):
    """Shows the newest messages that have at most ``max_tokens`` tokens together.

    If the newest exchange alone has more, nothing is shown. With ``evict_to`` the messages grow from this share of the
    limit to the limit, and then the oldest ones are left out.
    """

    max_tokens: int
    evict_to: float = 1.0

    def __post_init__(self) -> None:
        _check_limit(self.max_tokens, "max_tokens", minimum=0)
        _check_share(self.evict_to)

    def view(self) -> View:
        return View(tokens=self.max_tokens)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int], before: Amount = _NOTHING) -> int:
        through = list(itertools.accumulate(tokens, initial=before.tokens))
        cut = stepped(through[-1], self.max_tokens, self.evict_to)
        for start in starts:
            if through[start] >= cut:
                return start
        # The step ends inside the newest exchange, which is shown if it fits.
        fits = bool(starts) and through[-1] - through[starts[-1]] <= self.max_tokens
        return starts[-1] if fits else len(tokens)


@dataclasses.dataclass(frozen=True, slots=True)
class SummaryWindow(Strategy):
    """Folds all but the last ``buffer_size`` messages when there are more than twice as many."""

    buffer_size: int
    trims_to: ClassVar[float] = _LAGGING_EVICT_TO

    def __post_init__(self) -> None:
        _check_limit(self.buffer_size, "buffer_size", minimum=0)

    @property
    def threshold(self) -> Threshold:
        return Threshold(messages=2 * self.buffer_size)

    @property
    def most_shown(self) -> int:
        """How many messages are shown at most while folding lags behind, unless the newest exchange has more."""
        return max(1, 4 * self.buffer_size)

    def view(self) -> View:
        return View(messages=self.most_shown, summary=True)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int], before: Amount = _NOTHING) -> int:
        if not starts:
            return 0
        return _last_messages(len(tokens), starts, before, self.most_shown, self.trims_to)

    def plan(self, tokens: Sequence[int], starts: Sequence[int], user_starts: Sequence[int] = ()) -> int:
        if len(starts) < 2 or len(tokens) <= 2 * self.buffer_size:
            return 0
        return _cut(starts, user_starts, len(tokens) - self.buffer_size)


@dataclasses.dataclass(frozen=True, slots=True)
class SummaryBuffer(Strategy):
    """Folds down to half of ``max_token_limit`` tokens when the tail has more than ``max_token_limit``.

    The split is the one of synaptic's ``ConversationSummaryBufferMemory``, moved to the end of an exchange. The kept
    messages have at most half of the limit together, or are the newest exchange.
    """

    max_token_limit: int
    trims_to: ClassVar[float] = _LAGGING_EVICT_TO

    def __post_init__(self) -> None:
        _check_limit(self.max_token_limit, "max_token_limit", minimum=1)

    @property
    def threshold(self) -> Threshold:
        return Threshold(tokens=self.max_token_limit)

    @property
    def kept_tokens(self) -> int:
        """How many tokens of the tail stay unfolded, at most."""
        return self.max_token_limit // 2

    def view(self) -> View:
        return _UNFOLDED

    def plan(self, tokens: Sequence[int], starts: Sequence[int], user_starts: Sequence[int] = ()) -> int:
        if len(starts) < 2 or sum(tokens) <= self.max_token_limit:
            return 0
        from_the_end = list(itertools.accumulate(reversed(tokens)))
        return _cut(starts, user_starts, len(tokens) - bisect.bisect_right(from_the_end, self.kept_tokens))


@dataclasses.dataclass(frozen=True, slots=True)
class Pruning(SummaryBuffer):
    """Folds only as much as exceeds ``max_token_limit``, as tinygent does when it prunes.

    Unlike tinygent it keeps the newest exchange, even if that exchange alone exceeds the limit.
    """

    @property
    def kept_tokens(self) -> int:
        return self.max_token_limit

    def plan(self, tokens: Sequence[int], starts: Sequence[int], user_starts: Sequence[int] = ()) -> int:
        return SummaryBuffer.plan(self, tokens, starts)  # tinygent does not look who speaks.


def _check_limit(value: object, name: str, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, not {value!r}.")


def _check_share(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"evict_to must be a number from 0 to 1, not {value!r}.")


def _last_messages(count: int, starts: Sequence[int], before: Amount, limit: int, evict_to: float) -> int:
    """Return the index of the first of the last messages, ``limit`` at most. The newest exchange is always shown."""
    cut = stepped(before.messages + count, limit, evict_to) - before.messages
    return _exchange_at_or_after(starts, math.ceil(cut), default=starts[-1])


def _cut(starts: Sequence[int], user_starts: Sequence[int], index: int) -> int:
    """Return where to cut, not before ``index``: at a user's turn before the newest exchange, or at any exchange."""
    turn = _exchange_at_or_after(user_starts, index, default=starts[-1])
    return turn if turn < starts[-1] else _exchange_at_or_after(starts, index, default=starts[-1])


def _exchange_at_or_after(starts: Sequence[int], index: int, *, default: int) -> int:
    """Return the first index in ``starts`` that is not before ``index``, or ``default`` if there is none."""
    number = bisect.bisect_left(starts, index)
    return starts[number] if number < len(starts) else default
