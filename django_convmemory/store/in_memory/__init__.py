"""A store in the memory of one process, for scripts and tests. It loses everything when the process ends.

It does not need Django. Its modules have the names and the functions of those of the ORM store, and ``rows`` stands for
the models. The tests compare the two stores.
"""

from django_convmemory.store.in_memory.store import InMemoryStore

__all__ = ["InMemoryStore"]
