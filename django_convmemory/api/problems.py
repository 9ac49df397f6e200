"""Errors in one shape: the problem details of RFC 9457, each with a code that stays.

``{"type", "title", "status", "detail", "code"}``, and for input that is refused ``errors``, a list of ``{"pointer",
"detail", "code"}``, whose pointers (RFC 6901) say where in the body, or which query parameter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import Http404
from rest_framework import exceptions as drf, status
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import set_rollback

from django_convmemory import exceptions
from django_convmemory.stores import transactions

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:problem-type:convmemory:"
# Seconds after which a request may be made again that met a session in motion.
_RETRY_AFTER = 1
# Errors of one body that are listed.
_MOST_ERRORS = 50
_PHRASES = {one.value: one.phrase for one in HTTPStatus}


class Problem(drf.APIException):
    """An error with a code of ours."""

    def __init__(self, status_code: int, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail, code)
        self.status_code = status_code
        self.more = more


def handle(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Return the answer to an error, or None for one that is nobody's but ours: DRF's exception handler."""
    problem = _problem_of(error)
    if problem is None:
        return None
    set_rollback()
    headers = {}
    if getattr(problem, "auth_header", None):
        headers["WWW-Authenticate"] = problem.auth_header  # type: ignore[attr-defined]
    wait = getattr(problem, "wait", None)
    if wait is not None:
        headers["Retry-After"] = str(int(wait) + 1)
    if problem.status_code == status.HTTP_503_SERVICE_UNAVAILABLE:
        headers.setdefault("Retry-After", str(_RETRY_AFTER))
    return Response(
        _document(problem), status=problem.status_code, headers=headers, content_type=_content_type(context)
    )


def _content_type(context: Mapping[str, Any]) -> str | None:
    """A person who looks at the browsable API gets a page, and everybody else a problem document."""
    renderer = getattr(context.get("request"), "accepted_renderer", None)
    return None if getattr(renderer, "format", None) == "api" else MEDIA_TYPE


# What the memory raises, the more special first: the class, the status and the code.
_OURS: tuple[tuple[type[Exception], int, str], ...] = (
    (exceptions.ToolResultRefused, 409, "tool_result_refused"),
    (exceptions.TooManyPinned, 409, "too_many_pinned"),
    (exceptions.InvalidMessage, 400, "invalid_message"),
    (exceptions.InvalidArgument, 400, "invalid_argument"),
    (exceptions.InvalidSession, 400, "invalid_session"),
    (exceptions.UnknownAlias, 400, "unknown_alias"),
    (exceptions.SessionExists, 409, "session_exists"),
    (exceptions.UnknownSession, 404, "not_found"),
    (exceptions.UnknownMessage, 404, "unknown_message"),
    (exceptions.StaleRevision, 412, "stale_revision"),
    (exceptions.IdempotencyConflict, 422, "idempotency_conflict"),
    (exceptions.SessionContended, 503, "session_contended"),
    (exceptions.BrokerUnavailable, 503, "broker_unavailable"),
)


def _problem_of(error: Exception) -> drf.APIException | None:
    if isinstance(error, drf.APIException):
        return error
    if isinstance(error, Http404):
        return drf.NotFound()
    if isinstance(error, PermissionDenied):
        return drf.PermissionDenied()
    if isinstance(error, RequestDataTooBig):
        return too_large()
    if isinstance(error, OperationalError) and (transactions.given_up(error) or "database is locked" in str(error)):
        # In a transaction of the site's own, which nobody here can begin again.
        return Problem(503, "session_contended", "Another request was changing the same session. Try again.")
    for kind, status_code, code in _OURS:
        if isinstance(error, kind):
            return Problem(status_code, code, str(error))
    return None


def too_large() -> Problem:
    return Problem(
        status.HTTP_413_REQUEST_ENTITY_TOO_LARGE,
        "body_too_large",
        "The request body is too large. Send less at a time.",
    )


def _document(problem: drf.APIException) -> dict[str, Any]:
    errors: list[dict[str, str]] = []
    if isinstance(problem, drf.ValidationError):
        code, detail = "invalid", "The request is not valid. Each error is listed with its place."
        errors = [
            {"pointer": pointer, "detail": str(one), "code": getattr(one, "code", "invalid")}
            for pointer, one in itertools.islice(_leaves(problem.detail), _MOST_ERRORS)
        ]
    else:
        codes = problem.get_codes()
        code = codes if isinstance(codes, str) else problem.default_code
        said: Any = problem.detail
        if isinstance(said, Mapping):  # as that of Simple JWT
            code, said = str(said.get("code", code)), said.get("detail", problem.default_detail)
        detail = str(said)
        if isinstance(problem, drf.PermissionDenied) and detail.startswith("CSRF Failed"):
            code = "csrf_failed"  # DRF's own authentication has no code for it.
    document: dict[str, Any] = {
        "type": _TYPE + code,
        "title": _PHRASES.get(problem.status_code, "Error"),
        "status": problem.status_code,
        "detail": detail,
        "code": code,
    }
    if errors:
        document["errors"] = errors
    return document | getattr(problem, "more", {})


def _leaves(detail: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is wrong, and where."""
    if isinstance(detail, Mapping):
        for key, value in detail.items():
            here = pointer
            if key != api_settings.NON_FIELD_ERRORS_KEY:
                here += "/" + str(key).replace("~", "~0").replace("/", "~1")
            yield from _leaves(value, here)
    elif isinstance(detail, list):
        for index, value in enumerate(detail):
            # A list of errors of one thing, or a list with the errors of each of many.
            nested = isinstance(value, (Mapping, list))
            yield from _leaves(value, f"{pointer}/{index}" if nested else pointer)
    else:
        yield pointer, detail
