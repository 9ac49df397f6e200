"""Errors."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class ProblemError(serializers.Serializer[Any]):
    pointer = serializers.CharField(
        help_text="The place of the error in the body, or the query parameter (a JSON pointer, RFC 6901)."
    )
    detail = serializers.CharField()
    code = serializers.CharField()


class Problem(serializers.Serializer[Any]):
    """An error (problem details, RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField(help_text="The kind of the error, for programs: it does not change between releases.")
    errors = ProblemError(many=True, required=False)  # type: ignore[assignment]
