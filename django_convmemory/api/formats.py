"""The formats of bodies: JSON is read, never more of it than is allowed, and ``Accept`` chooses what is written.

DRF's ``?format=`` is off, because the context has a parameter ``format`` of its own.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError, UnsupportedMediaType
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import BrowsableAPIRenderer, JSONRenderer
from rest_framework.request import Request

from django_convmemory.api import conf, problems
from django_convmemory.operations import events


class BoundedJSONParser(JSONParser):
    """Parse JSON (RFC 8259) in UTF-8, whatever the site has set for its own views.

    Raises a 413 for more than ``MAX_BODY_BYTES``, whatever ``Content-Length`` says. Raises a 400 for a body that is
    not JSON, or whose JSON no response could repeat.
    """

    strict = True

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        # DRF's parser reads whatever comes, and Django's DATA_UPLOAD_MAX_MEMORY_SIZE trusts Content-Length.
        limit = conf.limits().max_body_bytes
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise problems.too_large()
        try:
            value = super().parse(io.BytesIO(body), media_type, {"encoding": "utf-8-sig"})
            if b"\\u" in body:
                # Half of a surrogate pair cannot be encoded.
                json.dumps(value, ensure_ascii=False).encode()
        except RecursionError:
            raise ParseError("JSON parse error - the body is nested too deeply.") from None
        except UnicodeError as error:
            raise ParseError(f"JSON parse error - {error}") from None
        return value


def require_readable(request: Request) -> None:
    """Raise a 411 for a body without a length, and a 415 for a body that is not sent as JSON.

    DRF does neither. It takes a body without a length for an empty one. It does not look at the type of an empty body
    either, although a page of another site can make a browser send an empty form.
    """
    plain = request._request
    if not plain.META.get("CONTENT_LENGTH") and ("HTTP_TRANSFER_ENCODING" in plain.META or plain.read(1)):
        raise problems.Problem(
            411, "length_required", "The request has a body without a length. Send it with a Content-Length header."
        )
    content_type = plain.content_type
    if content_type == "text/plain" and plain.META.get("SERVER_SOFTWARE", "").startswith("WSGIServer"):
        return  # The server of runserver sets this type if the request has none.
    if content_type and content_type != BoundedJSONParser.media_type:
        raise UnsupportedMediaType(content_type)


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

    media_type = events.MEDIA_TYPE
    format = "events"
