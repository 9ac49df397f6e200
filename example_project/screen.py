"""The output of the replay: on a terminal a table that is redrawn in place, elsewhere a few plain lines."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_COLUMNS, _LINES = shutil.get_terminal_size()
LIVE = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and _COLUMNS >= 80 and _LINES >= 17
COLOURED = LIVE and not os.environ.get("NO_COLOR")

COLOURS = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# A line may be broken at a run of spaces, or beside a wide character. Punctuation stays with the character before it.
_PIECE = re.compile(r"\s+|[⺀-￯][、-〃〉》」』】！），．：；？”’]*|[^\s⺀-￯]+")


def paint(text: str, *colours: str) -> str:
    """Return ``text`` in colours, if the output has colours."""
    if not COLOURED or not colours:
        return text
    return f"\x1b[{';'.join(COLOURS[colour] for colour in colours)}m{text}\x1b[0m"


def cells(text: str) -> int:
    """Return the terminal columns that ``text`` takes: two for a Chinese character, none for a colour."""
    plain = _ESCAPE.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(
        2 if unicodedata.east_asian_width(character) in "WF" else not unicodedata.combining(character)
        for character in plain
    )


def fit(text: str, width: int) -> str:
    """Return ``text``, padded or cut to ``width`` columns."""
    while cells(text) > width:
        text = text[:-1]
    return text + " " * (width - cells(text))


def wrap(text: str, width: int) -> list[str]:
    """Return ``text`` in lines of at most ``width`` columns, broken at spaces or between wide characters."""
    lines = []
    for paragraph in text.splitlines():
        line = ""
        for piece in _PIECE.findall(paragraph):
            while cells(line + piece.rstrip()) > width:
                if line.strip():
                    lines.append(line.rstrip())
                    line = ""
                else:  # The piece is longer than a line.
                    cut = max(end for end in range(1, len(piece) + 1) if cells(piece[:end]) <= width or end == 1)
                    lines.append(piece[:cut])
                    piece = piece[cut:]
            line = line + piece if line else piece.lstrip()
        lines.append(line.rstrip())
    return lines or [""]


def width() -> int:
    """Return the number of columns to use."""
    return max(60, min(120, shutil.get_terminal_size().columns - 1))


class Row(NamedTuple):
    """A session in the table. The counts are tokens, except ``messages`` and ``version``."""

    name: str
    messages: int
    history: int
    summary: int
    rest: int
    version: int
    state: str

    @property
    def context(self) -> int:
        return self.summary + self.rest


_NAME, _FACT, _NUMBER = 16, 13, 13


class Table:
    """The sessions. Each has two bars on the same scale: its history, and the context that a model would receive."""

    def __init__(self, *, longest: int, budget: int) -> None:
        self.longest = longest
        self.budget = budget
        self._drawn = 0

    def draw(self, rows: Sequence[Row], footer: str) -> None:
        """Draw the table. On a terminal it replaces the previous table."""
        lines = [self._legend(), "", *(line for row in rows for line in (*self.row(row), "")), f" {footer}"]
        up, end = (f"\x1b[{self._drawn}A\r", "\x1b[K\n") if LIVE else ("", "\n")
        sys.stdout.write((up if self._drawn else "") + "".join(line + end for line in lines))
        sys.stdout.flush()
        self._drawn = len(lines)

    def _legend(self) -> str:
        bars = [
            (paint("█", "dim"), "history"),
            (paint("▓", "yellow"), "summary"),
            (paint("█", "green"), "messages"),
            (paint("│", "red"), f"budget of the context, {self.budget:,} tokens"),
        ]
        return " " + "   ".join(f"{bar} {name}" for bar, name in bars)

    def row(self, row: Row) -> Iterator[str]:
        """Return the two lines of a session."""
        room = width() - _NAME - _FACT - _NUMBER - 3
        longest_bar = room - 1  # One column is for the mark of the budget.
        per_cell = max(self.longest, self.budget) / longest_bar
        history = "█" * min(longest_bar, round(row.history / per_cell))
        yield self._line(
            paint(fit(row.name, _NAME), "bold"),
            f"{row.messages} messages",
            fit(paint(history, "dim"), room),
            f"{row.history:,} stored",
        )
        context = min(longest_bar, round(row.context / per_cell))
        summary = min(context, round(row.summary / per_cell))
        bar = paint("▓" * summary, "yellow") + paint("█" * (context - summary), "green")
        bar += " " * (round(self.budget / per_cell) - context) + paint("│", "red")
        yield self._line(
            paint(fit(row.state, _NAME), "yellow" if row.state.endswith("…") else "dim"),
            f"summary {row.version}" if row.version else "no summary",
            fit(bar, room),
            f"{row.context:,} sent".ljust(len(f"{row.context:,} stored")),
        )

    def _line(self, name: str, fact: str, bar: str, number: str) -> str:
        return f" {name}{fit(fact, _FACT)} {bar} {number.rjust(_NUMBER)}".rstrip()


class hidden_cursor:  # noqa: N801  in lower case, as the context managers of contextlib are
    """Hides the terminal's cursor, and shows it again at the end of the block."""

    def __enter__(self) -> None:
        if LIVE:
            sys.stdout.write("\x1b[?25l")

    def __exit__(self, *exc_info: object) -> None:
        if LIVE:
            sys.stdout.write("\x1b[?25h")
            sys.stdout.flush()
