"""The versions of a conversation's summary, each with the words that are new in it."""

from __future__ import annotations

from typing import Any

from django.utils.safestring import SafeString

from django_convmemory.admin import page
from django_convmemory.models import Session, Summary, SummaryQuerySet


def newest(session: Session) -> dict[str, Any]:
    """Return what the panel shows of the current version: its text, with the new words marked."""
    last = list(_finished(session).filter(version__lte=session.current_version).order_by("-version")[:2])
    if not last or last[0].version != session.current_version:
        return {"summary": "", "numbers": []}
    numbers = list(_finished(session).order_by("version").values_list("version", flat=True))
    return {"summary": _marked(last[0], last[1] if len(last) > 1 else None, gone=False), "numbers": numbers}


def version(session: Session, number: int) -> dict[str, Any] | None:
    """Return a version with the words that are new in it and those that are gone, or None if there is none."""
    rows = list(_finished(session).filter(version__lte=number).order_by("-version")[:2])
    if not rows or rows[0].version != number:
        return None
    return {"row": rows[0], "summary": _marked(rows[0], rows[1] if len(rows) > 1 else None, gone=True)}


def _finished(session: Session) -> SummaryQuerySet:
    """The versions that contexts have shown."""
    return Summary.objects.valid().filter(session=session, building=False, part_end=None)


def _marked(row: Summary, before: Summary | None, *, gone: bool) -> SafeString:
    """Return the text as HTML, compared with the version before it."""
    runs = page.words(before.text if before else "", row.text)
    return page.marked([run for run in runs if gone or run.kind != "gone"])
