"""The actions of the list, which apply to several sessions at once."""

from __future__ import annotations

import itertools
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from django_convmemory import models
from django_convmemory.admin.pauses import pauses
from django_convmemory.maintenance.transfer import exporting
from django_convmemory.memory import memories

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
        despite_pause = session.alias in untried
        pause = paused.get(session.alias)
        if pause is not None and not despite_pause and not pause.stands_in_for(session):
            waiting += 1
        elif session.alias in memories and memories[session.alias].session(session).request_compaction(
            despite_pause=despite_pause
        ):
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
    records = (exporting.pieces(head, sessions.db) for head in exporting.heads(sessions))
    return StreamingHttpResponse(
        itertools.chain.from_iterable(records),
        content_type="application/jsonl",
        headers={"Content-Disposition": f'attachment; filename="{filename}"'},
    )


def _is_for_all(modeladmin: admin.ModelAdmin[Any], request: HttpRequest) -> bool:
    """Refuse an action on all sessions of all pages, which are not counted."""
    if request.POST.get("select_across", "0") in ("", "0"):
        return False
    text = _("Select the sessions page by page. An action cannot apply to all pages, because sessions are not counted.")
    modeladmin.message_user(request, text, messages.ERROR)
    return True
