"""Pages by cursor. The last page of a long list costs as much as its first, and no entry appears twice.

The pages of a search are another kind: a ranking has no column by which a page could begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.signing import BadSignature, Signer
from rest_framework.exceptions import NotFound
from rest_framework.pagination import BasePagination, Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from django_convmemory.search.hits import Hit, Hits
from django_convmemory.search.searching import MAX_HITS


class Pages(CursorPagination):
    """DRF's cursors, signed for the address and the order. The view sets ``ordering`` and ``page_size``.

    DRF gives the position of a cursor to the database as it is. If a client could make one, a position that is not a
    value of the column would be an error of the database. The signature has no time, so equal pages have equal cursors,
    and a list keeps its ``ETag``.
    """

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        # A time in a cursor has a zone or none, as USE_TZ says.
        self._signer = _signer(request, *self.ordering, str(settings.USE_TZ))
        return super().paginate_queryset(queryset, request, view)

    def encode_cursor(self, cursor: Cursor) -> str:
        address: Any = self.base_url
        return replace_query_param(address, self.cursor_query_param, self._signer.sign_object(cursor))

    def decode_cursor(self, request: Request) -> Cursor | None:
        fields = _read_cursor(request, self._signer)
        return fields and Cursor(*fields)


def _signer(request: Request, *names: str) -> Signer:
    return Signer(salt=".".join(["convmemory.cursors", request.path, *names]))


def _read_cursor(request: Request, signer: Signer) -> Any:
    """Return what was signed as the request's cursor, or None without one. Raises a 404."""
    signed = request.query_params.get("cursor")
    try:
        return signer.unsign_object(signed) if signed else None
    except BadSignature:
        raise NotFound(CursorPagination.invalid_cursor_message) from None


class HitPages(BasePagination):
    """Pages of the best hits of a search, :data:`MAX_HITS` hits at most. A cursor is the number of hits before a page.

    Each page is searched for anew, so a message that is stored in between may move a hit to the next page.
    """

    def page(self, request: Request, find: Callable[..., Hits], size: int) -> list[Hit]:
        """Return at most ``size`` hits from where the request's cursor says.

        ``find`` returns hits from its ``offset`` on, as many as its ``limit`` says. Raises a 404 for a cursor that is
        not valid.
        """
        offset = _read_cursor(request, _signer(request)) or 0
        left = MAX_HITS - offset
        # One more than is shown, to know whether there is a next page.
        hits = find(offset=offset, limit=min(size + 1, left))

        def page_at(offset: int) -> str:
            return replace_query_param(request.build_absolute_uri(), "cursor", _signer(request).sign_object(offset))

        self._next = page_at(offset + size) if size < min(len(hits), left) else None
        self._previous = page_at(max(0, offset - size)) if offset else None
        self._complete = hits.complete
        return hits[:size]

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"next": self._next, "previous": self._previous, "complete": self._complete, "results": data})
