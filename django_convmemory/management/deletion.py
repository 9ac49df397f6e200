"""Deletes sessions and everything in them."""

from __future__ import annotations

import dataclasses

from django.db.models import Count, Sum

from django_convmemory import models
from django_convmemory.management.output import counted
from django_convmemory.store import editing, transactions


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """A number of sessions, and the number of messages in them."""

    sessions: int
    messages: int

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.sessions + other.sessions, self.messages + other.messages)

    def __str__(self) -> str:
        return f"{counted(self.sessions, 'session')} with {counted(self.messages, 'message')}"


def totals(sessions: models.SessionQuerySet) -> Totals:
    """Count ``sessions`` and their messages. The rows of the sessions have the counts; no message is read."""
    return Totals(**sessions.aggregate(sessions=Count("pk"), messages=Sum("last_position", default=0)))


def delete(sessions: models.SessionQuerySet) -> Totals:
    """Delete ``sessions`` in one transaction, and return how many there were, with their messages."""

    def delete_locked() -> Totals:
        deleted = Totals(0, 0)
        for locked in editing.locked(sessions):
            deleted += totals(locked)
            locked.delete()
        return deleted

    return transactions.run(sessions.db, delete_locked, savepoint=True)
