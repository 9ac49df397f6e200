"""Errors in one shape: the problem details of RFC 9457, with a code that does not change between releases.

``{"type", "title", "status", "detail", "code"}``. For invalid input there is also ``errors``, a list of ``{"pointer",
"detail", "code"}``. A pointer (RFC 6901) is the place of the error in the body, or the query parameter.

DRF has no such format. Its handler makes the response and its headers, and this module replaces the content.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import Http404
from rest_framework import exceptions as drf_exceptions, views
from rest_framework.response import Response
from rest_framework.settings import api_settings

from django_convmemory import exceptions
from django_convmemory.operations import events
from django_convmemory.store import transactions

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
# Seconds until a client may repeat a request that was refused with a 503.
_RETRY_AFTER = 1
# How many errors of one body are listed.
_MAX_ERRORS = 50


class Problem(drf_exceptions.APIException):
    """An error with one of this API's codes. ``pointer`` is its place in the body, if it has one."""

    def __init__(self, status_code: int, code: str, detail: str, *, pointer: str | None = None) -> None:
        super().__init__(detail, code)
        self.status_code, self.pointer = status_code, pointer
        # In seconds, for the header Retry-After.
        self.wait: int | None = None


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response for an error, or None for an error that the API does not expect. A DRF exception handler."""
    problem = _problem_of(error)
    if problem is None or (response := views.exception_handler(problem, context)) is None:
        return None
    response.data = _document(problem)
    if response.status_code == 503:
        response.headers.setdefault("Retry-After", str(_RETRY_AFTER))
    renderer = getattr(context.get("request"), "accepted_renderer", None)
    if getattr(renderer, "format", None) != "api":  # A person who uses the browsable API gets a page.
        response.content_type = MEDIA_TYPE
    return response


# What an error of the database means to the reader of a response, by its code. After a lost connection it does no harm
# to repeat the request. After an unknown outcome it may: a 503 would let many clients do that by themselves.
_DETAILS = {
    "database_unavailable": "The server lost its connection to the database again and again. Try again.",
    "outcome_unknown": (
        "The server lost its connection to the database, and the change may have been stored or not. Read the session "
        "before you repeat the request. A request with an Idempotency-Key can be repeated at once."
    ),
}


def _problem_of(error: Exception) -> drf_exceptions.APIException | None:
    if isinstance(error, drf_exceptions.APIException):
        return error
    if isinstance(error, Http404):
        return drf_exceptions.NotFound()
    if isinstance(error, PermissionDenied):
        return drf_exceptions.PermissionDenied()
    if isinstance(error, RequestDataTooBig):
        return too_large()
    if isinstance(error, OperationalError) and (transactions.given_up(error) or "database is locked" in str(error)):
        # Raised in a transaction of the site, which only the site can repeat.
        return Problem(503, "session_contended", "Another request was changing the same session. Try again.")
    if not isinstance(error, exceptions.ConvMemoryError) or error.code == exceptions.ConvMemoryError.code:
        return None
    if error.code in _DETAILS:
        # The exception says what to look for. The response does not: its reader cannot do anything about it.
        logger.error("%s", error)
    problem = Problem(error.status, error.code, _DETAILS.get(error.code, str(error)))
    if isinstance(error, exceptions.TurnInProgress):
        problem.wait = max(1, math.ceil(error.retry_after))
    return problem


def too_large() -> Problem:
    return Problem(413, "body_too_large", "The request body is too large. Send less at a time.")


def _document(problem: drf_exceptions.APIException) -> dict[str, Any]:
    errors: list[dict[str, str]] = []
    if isinstance(problem, drf_exceptions.ValidationError):
        code, detail = "invalid", "The request is not valid. Each error is listed with its place."
        errors = [
            {"pointer": pointer, "detail": str(message), "code": getattr(message, "code", "invalid")}
            for pointer, message in itertools.islice(_errors_of(problem.detail), _MAX_ERRORS)
        ]
    else:
        content: Any = problem.detail
        codes = problem.get_codes()
        code = codes if isinstance(codes, str) else problem.default_code
        if isinstance(content, Mapping):  # Simple JWT raises such errors.
            code, content = str(content.get("code", code)), content.get("detail", problem.default_detail)
        detail = str(content)
        if isinstance(problem, drf_exceptions.PermissionDenied) and detail.startswith("CSRF Failed"):
            code = "csrf_failed"  # DRF's own authentication has no code for it.
        if isinstance(problem, Problem) and problem.pointer is not None:
            errors = [{"pointer": problem.pointer, "detail": detail, "code": code}]
    return events.problem(problem.status_code, code, detail) | ({"errors": errors} if errors else {})


def _errors_of(detail: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the pointer and the message of each error in the detail of a ValidationError."""
    if isinstance(detail, Mapping):
        for key, value in detail.items():
            token = str(key).replace("~", "~0").replace("/", "~1")
            yield from _errors_of(value, pointer if key == api_settings.NON_FIELD_ERRORS_KEY else f"{pointer}/{token}")
    elif isinstance(detail, list):
        for index, value in enumerate(detail):
            # Either a list of the errors of one value, or a list with the errors of each entry.
            nested = isinstance(value, (Mapping, list))
            yield from _errors_of(value, f"{pointer}/{index}" if nested else pointer)
    else:
        yield pointer, detail
