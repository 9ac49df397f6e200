"""The store over Django's models: PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

from django_convmemory.store.appending import Appending
from django_convmemory.store.editing import Editing
from django_convmemory.store.index_rows import Indexing
from django_convmemory.store.leases import Leases
from django_convmemory.store.pause import Pauses
from django_convmemory.store.reading import Reading
from django_convmemory.store.sweeping import Sweeping
from django_convmemory.store.turns import Turns


class ORMStore(Appending, Reading, Editing, Indexing, Leases, Sweeping, Pauses, Turns):
    """Keeps sessions in the tables of this app. It knows nothing of models, prompts and budgets.

    ``using`` names the database. Without it the database routers choose one. :class:`~.in_memory.InMemoryStore` does
    the same without a database: a test compares the two.
    """
