"""The download of the calls of models, as a table of comma-separated values."""

from __future__ import annotations

import csv
import dataclasses
import io
import string
from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import StreamingHttpResponse

from django_convmemory import clock, models

# The number of calls that are read at once.
_BATCH = 1000
# A visitor's id is a secret. So much of it tells visitors apart.
_VISITOR_LENGTH = 12
# A spreadsheet takes a text that begins with one of these for a formula. Some do so for the wide forms, too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# Some programs skip these before a formula.
_SKIPPED = f"{string.whitespace}\"'\xa0\u200b\u3000\ufeff"
COLUMNS = (
    *("started_at", "alias", "session", "public_id", "key", "owner", "visitor"),
    *("model", "outcome", "error", "version", "first_position", "last_position"),
    *("due_seconds", "duration_seconds", "prompt_tokens", "cached_tokens", "completion_tokens", "cost"),
)
# The first of them are not columns of the call.
_SESSION_COLUMNS = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Download:
    """The calls of ``attempts`` for one of ``sessions``.

    With ``deleted``, it has also the calls whose session does not exist any more.
    """

    attempts: QuerySet[models.Attempt]
    sessions: QuerySet[Any]
    deleted: bool

    def response(self, aliases: Iterable[str], filename: str) -> StreamingHttpResponse:
        """Return a file with the calls of ``aliases``, read while it is sent."""
        return StreamingHttpResponse(
            self._texts(aliases),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{filename}"'},
        )

    def _texts(self, aliases: Iterable[str]) -> Iterator[str]:
        yield _written([COLUMNS])
        for alias in aliases:
            for page in self._pages(alias):
                yield _written(self._lines(page))

    def _pages(self, alias: str) -> Iterator[list[models.Attempt]]:
        """Yield the calls of an alias, oldest first, a page at a time.

        Page by page: MariaDB's driver holds all rows of a query in memory, and a cursor would hold a transaction open.
        """
        rows = self.attempts.filter(alias=alias).order_by("started_at", "pk")
        page = list(rows[:_BATCH])
        while page:
            yield page
            last = page[-1]
            after = Q(started_at__gt=last.started_at) | Q(pk__gt=last.pk)
            page = list(rows.filter(after, started_at__gte=last.started_at)[:_BATCH])

    def _lines(self, page: list[models.Attempt]) -> Iterator[list[Any]]:
        # By the ids of the page, not with a join: the database might read all sessions.
        ids = {attempt.session_id for attempt in page if attempt.session_id is not None}
        owner = f"owner__{get_user_model().USERNAME_FIELD}"
        rows = self.sessions.filter(pk__in=ids).order_by().values_list("pk", "public_id", "key", owner, "visitor")
        sessions = {session_id: columns for session_id, *columns in rows}
        for attempt in page:
            columns = sessions.get(attempt.session_id)
            if columns is None and not (self.deleted and attempt.session_id is None):
                continue
            public_id, key, owner_name, visitor = columns or ("", "", "", "")
            cells = [attempt.alias, attempt.session_id, public_id, key, owner_name, visitor[:_VISITOR_LENGTH]]
            cells += [getattr(attempt, name) for name in COLUMNS[_SESSION_COLUMNS:]]
            yield [clock.aware(attempt.started_at, self.attempts.db).isoformat(), *map(_defused, cells)]


def _defused(value: Any) -> Any:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def _is_formula(text: str) -> bool:
    return text.startswith(_FORMULA) or text.lstrip(_SKIPPED).startswith(_FORMULA)


def _written(rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()
