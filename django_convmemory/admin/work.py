"""What staff can have done to a session, and what it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _, gettext_lazy

from django_convmemory import models
from django_convmemory.conversation import SessionHandle
from django_convmemory.stores import transactions


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """An action: what it is called, the permissions it takes, what it does, and what is asked before, if anything.

    ``run`` returns what to tell the person, and None where nothing could be done.
    """

    label: Any
    permissions: tuple[str, ...]
    run: Callable[[SessionHandle, models.Session], str | None]
    asks: Any = None


def _compact(session: SessionHandle, row: models.Session) -> str | None:
    return _("A worker was asked to fold it.") if session.request_compaction() else None


def _rebuild(session: SessionHandle, row: models.Session) -> str | None:
    return _("A worker was asked to make the summary anew.") if session.request_rebuild() else None


def _clear(session: SessionHandle, row: models.Session) -> str | None:
    session.clear()
    return _("All messages and summaries were deleted.")


def _delete(session: SessionHandle, row: models.Session) -> str | None:
    transactions.run(row._state.db or "default", row.delete)
    return _("The session was deleted.")


WORK: dict[str, Work] = {
    "compact": Work(gettext_lazy("Compact now"), ("change",), _compact),
    "rebuild": Work(gettext_lazy("Rebuild the summary"), ("change",), _rebuild),
    "clear": Work(
        gettext_lazy("Clear"),
        ("delete",),
        _clear,
        gettext_lazy("All messages and summaries of this session are deleted, for good. The session itself stays."),
    ),
    "delete": Work(
        gettext_lazy("Delete"),
        ("delete",),
        _delete,
        gettext_lazy("The session is deleted with all messages and summaries, for good."),
    ),
}
REDACT_ASKS = gettext_lazy(
    "What this message says is deleted, for good, here and in copies of the session, and every summary that reaches it "
    "is emptied. What came after it is folded again."
)
