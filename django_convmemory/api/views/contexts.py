"""The context that a model is sent next, and the versions of the summary."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models
from django_convmemory.api import pagination, serializers as forms
from django_convmemory.api.problems import Problem
from django_convmemory.api.views.base import ScopedView, TaggedView, is_whole
from django_convmemory.core.context import Context
from django_convmemory.maintenance import explain


class ContextDetail(TaggedView):
    """The context: what a model is sent next."""

    serializer_class = forms.Nothing

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query(forms.ContextQuery)
        limit = pagination.page_size(query.get("limit"))
        if self.unchanged():
            return Response(status=304)
        most, asked = self.memory.max_context_tokens, query.get("max_tokens")
        # Never more than the memory shows by itself.
        context = self.handle.load(max_tokens=asked if asked is None or most is None else min(asked, most))
        answer: dict[str, Any] = {
            **_shown(context, query["format"]),
            "summary": context.summary,
            "covered_position": context.covered,
            "tokens": context.tokens,
            "omitted": context.omitted,
            "over_budget": context.over_budget,
            "pending": context.pending,
            "revision": context.revision,
        }
        if query["explain"] == "1":
            found = explain.explain(self.memory, self.session, context, before=query.get("before"), limit=limit)
            answer["explanation"] = [one._asdict() for one in found]
        return Response(answer)


def _shown(context: Context, form: str) -> dict[str, Any]:
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

    serializer_class = forms.Nothing
    pagination_class = pagination.Pages
    page_ordering = ("-version",)

    def get(self, request: Request, session_id: str) -> Response:
        self.query(forms.Nothing, *pagination.Pages.names)
        rows = models.Summary.objects.using(self.session._state.db).filter(session=self.session)
        return self.page(rows, forms.SummarySerializer)


class SummaryDetail(ScopedView):
    """One version of the summary."""

    serializer_class = forms.Nothing

    def get(self, request: Request, session_id: str, version: str) -> Response:
        rows = models.Summary.objects.using(self.session._state.db).filter(session=self.session)
        row = rows.filter(version=int(version)).first() if is_whole(version) else None
        if row is None:
            raise Problem(404, "unknown_version", "The session has no summary with this version.")
        return Response(forms.SummarySerializer(row).data)
