"""Pages by cursor. The last page of a long list costs as much as its first, and no entry appears twice."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request


class Pages(CursorPagination):
    """DRF's cursors, with a check. The view sets ``ordering`` and ``page_size``.

    DRF gives the position of a cursor to the database as it is. If it is not a value of the first column of the
    ordering, the database raises an error, and the response would be a 500.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        self._column = queryset.model._meta.get_field(self.ordering[0].lstrip("-"))
        return super().paginate_queryset(queryset, request, view)

    def decode_cursor(self, request: Request) -> Cursor | None:
        cursor = super().decode_cursor(request)
        if cursor is None or cursor.position is None:
            return cursor
        try:
            position: Any = _column_value(self._column, str(cursor.position))
            return cursor._replace(position=position)
        except (ValidationError, ValueError, OverflowError):
            raise NotFound(self.invalid_cursor_message) from None


def _column_value(column: Any, text: str) -> str:
    """Return a cursor's position as the database takes it.

    Raises ValidationError, ValueError or OverflowError for a position that is not a value of the column.
    """
    value = column.to_python(text)
    if isinstance(value, dt.datetime):
        # The site writes a time with a zone if USE_TZ is set, and without one otherwise.
        if (value.tzinfo is None) == settings.USE_TZ:
            raise ValueError("a time of another site")
        value = value.astimezone(dt.UTC) if value.tzinfo else value
        # Every database can compare the years between.
        if not 1 < value.year < 9999:
            raise ValueError("a time out of range")
    return str(value)
