"""Pages by cursor: as fast at the end of a long list as at its beginning, and none is shown twice."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError as InvalidValue
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request

from django_convmemory.api import conf


class Pages(CursorPagination):
    """DRF's cursors, over an ordering that the view has validated, with ``limit`` for the size of a page."""

    page_size_query_param = "limit"
    names = ("cursor", "limit")

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        self._column = queryset.model._meta.get_field(view.page_ordering[0].lstrip("-"))
        return super().paginate_queryset(queryset, request, view)

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        ordering: tuple[str, ...] = view.page_ordering
        return ordering

    def get_page_size(self, request: Request) -> int:
        return page_size(request.query_params.get("limit"))

    def decode_cursor(self, request: Request) -> Cursor | None:
        cursor = super().decode_cursor(request)
        if cursor is not None and cursor.position is not None:
            # DRF leaves it to the database to refuse what is no value of the column.
            try:
                position: Any = _read(self._column, str(cursor.position))
                cursor = cursor._replace(position=position)
            except (InvalidValue, ValueError, OverflowError):
                raise NotFound(self.invalid_cursor_message) from None
        return cursor


def _read(column: Any, text: str) -> str:
    """Return a cursor's position as the database takes it. Raises various errors for what is none."""
    value = column.to_python(text)
    if isinstance(value, dt.datetime):
        # A time without a zone is one that this site has written, which then has none.
        if (value.tzinfo is None) == settings.USE_TZ:
            raise ValueError("a time of another site")
        # What every database can compare.
        if not 1 < (value.astimezone(dt.UTC) if value.tzinfo else value).year < 9999:
            raise ValueError("no time of ours")
        value = value.astimezone(dt.UTC) if value.tzinfo else value
    return str(value)


def page_size(given: str | None) -> int:
    """Return how many entries a page has. Raises a 400 for what is no number, or too large a one."""
    limits = conf.limits()
    if given is None:
        return min(limits.page_size, limits.max_page_size)
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= limits.max_page_size):
        raise ValidationError({"limit": [f"The limit must be a whole number from 1 to {limits.max_page_size}."]})
    return int(given)
