"""Explains what a model was sent: what became of each message in the current context.

The explanation is read off what ``load`` returns, so that the two cannot differ.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from django_convmemory import models
from django_convmemory.context.assembly import Context
from django_convmemory.messages import PINNED_ROLES
from django_convmemory.operations.handles import ConversationMemory


class Disposition(enum.StrEnum):
    """What became of a message in a context: shown as it is, folded into the summary, or omitted."""

    PINNED = "pinned"
    VERBATIM = "verbatim"
    FOLDED = "folded"
    OMITTED = "omitted"


class Explained(NamedTuple):
    """A message, what became of it, and the version of the summary that folded it, or None if none did."""

    position: int
    role: str
    tokens: int
    disposition: Disposition
    version: int | None = None


def explain(
    memory: ConversationMemory, session: models.Session, context: Context, *, before: int | None = None, limit: int = 50
) -> list[Explained]:
    """Return, in order, what became of the last ``limit`` messages, or of those before the position ``before``.

    ``context`` is what ``memory.load(session)`` returned. It takes two statements, however long the session is.
    """
    using = memory.store.using  # type: ignore[union-attr]
    messages = models.Message.objects.using(using).filter(session=session)
    if before is not None:
        messages = messages.filter(position__lt=before)
    # By both columns of the key: a database that orders by the position alone may walk the whole table.
    newest_first = messages.order_by("-session_id", "-position").values_list("position", "role", "tokens")
    rows = list(newest_first[:limit])[::-1]
    if not rows:
        return []
    return explained(rows, context, versions(session, rows[0][0], rows[-1][0], using))


def versions(session: models.Session, first: int, last: int, using: str) -> list[tuple[int, int]]:
    """Return the versions that folded messages from position ``first`` to ``last``: last position and version of each.

    Where a rebuild has made a version again, the newer one counts: the old one no longer stands for anything.
    """
    rows = models.Summary.objects.using(using).filter(session=session, version__lte=session.current_version)
    rows = rows.filter(building=False, part_end__isnull=True, last_position__gte=first, first_position__lte=last)
    newest_first = rows.valid().order_by("-version").values_list("first_position", "last_position", "version")
    return [(line_last, version) for _, line_last, version in sorted(current_line(newest_first))]


def current_line(newest_first: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return those of the valid versions (first position, last position, version) that the current summary is made of.

    They come in descending order of their numbers. Each covers messages that no newer one covers.
    """
    line: list[tuple[int, int, int]] = []
    for first, last, version in newest_first:
        if not line or last < line[-1][0]:
            line.append((first, last, version))
    return line


def explained(
    messages: Sequence[tuple[int, str, int]], context: Context, versions: Sequence[tuple[int, int]]
) -> list[Explained]:
    """Return what became of ``messages`` (position, role and tokens of each), which ``versions`` folded."""
    part_names = {part.position: part.name for part in context.parts if part.position is not None}
    ends = [end for end, _ in versions]

    def disposition(position: int, role: str) -> tuple[Any, ...]:
        if position in part_names:
            return (Disposition.PINNED if part_names[position] == "pinned" else Disposition.VERBATIM,)
        if position > context.covered or role in PINNED_ROLES:
            return (Disposition.OMITTED,)
        index = bisect.bisect_left(ends, position)
        return (Disposition.FOLDED, versions[index][1] if index < len(ends) else None)

    return [Explained(position, role, tokens, *disposition(position, role)) for position, role, tokens in messages]
