"""The type of a memory's store: one of the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from django_convmemory.store.in_memory import InMemoryStore
    from django_convmemory.store.orm import ORMStore

Store: TypeAlias = "ORMStore | InMemoryStore"
