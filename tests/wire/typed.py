"""Checks a value against the request types of a provider's package, strictly: no field is missing, none is unknown."""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Required, Union

import typing_extensions
from typing_extensions import get_type_hints, is_typeddict


def problems(value: object, annotation: Any, where: str = "request") -> list[str]:
    """Return what is wrong with ``value``, at most one problem for each of the types that it could have."""
    if annotation is Any or annotation is object:
        return []
    if is_typeddict(annotation):
        return list(_typed_dict(value, annotation, where))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        found = [problems(value, choice, where) for choice in arguments]
        # The type that fits best says most.
        return [] if [] in found else min(found, key=lambda problem: (len(problem), "not one of" in str(problem)))
    if origin is Literal:
        return [] if value in arguments else [f"{where} is {value!r}, not one of {arguments}"]
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        return [
            problem for index, item in enumerate(value) for problem in problems(item, arguments[0], f"{where}[{index}]")
        ]
    if origin in (dict, collections.abc.Mapping):
        return [] if isinstance(value, dict) and all(isinstance(key, str) for key in value) else [f"{where} is no dict"]
    if annotation in (None, type(None)):
        return [] if value is None else [f"{where} is not None"]
    kind: Any = origin or annotation
    if kind not in (str, int, float, bool):
        return [f"{where} would have to be a {kind}"]
    return [] if type(value) is kind else [f"{where} is a {type(value).__name__}, not a {kind.__name__}"]


def _typed_dict(value: object, annotation: Any, where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{where} is no dict"
        return
    fields, required = _fields(annotation)
    for name in sorted(required - set(value)):
        yield f"{where}.{name} is missing"
    for name, item in value.items():
        if name not in fields:
            yield f"{where}.{name} is unknown"
        else:
            yield from problems(item, fields[name], f"{where}.{name}")


@functools.cache
def _fields(annotation: Any) -> tuple[dict[str, Any], set[str]]:
    """Return the types of all fields, and the names of those that are required."""
    # The packages postpone the evaluation of annotations, so __required_keys__ is empty.
    marked = get_type_hints(annotation, include_extras=True)
    required = (Required, typing_extensions.Required)
    return get_type_hints(annotation), {name for name, hint in marked.items() if typing.get_origin(hint) in required}
