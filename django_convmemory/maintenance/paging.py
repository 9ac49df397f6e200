"""Reads the rows of a query a page at a time.

Neither the memory nor a lock depends on how many rows there are. MariaDB's driver would hold all rows of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.db.models import QuerySet


def paged(
    rows: QuerySet[Any, Any], column: str, value_of: Callable[[Any], Any], *, size: int, after: Any = -1
) -> Iterator[Any]:
    """Yield ``rows``, which are in the order of ``column``, from after the value ``after`` on.

    ``value_of`` returns the value that a row has in ``column``.
    """
    while page := list(rows.filter(**{f"{column}__gt": after})[:size]):
        yield from page
        if len(page) < size:
            return
        after = value_of(page[-1])
