"""Whether the table of messages is partitioned by session, which large sites may choose on PostgreSQL.

A statement with ``session_id = (SELECT …)`` knows its session only when it runs, so PostgreSQL plans it for every
partition. With 64 of them, planning takes twenty times as long. If the id is a constant, PostgreSQL plans one
partition. So the store looks up the id first if the table is partitioned. The statement after that still reads all that
it needs at one moment, and finds nothing if the session was deleted in between.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

from django_convmemory import models
from django_convmemory.rules.values import SessionName

_IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('convmemory_message')"
_FIND = "SELECT id FROM convmemory_session WHERE name_hash = %s"
# By the server and the name of the database, because tests change the name.
_known: dict[tuple[str, str, str], bool] = {}


def are_used(using: str) -> bool:
    """Whether the messages in the database ``using`` are partitioned. A process asks each database once.

    A wrong answer costs time only. So a process that runs while the table is converted need not ask again.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        return False
    settings = connection.settings_dict
    place = (settings["HOST"], str(settings["PORT"]), settings["NAME"])
    if place not in _known:
        with connection.cursor() as cursor, connection.wrap_database_errors:
            # By the driver's own cursor: a site's tests may count the statements of Django's.
            cursor.cursor.execute(_IS_PARTITIONED)
            row = cursor.cursor.fetchone()
        if row is None:  # There is no table yet.
            return False
        _known[place] = bool(row[0])
    return _known[place]


def forget() -> None:
    """Ask every database again, because a table was converted."""
    _known.clear()


def constant_id(using: str, name: SessionName) -> int | None:
    """Return the id of a session whose messages are partitioned, to be a constant in the next statement.

    None: they are not partitioned, so one statement does it all. 0: there is no such session. The next statement still
    has to compare the name, because another session may have it by then. ``row_id`` of the name is taken as it is.
    """
    if not are_used(using):
        return None
    if name.row_id is not None:
        return name.row_id
    with connections[using].cursor() as cursor:
        # By the ORM it would take as long as the load.
        cursor.execute(_FIND, [name.name_hash])
        row = cursor.fetchone()
    return row[0] if row else 0


def id_of(named: models.SessionQuerySet) -> Any:
    """Return the id of the one session in ``named``, to be compared with ``session_id`` in the next statement.

    It is a subquery, or a constant if the messages are partitioned: 0 if there is no such session.
    """
    if not are_used(named.db):
        return named.values("pk")[:1]
    return named.values_list("pk", flat=True).first() or 0
