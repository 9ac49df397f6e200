"""The actions on the page of a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _, gettext_lazy, pgettext_lazy

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.store import transactions


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """An action: its label, the permission it takes, what it does, and the warning that is confirmed first, if any.

    ``permission`` is "change", "delete" or "redact". ``run`` takes the session and the other arguments of the address.
    It returns the notice to show, or None if no worker could be asked. The label names these arguments as ``%(name)s``.
    With ``needs_memory`` the session's alias must be in the settings.
    """

    label: Any
    permission: str
    run: Callable[..., str | None]
    warning: Any = None
    needs_memory: bool = True
    makes_version: bool = False


def _compact(row: models.Session) -> str | None:
    memory = memories[row.alias]
    if row.due_since is None and not row.is_over(memory.threshold):
        return _("Nothing is due in this session, so no worker was asked.")
    holds = memory.pause.holds
    if not memory.request_compaction(row, despite_pause=True):
        return None
    if holds:
        return _(
            "The memory is paused. A worker was asked to compact the session all the same. If the model answers it, "
            "the pause ends."
        )
    return _("A worker was asked to compact the session.")


def _rebuild(row: models.Session) -> str | None:
    return _("A worker was asked to rebuild the summary.") if memories[row.alias].request_rebuild(row) else None


def _clear(row: models.Session) -> str | None:
    memories[row.alias].clear(row)
    return _("All messages and summaries were deleted.")


def _delete(row: models.Session) -> str | None:
    # Not through the memory: the session's alias may be gone from the settings.
    rows = models.Session.objects.using(row._state.db).filter(pk=row.pk)
    transactions.run(rows.db, rows.delete)
    return _("The session was deleted.")


def _redact(row: models.Session, position: int) -> str | None:
    memories[row.alias].redact(row, position)
    return _("The message was redacted.")


# The actions on the whole session.
WORK: dict[str, Work] = {
    "compact": Work(gettext_lazy("Compact now"), "change", _compact),
    "rebuild": Work(gettext_lazy("Rebuild the summary"), "change", _rebuild, makes_version=True),
    "clear": Work(
        pgettext_lazy("a session", "Clear"),
        "delete",
        _clear,
        gettext_lazy("All messages and summaries of this session are deleted for good. The session itself stays."),
    ),
    "delete": Work(
        pgettext_lazy("a session", "Delete"),
        "delete",
        _delete,
        gettext_lazy("The session is deleted for good, with all its messages and summaries."),
        needs_memory=False,
    ),
}
REDACT = Work(
    gettext_lazy("Redact the message at position %(position)s"),
    "redact",
    _redact,
    gettext_lazy(
        "The content of this message is deleted for good, here and in forks of the session. Every version of the "
        "summary that covers the message is emptied. The messages after the last version before it are folded again."
    ),
)
