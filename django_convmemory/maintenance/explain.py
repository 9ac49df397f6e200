"""Why a model was told what it was told: what became of each message in the context of now.

It reads off what ``load`` returns, so that it cannot say anything else.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Subquery

from django_convmemory import models
from django_convmemory.conversation import ConversationMemory
from django_convmemory.core.context import Context
from django_convmemory.messages import PINNED_ROLES


class Disposition(enum.StrEnum):
    """What became of a message in a context."""

    PINNED = "pinned"
    VERBATIM = "verbatim"
    FOLDED = "folded"
    OMITTED = "omitted"


class Explained(NamedTuple):
    """A message, what became of it, and the version of the summary that folded it; None for one that is not folded."""

    position: int
    role: str
    tokens: int
    disposition: Disposition
    version: int | None = None


def explain(
    memory: ConversationMemory, session: models.Session, context: Context, *, before: int | None = None, limit: int = 50
) -> list[Explained]:
    """Say of the last ``limit`` messages, or of those before the position ``before``, what became of them.

    ``context`` is what ``memory.load(session)`` returned. In order; two statements, however long the session is.
    """
    using = memory.store.using  # type: ignore[attr-defined]
    rows = models.Message.objects.using(using).filter(session=session)
    if before is not None:
        rows = rows.filter(position__lt=before)
    # By both columns of the key: by the position alone the whole table may be walked.
    page = rows.order_by("-session_id", "-position").values_list("position", "role", "tokens")[:limit]
    found = list(page)[::-1]
    if not found:
        return []
    return explained(found, context, versions(session, found[0][0], found[-1][0], using))


def versions(session: models.Session, first: int, last: int, using: str) -> list[tuple[int, int]]:
    """Return the versions that folded anything from ``first`` to ``last``: the last position and the number of each.

    Of the line of the current one: where the summary was made anew, the versions before that stand for nothing now.
    """
    rows = models.Summary.objects.using(using).filter(session=session, version__lte=session.current_version)
    rows = rows.filter(building=False).valid()
    begins = rows.filter(parent_version=None).order_by("-version").values("version")[:1]
    line = rows.filter(version__gte=Subquery(begins), last_position__gte=first, first_position__lte=last)
    return list(line.order_by("last_position").values_list("last_position", "version"))


def explained(
    rows: Sequence[tuple[int, str, int]], context: Context, versions: Sequence[tuple[int, int]]
) -> list[Explained]:
    """Say of messages (position, role and tokens of each) what became of them, given the versions that fold them."""
    shown = {part.position: part.name for part in context.parts if part.position is not None}
    ends = [end for end, _ in versions]

    def disposition(position: int, role: str) -> tuple[Any, ...]:
        if position in shown:
            return (Disposition.PINNED if shown[position] == "pinned" else Disposition.VERBATIM,)
        if position > context.covered or role in PINNED_ROLES:
            return (Disposition.OMITTED,)
        at = bisect.bisect_left(ends, position)
        return (Disposition.FOLDED, versions[at][1] if at < len(ends) else None)

    return [Explained(position, role, tokens, *disposition(position, role)) for position, role, tokens in rows]
