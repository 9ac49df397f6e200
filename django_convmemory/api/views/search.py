"""Views that find stored messages by their words."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models
from django_convmemory.api import conf, pagination
from django_convmemory.api.serializers.search import HitSerializer, SearchAllQuery, SearchSessionQuery
from django_convmemory.api.views.base import ScopedView
from django_convmemory.memory import memories
from django_convmemory.search.hits import Hit


class SearchView(ScopedView):
    """A search. Its hits come in pages, the best first."""

    pagination_class = pagination.HitPages

    def hits(self, alias: str, query: Mapping[str, Any], **where: Any) -> Response:
        """Return the response with a page of what the memory ``alias`` finds in ``where``."""
        paginator: pagination.HitPages = self.paginator  # type: ignore[assignment]
        size = query.get("limit", conf.limits().default_page_size)
        # The messages of a page are as many as another list may have, neighbours included.
        size = min(size, max(1, conf.limits().max_page_size // (2 * query["neighbours"] + 1)))

        def find(offset: int, limit: int) -> Any:
            return memories[alias].search(
                query["q"], limit=limit, offset=offset, neighbours=query["neighbours"], **where
            )

        hits = paginator.page(self.request, find, size)
        sessions = self.sessions_of(hits)
        # A session may be gone since it was searched.
        hits = [hit for hit in hits if hit.session.name_hash in sessions]
        context = {"url": self.url, "sessions": sessions}
        return self.get_paginated_response(HitSerializer(hits, many=True, context=context).data)

    @abc.abstractmethod
    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        """Return the rows of the hits' sessions by their name hashes, as far as the request reaches them."""


class SearchAll(SearchView):
    """The messages that match a query, of all sessions that the request reaches in one memory."""

    query_class = SearchAllQuery

    def get(self, request: Request) -> Response:
        query = self.query()
        return self.hits(query.get("alias") or conf.first_alias(), query, sessions=self.get_queryset())

    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        hashes = {hit.session.name_hash for hit in hits}
        rows = self.get_queryset().filter(name_hash__in=hashes) if hashes else []
        return {row.name_hash: row for row in rows if self._permitted(row)}

    def _permitted(self, session: models.Session) -> bool:
        """Return whether the request may read this session. In the other views a permission class would refuse it."""
        return all(
            permission.has_object_permission(self.request, self, session) for permission in self.get_permissions()
        )


class SearchSession(SearchView):
    """The messages of a session that match a query."""

    query_class = SearchSessionQuery

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        bounds = {name: query[name] for name in ("after", "before") if name in query}
        return self.hits(self.session.alias, query, session=self.session, **bounds)

    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        return {self.session.name_hash: self.session}
