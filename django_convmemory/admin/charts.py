"""The numbers of the charts, which templates draw as SVG without a script or a style attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

WIDTH, HEIGHT, MARGIN = 720, 220, 8
COLUMNS_HEIGHT = 120


class TokenChart(NamedTuple):
    """The tokens at each position: of the whole history, and of the context, as it is reconstructed.

    ``history`` and ``context`` are the points of lines. ``maximum`` is the number of tokens at the top. ``rows`` have
    the position, and the tokens of both lines.
    """

    history: str
    context: str
    budget_y: float | None
    maximum: int
    last_position: int
    rows: Sequence[tuple[int, int, int]]
    width: int = WIDTH
    height: int = HEIGHT


def positions(last: int, count: int = 18) -> list[int]:
    """Return at most ``count`` positions, evenly spread from 1 to ``last``, which are among them."""
    if last <= count:
        return list(range(1, last + 1))
    return [1 + round(number * (last - 1) / (count - 1)) for number in range(count)]


def token_chart(rows: Sequence[tuple[int, int, int]], budget: int | None) -> TokenChart | None:
    """Return the chart of a conversation, or None without ``rows``, which are those of the chart."""
    if not rows:
        return None
    last, maximum = rows[-1][0], max(*(history for _, history, _ in rows), budget or 0, 1)

    def x(position: int) -> float:
        return round(MARGIN + (position - 1) / max(last - 1, 1) * (WIDTH - 2 * MARGIN), 1)

    def y(tokens: int) -> float:
        return round(HEIGHT - MARGIN - tokens / maximum * (HEIGHT - 2 * MARGIN), 1)

    history = " ".join(f"{x(position)},{y(tokens)}" for position, tokens, _ in rows)
    context = " ".join(f"{x(position)},{y(tokens)}" for position, _, tokens in rows)
    return TokenChart(history, context, None if budget is None else y(budget), maximum, last, rows)


class BarPart(NamedTuple):
    """A part of a stacked bar."""

    name: str
    label: Any
    tokens: int
    x: float
    width: float


def stacked(parts: Sequence[tuple[str, Any, int]], budget: int | None = None) -> list[BarPart]:
    """Return the pieces of a bar whose length, 100, is the budget, or the sum of the parts if that is larger.

    A part is its name, its label, and its tokens.
    """
    total = max(sum(tokens for _, _, tokens in parts), budget or 0, 1)
    pieces, x = [], 0.0
    for name, label, tokens in parts:
        width = tokens / total * 100
        pieces.append(BarPart(name, label, tokens, round(x, 2), round(width, 2)))
        x += width
    return pieces


class Box(NamedTuple):
    """A part of a column, or a whole column."""

    name: str
    x: float
    y: float
    height: float


class Columns(NamedTuple):
    """Stacked values over time. ``maximum`` is the value at the top."""

    boxes: Sequence[Box]
    maximum: float
    column_width: float
    width: int = WIDTH
    height: int = COLUMNS_HEIGHT


def columns(names: Sequence[str], values: Sequence[Sequence[float]]) -> Columns:
    """Return a column for each step of time. ``values`` has, for each, a value of each name, from the bottom up."""
    maximum = max(map(sum, values))
    room = WIDTH / len(values)
    boxes = []
    for number, of_step in enumerate(values):
        top = float(COLUMNS_HEIGHT)
        for name, value in zip(names, of_step, strict=True):
            if value:
                # The smallest value can still be seen.
                height = max(value / maximum * COLUMNS_HEIGHT, 2)
                top = max(top - height, 0)
                boxes.append(Box(name, round(number * room + room * 0.1, 1), round(top, 1), round(height, 1)))
    return Columns(boxes, maximum, round(room * 0.8, 1))
