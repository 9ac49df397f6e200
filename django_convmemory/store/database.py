"""What all parts of the store in a database share."""

from __future__ import annotations

from typing import Any

from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, Value

from django_convmemory import models
from django_convmemory.rules.values import SessionName
from django_convmemory.store import compiled, transactions

# Note [Partitioned messages]
#
# Large sites may choose on PostgreSQL to partition the table of messages by session. A statement with
# ``session_id = (SELECT …)`` knows its session only when it runs, so PostgreSQL plans it for every partition. With 64
# of them, planning takes twenty times as long. If the id is a constant, PostgreSQL plans one partition. So the store
# looks up the id first if the table is partitioned. The statement after that still reads all that it needs at one
# moment, and finds nothing if the session was deleted in between.

_IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('convmemory_message')"
# By the server and the name of the database, because tests change the name.
_partitioned: dict[tuple[str, str, str], bool] = {}


class Database:
    """The database of a store.

    ``using`` names it. Without it the database routers choose one. Reads go to the database that is written, so that a
    request sees its own appends.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    @property
    def using(self) -> str:
        """The database that is written."""
        return self._using or router.db_for_write(models.Session)

    @property
    def _sessions(self) -> models.SessionQuerySet:
        return models.Session.objects.using(self.using)

    def find(self, name: SessionName) -> int | None:
        """Return the id of the session, or None."""
        using = self.using
        finding = _finding(using, lock=transactions.reads_earlier(using))
        for session_id, *_ in finding.read(name_hash=name.name_hash):
            # Another row may have the name since.
            return session_id if name.row_id in (None, session_id) else None
        return None

    def _none(self, **conditions: Any) -> bool:
        """Whether no session meets the conditions."""
        return not self._sessions.filter(**conditions).exists()


@compiled.once
def _finding(using: str, *, lock: bool) -> compiled.Selection:
    rows = models.Session.objects.using(using).filter(name_hash=compiled.Slot("name_hash"))
    return compiled.selection(rows, "pk", lock=lock)


def bigint(number: int) -> Value:
    # PostgreSQL would get a plain value as an integer of four bytes, whatever its size.
    return Value(number, BigIntegerField())


def is_partitioned(connection: BaseDatabaseWrapper) -> bool:
    """Whether the messages in this database are partitioned. A process asks each database once.

    A wrong answer costs time only. So a process that runs while the table is converted need not ask again.
    """
    if connection.vendor != "postgresql":
        return False
    settings = connection.settings_dict
    place = (settings["HOST"], str(settings["PORT"]), settings["NAME"])
    if place not in _partitioned:
        with connection.cursor() as cursor, connection.wrap_database_errors:
            # By the driver's own cursor: a site's tests may count the statements of Django's.
            cursor.cursor.execute(_IS_PARTITIONED)
            row = cursor.cursor.fetchone()
        if row is None:  # There is no table yet.
            return False
        _partitioned[place] = bool(row[0])
    return _partitioned[place]


def forget_partitions() -> None:
    """Ask every database again whether messages are partitioned, because a table was converted."""
    _partitioned.clear()


def id_of(named: models.SessionQuerySet) -> Any:
    """Return the id of the one session in ``named``, to be compared with ``session_id`` in the next statement.

    It is a subquery, or a constant if the messages are partitioned: 0 if there is no such session.
    """
    if not is_partitioned(connections[named.db]):
        return named.values("pk")[:1]
    return named.values_list("pk", flat=True).first() or 0
