"""How far a command is: a bar on a terminal, and lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from django.core.management.base import OutputWrapper

# Sessions after which a line is written.
_EACH = 1000


def counted(number: int, noun: str) -> str:
    """Return the number of things: ``1 session``, ``2 sessions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return ``text`` as a terminal may show it: nothing in it moves the cursor, or looks like a line of ours."""
    return "".join(character if character.isprintable() else "?" for character in text)


class Progress:
    """Counts sessions, and shows on ``stream`` how many there are so far.

    ``done`` says what was done to them ("imported"), ``total`` how many there will be, where that is known. What is not
    ``shown`` is counted only. With ``bar=False`` lines are written on a terminal too: where the command's own output
    goes there.
    """

    def __init__(
        self, stream: OutputWrapper, done: str, *, total: int | None = None, shown: bool = True, bar: bool = True
    ) -> None:
        self.stream = stream
        self.done = done
        self.total = total
        self.shown = shown
        self.with_bar = bar and stream.isatty()
        self.count = 0
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self.shown and self.with_bar:
            try:
                from tqdm import tqdm  # type: ignore[import-untyped]
            except ImportError:  # the extra "progress"
                return self
            self._bar = tqdm(file=_Terminal(self.stream), total=self.total, desc=self.done, unit=" sessions")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, sessions: int = 1) -> None:
        """Count ``sessions`` more."""
        before, self.count = self.count, self.count + sessions
        if self._bar is not None:
            self._bar.update(sessions)
        elif self.shown and before // _EACH < self.count // _EACH:
            self.stream.write(f"{counted(self.count, 'session')} {self.done} so far", str)
            self.stream.flush()


class _Terminal:
    """A command's stream for tqdm: Django's wrapper would end each part of a line with a newline."""

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> None:
        self._stream.write(text, str, ending="")

    def flush(self) -> None:
        self._stream.flush()
