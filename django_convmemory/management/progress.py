"""What the commands print while they work, and when somebody interrupts them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TypeVar

from django.core.management.base import CommandError
from django.db import reset_queries

T = TypeVar("T")


def progress(
    items: Iterable[T], verb: str, *, shown: bool, total: int | None = None, unit: str = "sessions"
) -> Iterator[T]:
    """Yield ``items``, and show a bar if ``shown``, on a terminal, if tqdm is installed (the extra "progress").

    ``verb`` says what is done to the items ("imported"). ``total`` is how many there will be, if that is known.
    """
    with contextlib.suppress(ImportError):
        from tqdm import tqdm  # type: ignore[import-untyped]

        # The bar is on standard error. With None, tqdm shows it only on a terminal.
        items = tqdm(items, desc=verb, unit=f" {unit}", total=total, disable=None if shown else True)
    for item in items:
        yield item
        reset_queries()  # With DEBUG, Django keeps every query.


def above_bar() -> contextlib.AbstractContextManager[object]:
    """Surrounds what is printed while :func:`progress` may show a bar, so that both do not stand on one line."""
    with contextlib.suppress(ImportError):
        from tqdm import tqdm

        manager: contextlib.AbstractContextManager[object] = tqdm.external_write_mode()
        return manager
    return contextlib.nullcontext()


@contextlib.contextmanager
def interruptible(how_to_continue: str = "To continue, run the command again.") -> Iterator[None]:
    """Turn an interrupt with Ctrl-C into a CommandError that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(f"Interrupted. {how_to_continue}") from None


@contextlib.contextmanager
def receiving(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let ``handler`` receive the signals ``numbers`` meanwhile. Only the main thread can; in another, none comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 session``, ``2 sessions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return ``text`` with "?" for characters that could move a terminal's cursor or start a forged line."""
    return "".join(character if character.isprintable() else "?" for character in text)
