"""Choosing the representation of a response by ``Accept`` alone.

DRF's ``?format=`` is off, because the context has a parameter ``format`` of its own.
"""

from __future__ import annotations

from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BrowsableAPIRenderer, JSONRenderer


class Negotiation(DefaultContentNegotiation):
    """Choose the renderer by ``Accept``."""

    def filter_renderers(self, renderers: Any, format: str) -> Any:  # noqa: A002
        return renderers


class UTF8JSONRenderer(JSONRenderer):
    """Compact JSON in UTF-8, whatever the site has set for its own views."""

    compact = True
    ensure_ascii = False
    strict = True


class PageRenderer(BrowsableAPIRenderer):
    """DRF's browsable API, without links that name a format."""

    def get_context(self, *args: Any) -> Any:
        return super().get_context(*args) | {"available_formats": []}


class JSONLinesRenderer(UTF8JSONRenderer):
    """One JSON record a line. Its view writes the records itself; this renders its errors."""

    media_type = "application/jsonl"
    format = "jsonl"


class EventStreamRenderer(UTF8JSONRenderer):
    """Server-sent events. Their view writes them itself; this renders its errors."""

    media_type = "text/event-stream"
    format = "events"
