"""The progress of a command: a bar on a terminal, and lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from django.core.management.base import OutputWrapper

# A line is written after this many sessions.
_INTERVAL = 1000


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 session``, ``2 sessions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return ``text`` with "?" for characters that could move a terminal's cursor or start a forged line."""
    return "".join(character if character.isprintable() else "?" for character in text)


class Progress:
    """Counts sessions, and shows on ``stream`` how many were counted so far.

    ``verb`` says what was done to them ("imported"). ``total`` is how many there will be, if that is known. With
    ``verbose=False`` sessions are counted only. With ``bar=False`` a terminal gets lines too: use it if the command's
    own output goes to the terminal.
    """

    def __init__(
        self, stream: OutputWrapper, verb: str, *, total: int | None = None, verbose: bool = True, bar: bool = True
    ) -> None:
        self.stream = stream
        self.verb = verb
        self.total = total
        self.verbose = verbose
        self.with_bar = bar and stream.isatty()
        self.count = 0
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self.verbose and self.with_bar:
            try:
                from tqdm import tqdm  # type: ignore[import-untyped]
            except ImportError:  # tqdm comes with the extra "progress".
                return self
            self._bar = tqdm(file=_Terminal(self.stream), total=self.total, desc=self.verb, unit=" sessions")
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, sessions: int = 1) -> None:
        """Count this many more sessions."""
        before, self.count = self.count, self.count + sessions
        if self._bar is not None:
            self._bar.update(sessions)
        elif self.verbose and before // _INTERVAL < self.count // _INTERVAL:
            self.stream.write(f"{counted(self.count, 'session')} {self.verb} so far", str)
            self.stream.flush()


class _Terminal:
    """A command's stream for tqdm. Django's wrapper would end each part of a line with a newline."""

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> None:
        self._stream.write(text, str, ending="")

    def flush(self) -> None:
        self._stream.flush()
