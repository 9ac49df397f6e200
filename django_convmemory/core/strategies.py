"""Strategies: which messages are folded into a summary, and which are shown.

A strategy is pure. It sees the token counts of the unpinned messages in question and the indexes at which their
exchanges begin, and returns an index; others read, fold and write.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

# More than a session holds: no limit. Databases cannot reckon with any number.
_MOST = 2**53


@dataclasses.dataclass(frozen=True, slots=True)
class Threshold:
    """When a session is due: its tail counts more than ``tokens``, or more than ``messages``. None: no such limit.

    A tail of a single exchange is never due, for nothing in it could be folded.
    """

    tokens: int | None = None
    messages: int | None = None

    def __post_init__(self) -> None:
        for field in ("tokens", "messages"):
            if (getattr(self, field) or 0) > _MOST:
                object.__setattr__(self, field, None)

    def exceeded(self, *, tokens: int, messages: int, settled: bool) -> bool:
        """Whether a tail of that size is due; ``settled``: it has more than its newest exchange."""
        over_tokens = self.tokens is not None and tokens > self.tokens
        over_messages = self.messages is not None and messages > self.messages
        return settled and (over_tokens or over_messages)


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """How much of the end of a conversation has to be read to show it: a store reads no more.

    The last ``messages`` unpinned messages, or as many as ``tokens`` tokens hold, and in any case the newest exchange.
    None: no such limit. With ``summary``, only what the current summary does not stand for.
    """

    messages: int | None = None
    tokens: int | None = None
    summary: bool = False


def _whole(value: object, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}.")


def _next_start(starts: Sequence[int], index: int) -> int | None:
    at = bisect.bisect_left(starts, index)
    return starts[at] if at < len(starts) else None


def _foldable(starts: Sequence[int], split: int) -> int:
    """Move ``split`` forward to the end of the exchange it falls in, but not past the start of the newest one."""
    found = _next_start(starts, split)
    return starts[-1] if found is None else found


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """Everything, always."""

    threshold = Threshold()

    def view(self) -> View:
        return View()

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        return 0

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The last ``window_size`` messages; 0 shows none.

    A window that would begin inside an exchange begins after it, but the newest exchange is shown whole.
    """

    window_size: int
    threshold = Threshold()

    def __post_init__(self) -> None:
        _whole(self.window_size, "window_size", 0)

    def view(self) -> View:
        return View(messages=self.window_size)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        if not self.window_size:
            return len(tokens)
        found = _next_start(starts, max(0, len(tokens) - self.window_size))
        if found is None:
            return starts[-1] if starts else len(tokens)
        return found

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class TokenBuffer:
    """The newest messages that count ``max_tokens`` tokens together; one alone above it shows none."""

    max_tokens: int
    threshold = Threshold()

    def __post_init__(self) -> None:
        _whole(self.max_tokens, "max_tokens", 0)

    def view(self) -> View:
        return View(tokens=self.max_tokens)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        first = _suffix(tokens, self.max_tokens)
        found = _next_start(starts, first)
        return len(tokens) if found is None else found

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Folds all but the last ``buffer_size`` messages once there are more than twice as many."""

    buffer_size: int

    def __post_init__(self) -> None:
        _whole(self.buffer_size, "buffer_size", 0)

    @property
    def threshold(self) -> Threshold:
        return Threshold(messages=2 * self.buffer_size)

    def view(self) -> View:
        return View(messages=max(1, 4 * self.buffer_size), summary=True)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        return 0

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        if len(starts) < 2 or len(tokens) <= 2 * self.buffer_size:
            return 0
        return _foldable(starts, len(tokens) - self.buffer_size)


@dataclasses.dataclass(frozen=True, slots=True)
class SummaryBuffer:
    """Folds down to half of ``max_token_limit`` once the tail counts more than it.

    The split is that of synaptic's ``ConversationSummaryBufferMemory``, moved to the end of an exchange: what is kept
    is at most half the limit, or the newest exchange.
    """

    max_token_limit: int

    def __post_init__(self) -> None:
        _whole(self.max_token_limit, "max_token_limit", 1)

    @property
    def threshold(self) -> Threshold:
        return Threshold(tokens=self.max_token_limit)

    def view(self) -> View:
        return View(summary=True)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        return 0

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        if len(starts) < 2 or sum(tokens) <= self.max_token_limit:
            return 0
        return _foldable(starts, min(_suffix(tokens, self.max_token_limit // 2), len(tokens) - 1))


@dataclasses.dataclass(frozen=True, slots=True)
class Pruning:
    """Folds the oldest messages until the tail counts ``max_token_limit`` at most, as tinygent prunes.

    Unlike tinygent it keeps the newest exchange, whatever that counts.
    """

    max_token_limit: int

    def __post_init__(self) -> None:
        _whole(self.max_token_limit, "max_token_limit", 1)

    @property
    def threshold(self) -> Threshold:
        return Threshold(tokens=self.max_token_limit)

    def view(self) -> View:
        return View(summary=True)

    def shown_from(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        return 0

    def plan(self, tokens: Sequence[int], starts: Sequence[int]) -> int:
        if len(starts) < 2 or sum(tokens) <= self.max_token_limit:
            return 0
        return _foldable(starts, _suffix(tokens, self.max_token_limit))


Strategy = Buffer | Window | TokenBuffer | Summary | SummaryBuffer | Pruning


def _suffix(tokens: Sequence[int], limit: int) -> int:
    """Return the index from which on ``tokens`` sum up to ``limit`` at most."""
    total = 0
    for index in range(len(tokens) - 1, -1, -1):
        total += tokens[index]
        if total > limit:
            return index + 1
    return 0
