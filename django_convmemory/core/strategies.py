"""Strategies: which messages are folded into a summary, and which messages are shown.

A strategy is pure: it decides, and other modules read, fold and write. It sees the token counts of unpinned messages
and the indexes at which their exchanges begin. It returns an index.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

# More than a session holds, so the same as no limit. Databases cannot calculate with larger integers.
_NO_LIMIT = 2**53


@dataclasses.dataclass(frozen=True, slots=True)
class Threshold:
    """When a session is due: its tail has more than ``tokens`` tokens, or more than ``messages`` messages.

    None means no limit. A tail of one exchange is never due, because nothing in it can be folded.
    """

    tokens: int | None = None
    messages: int | None = None

    def __post_init__(self) -> None:
        for field in ("tokens", "messages"):
            if (getattr(self, field) or 0) > _NO_LIMIT:
                object.__setattr__(self, field, None)

    def exceeded(self, *, tokens: int, messages: int, settled: bool) -> bool:
        """Return whether a tail of this size is due. ``settled``: the tail has more than its newest exchange."""
        over_tokens = self.tokens is not None and tokens > self.tokens
        over_messages = self.messages is not None and messages > self.messages
        return settled and (over_tokens or over_messages)


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """How much of the end of a conversation must be read to show it. A store reads no more than that.

    The view has the last ``messages`` unpinned messages, or those that fit into ``tokens`` tokens. It always has the
    newest exchange. None means no limit. With ``summary`` it has only messages that the current summary does not cover.
    """

    messages: int | None = None
    tokens: int | None = None
    summary: bool = False


_EVERYTHING = View()
_NEVER = Threshold()


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

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        """Return the index of the first message that is shown."""
        return 0

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        """Return the index of the first message that is kept when the tail is folded. 0: nothing is folded."""
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer(Strategy):
    """Shows everything, always."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window(Strategy):
    """Shows the last ``window_size`` messages. 0 shows none.

    A window that would begin inside an exchange begins after it. The newest exchange is always shown whole.
    """

    window_size: int

    def __post_init__(self) -> None:
        _check_limit(self.window_size, "window_size", minimum=0)

    def view(self) -> View:
        return View(messages=self.window_size)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        if not self.window_size or not starts:
            return len(tokens)
        return _exchange_at_or_after(starts, max(0, len(tokens) - self.window_size), default=starts[-1])


@dataclasses.dataclass(frozen=True, slots=True)
class TokenBuffer(Strategy):
    """Shows the newest messages that have at most ``max_tokens`` tokens together.

    If the newest exchange alone has more, nothing is shown.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        _check_limit(self.max_tokens, "max_tokens", minimum=0)

    def view(self) -> View:
        return View(tokens=self.max_tokens)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        return _exchange_at_or_after(starts, _first_that_fits(tokens, self.max_tokens), default=len(tokens))


@dataclasses.dataclass(frozen=True, slots=True)
class Summary(Strategy):
    """Folds all but the last ``buffer_size`` messages when there are more than twice as many."""

    buffer_size: int

    def __post_init__(self) -> None:
        _check_limit(self.buffer_size, "buffer_size", minimum=0)

    @property
    def threshold(self) -> Threshold:
        return Threshold(messages=2 * self.buffer_size)

    def view(self) -> View:
        return View(messages=max(1, 4 * self.buffer_size), summary=True)

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        if len(starts) < 2 or len(tokens) <= 2 * self.buffer_size:
            return 0
        return _exchange_at_or_after(starts, len(tokens) - self.buffer_size, default=starts[-1])


@dataclasses.dataclass(frozen=True, slots=True)
class SummaryBuffer(Strategy):
    """Folds down to half of ``max_token_limit`` tokens when the tail has more than ``max_token_limit``.

    The split is the one of synaptic's ``ConversationSummaryBufferMemory``, moved to the end of an exchange. The kept
    messages have at most half of the limit together, or are the newest exchange.
    """

    max_token_limit: int

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
        return View(summary=True)

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        if len(starts) < 2 or sum(tokens) <= self.max_token_limit:
            return 0
        return _exchange_at_or_after(starts, _first_that_fits(tokens, self.kept_tokens), default=starts[-1])


@dataclasses.dataclass(frozen=True, slots=True)
class Pruning(SummaryBuffer):
    """Folds only as much as exceeds ``max_token_limit``, as tinygent does when it prunes.

    Unlike tinygent it keeps the newest exchange, even if that exchange alone exceeds the limit.
    """

    @property
    def kept_tokens(self) -> int:
        return self.max_token_limit


def _check_limit(value: object, name: str, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, not {value!r}.")


def _exchange_at_or_after(starts: Sequence[int], index: int, *, default: int) -> int:
    """Return the first index in ``starts`` that is not before ``index``, or ``default`` if there is none."""
    number = bisect.bisect_left(starts, index)
    return starts[number] if number < len(starts) else default


def _first_that_fits(tokens: Sequence[int], limit: int) -> int:
    """Return the smallest index from which on ``tokens`` add up to at most ``limit``."""
    total = 0
    for index in range(len(tokens) - 1, -1, -1):
        total += tokens[index]
        if total > limit:
            return index + 1
    return 0
