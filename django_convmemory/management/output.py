"""What the commands print, also when somebody interrupts them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.core.management.base import CommandError


@contextlib.contextmanager
def interruptible(how_to_continue: str = "To continue, run the command again.") -> Iterator[None]:
    """Turn an interrupt with Ctrl-C into a CommandError that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(f"Interrupted. {how_to_continue}") from None


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 session``, ``2 sessions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return ``text`` with "?" for characters that could move a terminal's cursor or start a forged line."""
    return "".join(character if character.isprintable() else "?" for character in text)
