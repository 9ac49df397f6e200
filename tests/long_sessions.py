"""Sessions of many messages, made by the database itself: Python would take half a minute for a hundred thousand."""

from __future__ import annotations

from django.db import connection

from django_convmemory import models


def lengthen(session: models.Session, first: int, last: int, *, content: str, tokens: int) -> None:
    """Add users' messages at the positions from ``first`` to ``last``, a hundred thousand at most.

    Each has ``tokens`` tokens. The session's own counters are left as they are.
    """
    digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    # Not recursive: MariaDB goes a thousand deep.
    statement = f"""
        INSERT INTO convmemory_message
            (session_id, position, role, kind, content, tokens, tokens_through, payload_hash, created_at)
        WITH digits AS ({digits}), numbers AS (
            SELECT %s + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n
            FROM digits a, digits b, digits c, digits e, digits f)
        SELECT %s, n, 'user', 'chat', %s, %s, n * %s, '', CURRENT_TIMESTAMP FROM numbers WHERE n <= %s
    """  # noqa: S608  made of digits
    with connection.cursor() as cursor:
        cursor.execute(statement, [first, session.pk, content, tokens, tokens, last])
