"""Hooks for schemathesis, beside its settings."""

from __future__ import annotations

import re
from typing import Any

import schemathesis

_ENTITY_TAGS = re.compile(r'\*|(W/)?"[^"]*"(\s*,\s*(W/)?"[^"]*")*')


@schemathesis.hook
def filter_query(context: Any, query: Any) -> bool:
    """Leave out empty lists. In a query string they cannot be sent, so the request would be valid."""
    return not isinstance(query, dict) or all(value != [] and value != {} for value in query.values())


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Put the quotes back around the entity tag of a valid request. The coverage phase takes them off.

    Give it the alias of the site. The schema does not know the aliases.
    """
    tag = (case.headers or {}).get("If-Match")
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    if is_valid and isinstance(tag, str) and not _ENTITY_TAGS.fullmatch(tag):
        case.headers["If-Match"] = f'"{tag}"'
    for values in (case.query, case.body):
        if is_valid and isinstance(values, dict) and "alias" in values:
            values["alias"] = "default"
    return case
