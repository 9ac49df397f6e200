"""What a worker's process watches itself do: its statements, and the method of the store that executes them."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import re
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db.backends.signals import connection_created

from tests.chaos import gates

# The methods of the store with which a worker writes.
WRITES = ("claim", "extend", "publish", "release", "record")
_WRITE = re.compile(r"\b(UPDATE|INSERT|DELETE)\b")
_LEASE = re.compile(r"\bUPDATE\s+\W?convmemory_session\b(?:(?!\bWHERE\b).)*\blease_expires_at\b", re.DOTALL)
_TEXTS = re.compile(r"\bSELECT\b.*\bcontent\b.*\bFROM\s+\W?convmemory_message\b", re.DOTALL)


class Seen:
    """The method that runs now, and when the process last read messages and last wrote the time of its lease."""

    method = ""
    read = 0.0
    lease_written = 0.0


def watch() -> None:
    """Watch this process from now on."""
    from django_convmemory.store.orm import ORMStore

    for name in WRITES:
        setattr(ORMStore, name, _named(name, getattr(ORMStore, name)))
    connection_created.connect(_install)


def _named(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        outer, Seen.method = Seen.method, name
        try:
            return method(*args, **kwargs)
        finally:
            Seen.method = outer

    return call


def _install(connection: Any, **kwargs: Any) -> None:
    with contextlib.suppress(ValueError):
        connection.execute_wrappers.remove(_execute)
    connection.execute_wrappers.append(_execute)


def _execute(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    began = time.time()
    result = execute(sql, params, many, context)
    if _TEXTS.search(sql):
        Seen.read = time.time()
        gates.pass_through(pathlib.Path(settings.SITE["gates"]), gates.AFTER_READ)  # type: ignore[misc]
    if _LEASE.search(sql):
        Seen.lease_written = began
    if Seen.method and _WRITE.search(sql):
        # In a transaction, the locks of the statement are held here.
        gates.pass_through(pathlib.Path(settings.SITE["gates"]), f"in_{Seen.method}")  # type: ignore[misc]
    return result
