"""Deleting the end of a conversation and appending to the rest, in one transaction."""

from __future__ import annotations

from django.db import IntegrityError

from django_convmemory import models
from django_convmemory.rules import values
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.values import Appended, DueRule, SessionName
from django_convmemory.store import appending, creating, editing, owners, transactions
from django_convmemory.store.database import Database


class Replacing(Database):
    """Replaces the end of a conversation."""

    def replace(
        self, name: SessionName, after: int, batch: Batch, rule: DueRule, *, counter: str, revision: int | None
    ) -> values.Appended:
        """Delete the messages after the position ``after`` as :meth:`truncate` does, and append ``batch``: or neither.

        A batch whose key was used changes nothing, whatever the revision. Raises the errors of both operations, and
        :class:`~django_convmemory.exceptions.UnknownMessage` if there is no message at ``after``.
        """
        using = self.using
        return transactions.settled(
            lambda: replace(using, name, after, batch, rule, counter=counter, revision=revision), name
        )


def replace(
    using: str, name: SessionName, after: int, batch: Batch, rule: DueRule, *, counter: str, revision: int | None
) -> Appended:
    """Replace the messages after ``after``. See :meth:`.ORMStore.replace`.

    Raises IntegrityError if another process creates the session at the same moment. Then it can be tried again.
    """
    sessions = models.Session.objects.using(using).named(name)
    reached = sessions.filter(last_position__gte=after)
    if revision is not None:
        reached = reached.filter(revision=revision)

    def work() -> Appended:
        locked = reached.lock()
        if batch.key_hash is not None:
            # Before the revision is compared: the first try has changed it.
            replayed = appending.replay(using, name, batch)
            if replayed is not None:
                return replayed
        if not locked:
            _create(using, name, after, revision)
        # The row is locked, so its revision need not be compared again.
        _, edited = editing.truncate(using, name, after, rule, revision=None)
        appended = appending.append_new(using, name, batch, rule, counter=counter)
        return appended._replace(turned_due=appended.turned_due or bool(edited and edited.turned_due))

    happened = None
    if batch.key_hash is not None:

        def happened() -> bool:
            return appending.replay(using, name, batch) is not None

    try:
        return transactions.run(using, work, savepoint=True, happened=happened)
    except IntegrityError:
        owners.require(using, name.owner_id)
        raise


def _create(using: str, name: SessionName, after: int, revision: int | None) -> None:
    """Create the session, and so lock its row, or raise an error if it cannot be the one that was meant.

    Without a lock, messages that another process stores meanwhile would stay.
    """
    sessions = models.Session.objects.using(using).named(name)
    if not editing.exists_at(sessions, revision) and name.row_id is not None:
        raise values.gone(name)
    if after:
        last = transactions.latest(sessions).values_list("last_position", flat=True).first()
        raise values.no_message(after, last or 0)
    creating.create(using, name)
