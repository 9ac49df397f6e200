"""What can be done with several sessions at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from django_convmemory import models
from django_convmemory.maintenance.transfer import exporting
from django_convmemory.memory import memories

# Sessions that are taken at once.
MOST = 1000


@admin.action(permissions=["change"], description=gettext_lazy("Compact now"))
def compact(modeladmin: admin.ModelAdmin[Any], request: HttpRequest, queryset: Any) -> None:
    """Have what is due in the sessions folded, also where an attempt failed and the next one would be made later."""
    if _all(modeladmin, request):
        return
    asked, refused = [], 0
    for session in queryset[:MOST]:
        known = session.alias in memories
        if known and memories[session.alias].session(session).request_compaction():
            asked.append(session)
        else:
            refused += 1
    if asked:
        note = str(gettext_lazy("Compact now"))
        LogEntry.objects.log_actions(request.user.pk, asked, CHANGE, change_message=note)  # type: ignore[arg-type]
        text = ngettext("A worker was asked for %(n)d session.", "Workers were asked for %(n)d sessions.", len(asked))
        modeladmin.message_user(request, text % {"n": len(asked)}, messages.SUCCESS)
    if refused:
        text = ngettext(
            "Nobody could be told of %(n)d session; if it is due, the next sweep folds it.",
            "Nobody could be told of %(n)d sessions; those that are due are folded by the next sweep.",
            refused,
        )
        modeladmin.message_user(request, text % {"n": refused}, messages.ERROR)


@admin.action(permissions=["view"], description=gettext_lazy("Export as JSONL"))
def export(modeladmin: admin.ModelAdmin[Any], request: HttpRequest, queryset: Any) -> StreamingHttpResponse | None:
    """Send the sessions as records, a line each."""
    if _all(modeladmin, request):
        return None
    chosen = list(queryset.values_list("pk", flat=True)[:MOST])
    rows = models.Session.objects.using(queryset.db).filter(pk__in=chosen)
    response = StreamingHttpResponse(_records(exporting.heads(rows), queryset.db), content_type="application/jsonl")
    response["Content-Disposition"] = 'attachment; filename="sessions.jsonl"'
    return response


def _all(modeladmin: admin.ModelAdmin[Any], request: HttpRequest) -> bool:
    """Refuse what is meant for all that there are, which nobody has counted."""
    if request.POST.get("select_across", "0") in ("", "0"):
        return False
    text = _("Choose the sessions by hand: how many there are is not known here.")
    modeladmin.message_user(request, text, messages.ERROR)
    return True


def _records(heads: Iterable[Any], using: str) -> Iterator[str]:
    for head in heads:
        yield from exporting.pieces(head, using)
