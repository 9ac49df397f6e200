"""Choosing the form of an answer, by ``Accept`` alone.

DRF's ``?format=`` is switched off: the context takes a ``format`` of its own.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.settings import api_settings


class Negotiation(DefaultContentNegotiation):
    """Chooses the renderer by ``Accept``."""

    settings = SimpleNamespace(URL_FORMAT_OVERRIDE=None)  # type: ignore[assignment]


class UTF8JSONRenderer(JSONRenderer):
    """JSON, compact and in UTF-8, whatever the site has set for its own answers."""

    compact = True
    ensure_ascii = False
    strict = True


class PageRenderer(BrowsableAPIRenderer):
    """The browsable API, without links that name a format, and with the body as JSON rather than as a form."""

    def get_context(self, data: Any, accepted_media_type: str | None, renderer_context: Any) -> Any:
        context = super().get_context(data, accepted_media_type, renderer_context)
        context["api_settings"] = _Settings()
        return context

    def render_form_for_serializer(self, serializer: Any) -> Any:
        return ""

    def get_raw_data_form(self, data: Any, view: Any, method: str, request: Any) -> Any:
        form = super().get_raw_data_form(data, view, method, request)
        if form and view.example is not None:
            # What can be sent as it is.
            form.fields["_content"].initial = json.dumps(view.example, indent=4)
        return form

    def get_filter_form(self, data: Any, view: Any, request: Any) -> Any:
        return None


class _Settings:
    URL_FORMAT_OVERRIDE = None

    def __getattr__(self, name: str) -> Any:
        return getattr(api_settings, name)


class JSONLinesRenderer(BaseRenderer):
    """Records, a line of JSON each; its view writes them itself."""

    media_type = "application/jsonl"
    format = "jsonl"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        return UTF8JSONRenderer().render(data, accepted_media_type, renderer_context)
