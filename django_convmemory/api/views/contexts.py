"""The context that a model is sent next, and the versions of the summary."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models
from django_convmemory.api.problems import Problem
from django_convmemory.api.serializers.base import PageQuery
from django_convmemory.api.serializers.contexts import ContextQuery, SummarySerializer
from django_convmemory.api.serializers.search import QuoteSerializer
from django_convmemory.api.views.base import ScopedView, TaggedView, is_number
from django_convmemory.context.assembly import Context


class ContextDetail(TaggedView):
    """The context: what a model is sent next."""

    query_class = ContextQuery

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        if self.unchanged():
            return Response(status=304)
        budget, own_budget = query.get("max_tokens"), self.memory.options.max_context_tokens
        if budget is not None and own_budget is not None:
            budget = min(budget, own_budget)
        asked = query.get("recall")
        recall = None if asked is None else {"0": False, "1": True}.get(asked, asked)
        context = self.handle.load(max_tokens=budget, recall=recall)
        answer: dict[str, Any] = {
            **_content(context, query["format"]),
            "summary": context.summary,
            "covered_position": context.covered,
            "tokens": context.tokens,
            "omitted": context.omitted,
            "over_budget": context.over_budget,
            "pending": context.pending,
            "recalled": QuoteSerializer(context.recalled, many=True).data,
            "revision": context.revision,
        }
        return Response(answer)


def _content(context: Context, form: str) -> dict[str, Any]:
    if form == "text":
        return {"text": context.to_text()}
    if form == "openai":
        return {"messages": context.to_openai()}
    return {
        "messages": [
            {
                "part": part.name,
                "position": part.position,
                "tokens": part.tokens,
                "message": part.message.to_openai(),
            }
            for part in context.parts
        ]
    }


class SummaryList(ScopedView):
    """The versions of the summary, newest first."""

    query_class = PageQuery

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        rows = models.Summary.objects.using(self.session._state.db).filter(session=self.session)
        return self.page(rows, SummarySerializer, ("-version",), query.get("limit"))


class SummaryDetail(ScopedView):
    """One version of the summary."""

    def get(self, request: Request, session_id: str, version: str) -> Response:
        rows = models.Summary.objects.using(self.session._state.db).filter(session=self.session)
        row = rows.filter(version=int(version)).first() if is_number(version) else None
        if row is None:
            raise Problem(404, "unknown_version", "The session has no summary with this version.")
        return Response(SummarySerializer(row).data)
