"""The actions: those on the page of a session, and those of the list, which apply to several sessions at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext as _, gettext_lazy, ngettext, pgettext_lazy

from django_convmemory import models
from django_convmemory.admin.waiting import pauses
from django_convmemory.maintenance.transfer import exporting
from django_convmemory.memory import memories
from django_convmemory.store import transactions


class Work(NamedTuple):
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
    if memories[row.alias].redact(row, position).in_flight:
        return _(
            "The message was redacted. A worker was folding the session, so a request with the message may still reach "
            "the provider of the model. Its answer is not stored."
        )
    return _("The message was redacted.")


# The actions on the whole session.
WORK: dict[str, Work] = {
    "compact": Work(gettext_lazy("Compact now"), "change", _compact),
    "rebuild": Work(gettext_lazy("Rebuild the summary"), "change", _rebuild),
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


# Of the list.


# The largest number of sessions that an action takes.
MAX_SESSIONS = 1000


@admin.action(permissions=["change"], description=gettext_lazy("Compact now"))
def compact(modeladmin: admin.ModelAdmin[Any], request: HttpRequest, queryset: Any) -> None:
    """Ask workers to compact the sessions, even those whose next attempt would only be made later.

    The first session of a paused alias is compacted despite the pause. If the model answers, the worker sends the
    others that are due. If it does not, it is called once, not a thousand times.
    """
    if _is_for_all(modeladmin, request):
        return
    asked, refused, waiting = [], 0, 0
    sessions = list(queryset[:MAX_SESSIONS])
    found = pauses(models.Session.objects.using(queryset.db), {session.alias for session in sessions})
    paused = {pause.state.alias: pause for pause in found}
    untried = set(paused)
    for session in sessions:
        is_first = session.alias in untried
        pause = paused.get(session.alias)
        if pause is not None and not is_first and not pause.stands_in_for(session):
            waiting += 1
        elif session.alias in memories and memories[session.alias].request_compaction(session, despite_pause=is_first):
            asked.append(session)
            untried.discard(session.alias)
        else:
            refused += 1
    if asked:
        LogEntry.objects.log_actions(request.user.pk, asked, CHANGE, change_message=_("Compact now"))  # type: ignore[arg-type]
        text = ngettext(
            "A worker was asked to compact %(n)d session.", "Workers were asked to compact %(n)d sessions.", len(asked)
        )
        modeladmin.message_user(request, text % {"n": len(asked)}, messages.SUCCESS)
    if waiting:
        text = ngettext(
            "%(n)d session waits, because its memory is paused: the model is tried with one session first. If it "
            "answers, workers compact the other one too.",
            "%(n)d sessions wait, because their memory is paused: the model is tried with one session first. If it "
            "answers, workers compact the others too.",
            waiting,
        )
        modeladmin.message_user(request, text % {"n": waiting}, messages.WARNING)
    if refused:
        text = ngettext(
            "No worker could be asked to compact %(n)d session. Check that the broker can be reached, and that the "
            "session’s alias is in CONVMEMORY. The next sweep folds the session if it is due.",
            "No worker could be asked to compact %(n)d sessions. Check that the broker can be reached, and that the "
            "sessions’ aliases are in CONVMEMORY. The next sweep folds those that are due.",
            refused,
        )
        modeladmin.message_user(request, text % {"n": refused}, messages.ERROR)


@admin.action(permissions=["view"], description=gettext_lazy("Export as JSONL"))
def export(modeladmin: admin.ModelAdmin[Any], request: HttpRequest, queryset: Any) -> StreamingHttpResponse | None:
    """Send the sessions as records, one a line."""
    if _is_for_all(modeladmin, request):
        return None
    session_ids = list(queryset.values_list("pk", flat=True)[:MAX_SESSIONS])
    return download(models.Session.objects.using(queryset.db).filter(pk__in=session_ids), "sessions.jsonl")


def download(sessions: models.SessionQuerySet, filename: str) -> StreamingHttpResponse:
    """Return a file with the records of ``sessions``, read while it is sent."""
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    return StreamingHttpResponse(exporting.records(sessions), content_type="application/jsonl", headers=headers)


def _is_for_all(modeladmin: admin.ModelAdmin[Any], request: HttpRequest) -> bool:
    """Refuse an action on all sessions of all pages, which are not counted."""
    if request.POST.get("select_across", "0") in ("", "0"):
        return False
    text = _("Select the sessions page by page. An action cannot apply to all pages, because sessions are not counted.")
    modeladmin.message_user(request, text, messages.ERROR)
    return True
