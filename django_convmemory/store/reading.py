"""Reading sessions: for a context, and for people."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.db.models import BigIntegerField, F
from django.db.models.functions import Least

from django_convmemory import models
from django_convmemory.messages import PINNED_ROLES
from django_convmemory.rules import values
from django_convmemory.rules.strategies import View
from django_convmemory.store import columns, database, preparing, sql

logger = logging.getLogger(__name__)

# json.loads() would look for white space, of which the database writes none.
_decoded = json.JSONDecoder().raw_decode


class Reading(database.Database):
    """Reads sessions."""

    def load(self, name: values.SessionName, view: View, pinned_tokens: float) -> values.Snapshot | None:
        """Return the session as it is at one moment, as far as ``view`` needs it, or None if there is no such session.

        Of the pinned messages it has those that fit in ``pinned_tokens``, and always the first one.
        """
        connection = connections[self.using]
        # The statement compares the name, too: another session may have it by then.
        by_id = (name.row_id or self.find(name) or 0) if database.is_partitioned(connection) else None
        while True:
            with connection.cursor() as cursor:
                statement = sql.load(connection.vendor, name, view, by_id)
                if by_id is None:
                    preparing.execute(cursor, *statement)
                else:
                    # A plan for any session would lock all partitions.
                    cursor.execute(*statement)
                # By the driver's own cursor: Django would make a function for this call.
                with connection.wrap_database_errors:
                    rows = {row[0]: row for row in cursor.cursor.fetchall()}
                if not rows:
                    return None
                session = rows.pop(None)
                session_id, epoch, revision, due, *counted = _decoded(session[sql.AT_SESSION])[0]
                if name.row_id not in (None, session_id):
                    return None
                if by_id not in (None, session_id):
                    # Another session has got the name since. The messages are not its own.
                    by_id = session_id
                    continue
                counters, summary = models.counters_of(counted), session[sql.AT_SUMMARY]
                tail, pinned = columns.placed(rows.values()), []
                if counters.pinned:
                    bound = values.view_bound(counters, view)
                    tail = [ref for ref in tail if ref.position > bound.position]
                    tail = [ref for ref in tail if ref.message.role not in PINNED_ROLES]
                    positions = values.shown_pinned(counters.pinned, pinned_tokens)
                    cursor.execute(*sql.placed(session_id, positions))
                    pinned_rows = cursor.fetchall()
                    # Messages were removed between the two statements. The summary may cover them: read all again.
                    if not pinned_rows or pinned_rows[0][0] != epoch:
                        continue
                    pinned = columns.placed(row[1:] for row in pinned_rows if row[1] is not None)
            version = values.SummaryVersion(*_decoded(summary)[0]) if view.summary and summary else None
            return values.Snapshot(session_id, counters, bool(due), revision, epoch, version, pinned, tail)

    def history(
        self, name: values.SessionName, *, before: int | None, after: int | None, limit: int, items: bool = False
    ) -> list[values.StoredMessage]:
        """Return at most ``limit`` messages after the position ``after`` and before the position ``before``, in order.

        They are the first ones if ``after`` is given, otherwise the last ones. With ``items`` they have the items for
        which they stand.
        """
        # A subquery and not a join, and a range of positions: PostgreSQL expects a session of the usual length, and
        # might otherwise fetch and sort all of its messages.
        sessions = self._sessions.named(name)
        rows = models.Message.objects.using(sessions.db).filter(session_id=database.id_of(sessions))
        if before is not None:
            rows = rows.filter(position__lt=before)
        if after is not None:
            rows = rows.filter(position__gt=after, position__lte=after + limit)
        else:
            end: Any = F("last_position") + 1
            if before is not None:
                end = Least(end, database.bigint(before), output_field=BigIntegerField())
            rows = rows.filter(position__gte=sessions.values(first=end - database.bigint(limit))[:1])
        # Ordered by both columns of the key: for the position alone, the database may scan the whole table.
        order = ("session_id", "position") if after is not None else ("-session_id", "-position")
        names = columns.STORED_NAMES + (columns.ITEM_NAMES if items else ())
        stored_messages = [columns.stored_message(*row) for row in rows.order_by(*order).values_list(*names)[:limit]]
        return stored_messages if after is not None else stored_messages[::-1]

    def on_commit(self, function: Callable[[], None]) -> None:
        """Run ``function`` when the transaction has been committed."""
        connection = connections[self.using]
        if connection.in_atomic_block or connection.get_autocommit():
            transaction.on_commit(function, using=self.using)
        else:
            # Django does not see the commits of a caller who has turned autocommit off. The sweep finds the session.
            logger.warning(
                "A task or a signal was not sent: autocommit is off, so the store cannot wait for the commit."
            )
