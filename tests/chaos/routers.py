"""A router that keeps conversations in their own database."""

from __future__ import annotations

from typing import Any

APP = "convmemory"


class MemoryRouter:
    """Routes the app's models to the database ``memory``, and all others to ``default``."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "memory" if model._meta.app_label == APP else "default"

    db_for_write = db_for_read
