"""Hooks for schemathesis, beside its settings."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def filter_query(context: Any, query: Any) -> bool:
    """Leave out empty lists. In a query string they cannot be sent, so the request would be valid."""
    return not isinstance(query, dict) or all(value != [] and value != {} for value in query.values())
