"""What a command says when somebody interrupts it with Ctrl-C."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.core.management.base import CommandError

CONTINUES = "To continue, run the command again."


@contextlib.contextmanager
def explained(how_to_continue: str = CONTINUES) -> Iterator[None]:
    """Turn an interrupt into a CommandError that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(f"Interrupted. {how_to_continue}") from None
