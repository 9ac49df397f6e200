"""Errors in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rest_framework.response import Response

from django_convmemory.api import problems


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response of the rest of the API, with its content in OpenAI's form. A DRF exception handler."""
    response = problems.exception_handler(error, context)
    if response is not None:
        response.data = {"error": _error(response.data)}
        response.content_type = None  # That of the renderer.
    return response


def _error(problem: Mapping[str, Any]) -> dict[str, Any]:
    status = problem["status"]
    # There is room for one error.
    first = problem.get("errors", [problem])[0]
    form = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    return {"message": first["detail"], "type": form, "param": _param(first.get("pointer", "")), "code": first["code"]}


def _param(pointer: str) -> str | None:
    """Return the place of an error as OpenAI writes it: ``items[0].content`` for ``/items/0/content``."""
    # The limits of the rest of the API know the items as messages.
    names = re.sub("^/messages", "/items", pointer)[1:]
    return re.sub(r"/(\d+)(?=/|$)", r"[\1]", names).replace("/", ".") or None
