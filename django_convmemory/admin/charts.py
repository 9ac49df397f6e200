"""Charts as SVG, computed here: no script, no style attribute, and a text beside each for who does not see it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.utils.safestring import mark_safe

WIDTH, HEIGHT, MARGIN = 720, 220, 8
COLUMNS_HEIGHT = 120


class Sample(NamedTuple):
    """A conversation at one position: all tokens so far, and the version of the summary that was shown there."""

    position: int
    tokens: int
    shown: int | None


class Fold(NamedTuple):
    """A version of the summary: what it stands for, and what it costs to show."""

    version: int
    parent: int | None
    last_position: int
    covered_tokens: int
    tokens: int


def line(folds: Sequence[Fold], current: int) -> list[tuple[int, int]]:
    """Return the last position and the number of the versions that lead to the ``current`` one, in order."""
    known = sorted((fold for fold in folds if fold.version <= current), key=lambda fold: fold.version)
    begins = max((fold.version for fold in known if fold.parent is None), default=0)
    return [(fold.last_position, fold.version) for fold in known if fold.version >= begins]


@dataclasses.dataclass(frozen=True, slots=True)
class TokenChart:
    """Tokens over positions: the history, what a model was sent at each, the budget, and where folds end.

    ``history`` and ``context`` are the points of lines, ``marks`` is a path.
    """

    history: str
    context: str
    budget_y: float | None
    marks: str
    most: int
    last_position: int
    rows: Sequence[tuple[int, int, int]]
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def table(self) -> str:
        """The rows in HTML: they are numbers alone, of which a template would make much of a page's work."""
        cells = ("".join(f"<td>{int(number)}</td>" for number in row) for row in self.rows)
        return mark_safe("".join(f"<tr>{row}</tr>" for row in cells))  # noqa: S308  made of integers


def positions(last: int, most: int = 18) -> list[int]:
    """Return at most ``most`` positions from 1 to ``last``, evenly, with both ends."""
    if last <= most:
        return list(range(1, last + 1))
    return sorted({1 + round(number * (last - 1) / (most - 1)) for number in range(most)})


def token_chart(samples: Sequence[Sample], folds: Sequence[Fold], budget: int | None) -> TokenChart | None:
    """Draw the tokens of a conversation, or None where there are none.

    What a model was sent at a position is the summary of that time with what came after it, as far as the budget went.
    ``folds`` has the versions that the samples name.
    """
    if not samples:
        return None
    ordered = sorted(folds, key=lambda fold: fold.version)
    known = {fold.version: fold for fold in ordered}
    rows = []
    for sample in samples:
        fold = known.get(sample.shown) if sample.shown else None
        sent = sample.tokens - fold.covered_tokens + fold.tokens if fold else sample.tokens
        rows.append((sample.position, sample.tokens, sent if budget is None else min(sent, budget)))
    last, most = samples[-1].position, max(*(row[1] for row in rows), budget or 0, 1)

    def x(position: int) -> float:
        return round(MARGIN + (position - 1) / max(last - 1, 1) * (WIDTH - 2 * MARGIN), 1)

    def y(tokens: int) -> float:
        return round(HEIGHT - MARGIN - tokens / most * (HEIGHT - 2 * MARGIN), 1)

    return TokenChart(
        history=" ".join(f"{x(position)},{y(tokens)}" for position, tokens, _ in rows),
        context=" ".join(f"{x(position)},{y(tokens)}" for position, _, tokens in rows),
        budget_y=None if budget is None else y(budget),
        marks=" ".join(f"M{x(fold.last_position)} 0V{HEIGHT}" for fold in ordered),
        most=most,
        last_position=last,
        rows=rows,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A part of a stacked bar."""

    name: str
    label: Any
    tokens: int
    x: float
    width: float


def stacked(parts: Sequence[tuple[str, Any, int]], budget: int | None = None) -> list[Piece]:
    """Lay parts side by side on a bar of a hundred units: of the budget, or of their sum where that is more.

    Of each part its name, what it is called, and its tokens.
    """
    total = max(sum(tokens for _, _, tokens in parts), budget or 0, 1)
    pieces, x = [], 0.0
    for name, label, tokens in parts:
        width = tokens / total * 100
        pieces.append(Piece(name, label, tokens, round(x, 2), round(width, 2)))
        x += width
    return pieces


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A part of a column."""

    name: str
    y: float
    height: float


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """What there was in the step that began at ``begins``."""

    begins: dt.datetime
    values: Sequence[float]
    boxes: Sequence[Box]
    x: float


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Values over time, those of a step on top of one another."""

    columns: Sequence[Column]
    most: float
    column_width: float
    width: int = WIDTH
    height: int = COLUMNS_HEIGHT


def columns(
    steps: Sequence[dt.datetime], names: Sequence[str], values: Sequence[Sequence[float]], least: float = 0
) -> Columns:
    """Draw for each step its ``values``, of which there is one for each of ``names``, from the bottom up.

    The scale reaches to ``least``, or further.
    """
    most = max([least, *map(sum, values)])
    room = WIDTH / max(len(steps), 1)
    drawn = []
    for number, (begins, found) in enumerate(zip(steps, values, strict=True)):
        boxes, top = [], float(COLUMNS_HEIGHT)
        for name, value in zip(names, found, strict=True):
            if value:
                # What is there at all can be seen.
                height = max(value / most * COLUMNS_HEIGHT, 2)
                top = max(top - height, 0)
                boxes.append(Box(name, round(top, 1), round(height, 1)))
        drawn.append(Column(begins, found, boxes, round(number * room + room * 0.1, 1)))
    return Columns(drawn, most, round(room * 0.8, 1))
