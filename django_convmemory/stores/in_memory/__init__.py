"""A store in the memory of one process, for scripts and tests. It loses everything when the process ends.

It does not need Django. Its modules have the names of those of the ORM store, and the same functions. The tests compare
the two stores.
"""

from django_convmemory.stores.in_memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
