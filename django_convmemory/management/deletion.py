"""Deleting sessions with everything in them."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Count, Sum

from django_convmemory import models
from django_convmemory.management.progress import counted
from django_convmemory.stores import editing, transactions


class Holding(NamedTuple):
    """Sessions, counted, and the messages in them."""

    sessions: int
    messages: int

    def __add__(self, other: object) -> Holding:
        if not isinstance(other, Holding):
            return NotImplemented
        return Holding(self.sessions + other.sessions, self.messages + other.messages)

    def __str__(self) -> str:
        return f"{counted(self.sessions, 'session')} with {counted(self.messages, 'message')}"


def holding(sessions: models.SessionQuerySet) -> Holding:
    """Count ``sessions`` and their messages, by what their rows know of those."""
    found = sessions.aggregate(sessions=Count("pk"), messages=Sum("last_position"))
    return Holding(found["sessions"], found["messages"] or 0)


def delete(sessions: models.SessionQuerySet) -> Holding:
    """Delete ``sessions`` in one transaction, and return what was in them."""

    def work() -> Holding:
        found = Holding(0, 0)
        for locked in editing.locked(sessions):
            found += holding(locked)
            locked.delete()
        return found

    return transactions.run(sessions.db, work, savepoint=True)
