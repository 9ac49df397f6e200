"""Coroutines that use the test database."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as ``asyncio.run`` does. The thread that did its work on the database keeps no connection."""

    async def closing() -> Any:
        try:
            return await work
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(closing())
