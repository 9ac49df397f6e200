"""A conversation as a text for models. A turn begins with a label that no text inside a turn can imitate."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
from collections.abc import Sequence
from typing import Any

from django_convmemory.messages import ChatMessage, spoken

_BRACKETS = str.maketrans("[]", "()")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def of(turns: Sequence[ChatMessage], days: Sequence[dt.date | None]) -> str:
    """Return the turns, with a line for the day before the first one and wherever the day changes."""
    lines = []
    last = None
    for message, date in zip(turns, days, strict=True):
        if date is not None and date != last:
            lines.append(f"[day] {date.isoformat()} {_WEEKDAYS[date.weekday()]}")
            last = date
        lines.append(turn(message))
    return "\n".join(lines)


def turn(message: ChatMessage) -> str:
    """Return a message as a turn of the transcript: ``[user] text``. Further lines are indented."""
    text = spoken(message) or "[nothing]"
    # Without brackets, a name cannot close the label and open another one.
    speaker = message.role if not message.name else f"{message.role} {message.name.translate(_BRACKETS)}"
    return f"[{' '.join(speaker.split())}] " + "\n    ".join(text.splitlines() or [""])


def quote(stored: Any, text: str, role: str, name: str | None, zone: dt.tzinfo) -> str:
    """Return ``text`` as a quote of a stored message or a hit: ``12, 2026-03-01 [user] text``."""
    said = turn(ChatMessage.restore(role, text, "chat", name=name))
    return f"{stored.position}, {day(stored.created_at, zone)} {said}"


def day(moment: dt.datetime | None, zone: dt.tzinfo) -> dt.date | None:
    """Return the day of ``moment`` in ``zone``. A naive time is taken as it is."""
    if moment is None:
        return None
    if moment.tzinfo is not None:
        with contextlib.suppress(OverflowError):  # The first or the last day that a datetime can have.
            moment = moment.astimezone(zone)
    return moment.date()


def fence(*texts: str) -> str:
    """Return a word that occurs in none of ``texts``. It depends on them only."""
    seed = "\x00".join(texts)
    while True:
        word = "quoted-" + hashlib.sha256(seed.encode()).hexdigest()[:12]
        if not any(word in text for text in texts):
            return word
        seed += word
