"""The two stores of sessions, and the type of either. Importing this package imports neither of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from django_convmemory.store.in_memory import InMemoryStore
    from django_convmemory.store.orm import ORMStore

Store: TypeAlias = "ORMStore | InMemoryStore"
