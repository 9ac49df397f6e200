"""Choosing the representation of a response by ``Accept`` alone.

DRF's ``?format=`` is off, because the context has a parameter ``format`` of its own.
"""

from __future__ import annotations

import json
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BrowsableAPIRenderer, JSONRenderer
from rest_framework.settings import api_settings


class _WithoutFormat:
    """DRF's settings without a query parameter that names a format."""

    URL_FORMAT_OVERRIDE = None

    def __getattr__(self, name: str) -> Any:
        return getattr(api_settings, name)


class Negotiation(DefaultContentNegotiation):
    """Choose the renderer by ``Accept``."""

    settings = _WithoutFormat()  # type: ignore[assignment]


class UTF8JSONRenderer(JSONRenderer):
    """Compact JSON in UTF-8, whatever the site has set for its own views."""

    compact = True
    ensure_ascii = False
    strict = True


class PageRenderer(BrowsableAPIRenderer):
    """The browsable API, with the body as JSON and not as a form, and without links that name a format."""

    def get_context(self, data: Any, accepted_media_type: str | None, renderer_context: Any) -> Any:
        context = super().get_context(data, accepted_media_type, renderer_context)
        context["api_settings"] = _WithoutFormat()
        return context

    def render_form_for_serializer(self, serializer: Any) -> Any:
        return ""

    def get_raw_data_form(self, data: Any, view: Any, method: str, request: Any) -> Any:
        form = super().get_raw_data_form(data, view, method, request)
        if form and view.example is not None:
            form.fields["_content"].initial = json.dumps(view.example, indent=4)
        return form

    def get_filter_form(self, data: Any, view: Any, request: Any) -> Any:
        return None


class JSONLinesRenderer(UTF8JSONRenderer):
    """One JSON record a line. Its view writes the records itself; this renders its errors."""

    media_type = "application/jsonl"
    format = "jsonl"


class EventStreamRenderer(UTF8JSONRenderer):
    """Server-sent events. Their view writes them itself; this renders its errors."""

    media_type = "text/event-stream"
    format = "events"
