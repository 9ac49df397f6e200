"""Errors."""

from __future__ import annotations

from typing import Any, get_args

from rest_framework import serializers

from django_convmemory.api import codes


class Code(serializers.ChoiceField):
    """A code of an error. ``component`` is the name of the enumeration in the schema."""

    def __init__(self, known: Any, component: str) -> None:
        super().__init__(choices=get_args(known))
        self.component = component


class ProblemError(serializers.Serializer[Any]):
    """A value that is wrong."""

    pointer = serializers.CharField(
        help_text="The place of the error in the body, or the query parameter (a JSON pointer, RFC 6901)."
    )
    detail = serializers.CharField()
    code = Code(codes.ValueCode, "ValueCode")


class Problem(serializers.Serializer[Any]):
    """An error (problem details, RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = Code(codes.ProblemCode, "ProblemCode")
    errors = ProblemError(many=True, required=False)  # type: ignore[assignment]
