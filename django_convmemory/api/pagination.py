"""Pages by cursor. The last page of a long list costs as much as its first, and no entry appears twice.

The pages of a search are another kind: a ranking has no column by which a page could begin.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from rest_framework.exceptions import NotFound
from rest_framework.pagination import BasePagination, Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param

from django_convmemory.api import cursors
from django_convmemory.core.hits import Hit, Hits
from django_convmemory.core.search import MAX_HITS
from django_convmemory.messages import dumps


class Pages(CursorPagination):
    """DRF's cursors, sealed for the list and its order. The view sets ``ordering`` and ``page_size``.

    DRF gives the position of a cursor to the database as it is. If it is not a value of the first column of the
    ordering, the database raises an error, and the response would be a 500. Such a cursor may be of a site with other
    settings.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        self._column = queryset.model._meta.get_field(self.ordering[0].lstrip("-"))
        self._salt = f"{queryset.model._meta.label_lower}.{','.join(self.ordering)}"
        return super().paginate_queryset(queryset, request, view)

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        page = super().get_paginated_response_schema(schema)
        return page | {"required": list(page["properties"])}  # "next" and "previous" may be null, and are always there.

    def encode_cursor(self, cursor: Cursor) -> str:
        position: Any = cursor.position
        text = dumps([cursor.offset, bool(cursor.reverse), None if position is None else str(position)])
        address: Any = self.base_url
        return str(replace_query_param(address, self.cursor_query_param, cursors.seal(text, self._salt)))

    def decode_cursor(self, request: Request) -> Cursor | None:
        encoded = request.query_params.get(self.cursor_query_param)
        if not encoded:
            return None
        try:
            offset, reverse, text = json.loads(cursors.unseal(encoded, self._salt))
            position: Any = None if text is None else _column_value(self._column, text)
        except (ValidationError, ValueError, OverflowError):
            raise NotFound(self.invalid_cursor_message) from None
        return Cursor(offset=offset, reverse=reverse, position=position)


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


_HITS = "hits"


def _page_at(address: str, offset: int) -> str:
    return str(replace_query_param(address, "cursor", cursors.seal(str(offset), _HITS)))


class HitPages(BasePagination):
    """Pages of the best hits of a search, :data:`MAX_HITS` hits at most. A cursor is the number of hits before a page.

    Each page is searched for anew, so a message that is stored in between may move a hit to the next page.
    """

    def page(self, request: Request, find: Callable[[int, int], Hits], size: int) -> list[Hit]:
        """Return at most ``size`` hits from where the request's cursor says.

        ``find`` returns hits from an offset on, as many as a limit says. Raises a 404 for a cursor that is not valid.
        """
        cursor = request.query_params.get("cursor")
        try:
            offset = int(cursors.unseal(cursor, _HITS)) if cursor else 0
        except ValueError:
            raise NotFound("Invalid cursor") from None
        left = MAX_HITS - offset
        # One more than is shown, to know whether there is a next page.
        hits = find(offset, min(size + 1, left))
        address = request.build_absolute_uri()
        self._next = _page_at(address, offset + size) if size < min(len(hits), left) else None
        self._previous = None
        if offset > size:
            self._previous = _page_at(address, offset - size)
        elif offset:
            self._previous = remove_query_param(address, "cursor")
        self._complete = hits.complete
        return hits[:size]

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"next": self._next, "previous": self._previous, "complete": self._complete, "results": data})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        address = {"type": "string", "nullable": True, "format": "uri"}
        complete = {
            "type": "boolean",
            "description": "False if messages were left out, because there are too many or they are not indexed yet.",
        }
        properties = {"next": address, "previous": address, "complete": complete, "results": schema}
        return {"type": "object", "required": list(properties), "properties": properties}
