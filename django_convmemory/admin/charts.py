"""The numbers of the charts, which templates draw as SVG without a script or a style attribute."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.utils.safestring import mark_safe

WIDTH, HEIGHT, MARGIN = 720, 220, 8
COLUMNS_HEIGHT = 120
# The summaries have lines from top to bottom up to this number. More of them have ticks at the bottom.
LINES, TICK = 40, 12
# If the history is so many times as large as the scale of the context, the context has a chart of its own too.
FLAT = 3


class Sample(NamedTuple):
    """A position, the tokens of the conversation through it, and the version of the summary that was shown there."""

    position: int
    tokens: int
    version: int | None


class Fold(NamedTuple):
    """A version of the summary: the tokens of the messages that it covers, and the tokens of its own text."""

    version: int
    parent: int | None
    last_position: int
    covered_tokens: int
    tokens: int


def current_line(folds: Sequence[Fold], current: int) -> list[tuple[int, int]]:
    """Return the last position and the version of the folds that led to the ``current`` version, in order."""
    until = sorted((fold for fold in folds if fold.version <= current), key=lambda fold: fold.version)
    # A rebuild begins a line without a parent. The versions before it were replaced.
    first = max((fold.version for fold in until if fold.parent is None), default=0)
    return [(fold.last_position, fold.version) for fold in until if fold.version >= first]


class ContextChart(NamedTuple):
    """The line of the context alone, and of the budget. ``maximum`` is the number of tokens at the top."""

    context: str
    budget_y: float | None
    maximum: int


@dataclasses.dataclass(frozen=True, slots=True)
class TokenChart:
    """The tokens at each position: of the whole history, and of the context, as it is reconstructed.

    ``history`` and ``context`` are the points of lines. ``marks`` is a path with a line at the last message that each
    summary covers, but for ``unmarked`` older ones. ``maximum`` is the number of tokens at the top. ``rows`` have the
    position, and the tokens of both lines. ``late``: by the times, summaries were missing when messages were stored.
    ``alone`` has the context in its own scale, if the other line flattens it.
    """

    history: str
    context: str
    budget_y: float | None
    marks: str
    maximum: int
    last_position: int
    rows: Sequence[tuple[int, int, int]]
    unmarked: int = 0
    late: bool = False
    alone: ContextChart | None = None
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def table(self) -> str:
        """The rows as HTML. A template would take much of a page's time for them."""
        cells = ("".join(f"<td>{int(number)}</td>" for number in row) for row in self.rows)
        return mark_safe("".join(f"<tr>{row}</tr>" for row in cells))  # noqa: S308  made of integers


def positions(last: int, count: int = 18) -> list[int]:
    """Return at most ``count`` positions, evenly spread from 1 to ``last``, which are among them."""
    if last <= count:
        return list(range(1, last + 1))
    return [1 + round(number * (last - 1) / (count - 1)) for number in range(count)]


def token_chart(
    samples: Sequence[Sample], folds: Sequence[Fold], budget: int | None, unmarked: int = 0
) -> TokenChart | None:
    """Return the chart of a conversation, or None without ``samples``.

    At each position, a model was sent the summary of that time and the messages after it, up to the budget. Whether it
    really was, nobody recorded: ``samples`` know it from times, and messages of another system have times of their own.
    ``folds`` has the versions that the samples name, and all that are marked.
    """
    if not samples:
        return None
    by_version = {fold.version: fold for fold in folds}
    rows, late = [], len(folds) > 1 and not any(sample.version for sample in samples)
    for sample in samples:
        fold = by_version.get(sample.version) if sample.version else None
        sent = sample.tokens - fold.covered_tokens + fold.tokens if fold else sample.tokens
        late = late or (budget is not None and sent > budget)
        rows.append((sample.position, sample.tokens, sent if budget is None else min(sent, budget)))
    last, maximum = samples[-1].position, max(*(row[1] for row in rows), budget or 0, 1)
    scale = budget or max(*(row[2] for row in rows), 1)

    def x(position: int) -> float:
        return round(MARGIN + (position - 1) / max(last - 1, 1) * (WIDTH - 2 * MARGIN), 1)

    def y(tokens: int, top: int = maximum) -> float:
        return round(HEIGHT - MARGIN - tokens / top * (HEIGHT - 2 * MARGIN), 1)

    places = sorted({x(fold.last_position) for fold in folds})
    top = 0 if len(places) <= LINES else HEIGHT - TICK
    alone = ContextChart(
        " ".join(f"{x(position)},{y(tokens, scale)}" for position, _, tokens in rows),
        None if budget is None else y(budget, scale),
        scale,
    )
    return TokenChart(
        history=" ".join(f"{x(position)},{y(tokens)}" for position, tokens, _ in rows),
        context=" ".join(f"{x(position)},{y(tokens)}" for position, _, tokens in rows),
        budget_y=None if budget is None else y(budget),
        marks=" ".join(f"M{place} {top}V{HEIGHT}" for place in places),
        maximum=maximum,
        last_position=last,
        rows=rows,
        unmarked=unmarked,
        late=late,
        alone=alone if maximum > FLAT * scale else None,
    )


class Piece(NamedTuple):
    """A part of a stacked bar."""

    name: str
    label: Any
    tokens: int
    x: float
    width: float


def stacked(parts: Sequence[tuple[str, Any, int]], budget: int | None = None) -> list[Piece]:
    """Return the pieces of a bar whose length, 100, is the budget, or the sum of the parts if that is larger.

    A part is its name, its label, and its tokens.
    """
    total = max(sum(tokens for _, _, tokens in parts), budget or 0, 1)
    pieces, x = [], 0.0
    for name, label, tokens in parts:
        width = tokens / total * 100
        pieces.append(Piece(name, label, tokens, round(x, 2), round(width, 2)))
        x += width
    return pieces


class Box(NamedTuple):
    """A part of a column."""

    name: str
    y: float
    height: float


class Column(NamedTuple):
    """The values of a step. ``begins`` is the time at which it began, as a text."""

    begins: str
    values: Sequence[float]
    boxes: Sequence[Box]
    x: float


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Values over time. The values of a step are stacked. ``maximum`` is the value at the top."""

    columns: Sequence[Column]
    maximum: float
    column_width: float
    width: int = WIDTH
    height: int = COLUMNS_HEIGHT


def columns(
    steps: Sequence[str],
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    scale: float = 0,
    *,
    stacked: bool = True,
) -> Columns:
    """Return a column for each of ``steps``, the texts of their times.

    ``values`` has, for each step, a value for each of ``names``, from the bottom up.

    The top of the chart is ``scale`` or the highest column, whichever is larger. If the values are not ``stacked``,
    each begins at the bottom, and earlier ones are drawn in front of later ones.
    """
    maximum = max([scale, *(sum(of_step) if stacked else max(of_step) for of_step in values)])
    room = WIDTH / max(len(steps), 1)
    drawn = []
    for number, (begins, step_values) in enumerate(zip(steps, values, strict=True)):
        boxes, top = [], float(COLUMNS_HEIGHT)
        for name, value in zip(names, step_values, strict=True):
            if value:
                # The smallest value can still be seen.
                height = max(value / maximum * COLUMNS_HEIGHT, 2)
                top = max((top if stacked else COLUMNS_HEIGHT) - height, 0)
                boxes.append(Box(name, round(top, 1), round(height, 1)))
        # SVG draws what comes later in front.
        drawn.append(
            Column(begins, step_values, boxes if stacked else boxes[::-1], round(number * room + room * 0.1, 1))
        )
    return Columns(drawn, maximum, round(room * 0.8, 1))
