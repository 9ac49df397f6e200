"""Reading a body: JSON alone, and never more of it than is allowed."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import IO, Any, NoReturn

from rest_framework.exceptions import ParseError, UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from django_convmemory.api import conf, problems
from django_convmemory.api.negotiation import UTF8JSONRenderer


class BoundedJSONParser(BaseParser):
    """Parses JSON (RFC 8259) in UTF-8.

    Raises a 413 where there is more than ``MAX_BODY_BYTES``, whatever the header says, and a 400 for what is no JSON:
    NaN and Infinity are none, and neither is what is nested so deep that Python gives up.
    """

    media_type = "application/json"
    # With which the browsable API fills in what may be sent.
    renderer_class = UTF8JSONRenderer

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        most = conf.limits().max_body_bytes
        body = stream.read(most + 1)
        if len(body) > most:
            raise problems.too_large()
        try:
            text = codecs.decode(body, "utf-8-sig")
            value = json.loads(text, parse_constant=_refuse)
            if "\\u" in text:
                # Half of a surrogate pair, which no answer could repeat.
                json.dumps(value, ensure_ascii=False).encode()
            return value
        except RecursionError:
            raise ParseError("JSON parse error - the body is nested too deeply.") from None
        except ValueError as error:
            raise ParseError(f"JSON parse error - {error}") from None


def require_readable(request: Request) -> None:
    """Raise a 411 for a body without a length, which would be taken for none, and a 415 for one that is no JSON.

    Also one that is empty: a page of another site can have a browser send a form.
    """
    plain = request._request
    if not plain.META.get("CONTENT_LENGTH") and ("HTTP_TRANSFER_ENCODING" in plain.META or plain.read(1)):
        raise problems.Problem(
            411, "length_required", "The request has a body without a length. Send it with a Content-Length header."
        )
    given = plain.content_type
    if given == "text/plain" and plain.META.get("SERVER_SOFTWARE", "").startswith("WSGIServer"):
        return  # Python's own server, runserver's, says so of a body that has no type.
    if given and given != BoundedJSONParser.media_type:
        raise UnsupportedMediaType(given)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")
