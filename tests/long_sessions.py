"""Sessions of many messages, made by the database itself. Python would need half a minute for 100,000."""

from __future__ import annotations

from django.db import connection
from django.db.models import F

from django_convmemory import models
from django_convmemory.memory import ConversationMemory
from django_convmemory.messages import ChatMessage

# The number as an id.
_NUMBERED = {
    "postgresql": "LPAD(n::text, 32, '0')::uuid",
    "mysql": "LPAD(n, 32, '0')",
    "sqlite": "printf('%%032d', n)",
}


def lengthen(session: models.Session, first: int, last: int, *, content: str, tokens: int) -> None:
    """Add users' messages at the positions from ``first`` to ``last``, a hundred thousand at most.

    Each has ``tokens`` tokens. The session's own counters are left as they are.
    """
    digits = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    # Not a recursive query: MariaDB stops at a depth of 1000.
    statement = f"""
        INSERT INTO convmemory_message
            (session_id, position, role, kind, content, tokens, tokens_through, public_id, created_at)
        WITH digits AS ({digits}), numbers AS (
            SELECT %s + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n
            FROM digits a, digits b, digits c, digits e, digits f)
        SELECT %s, n, 'user', 'chat', %s, %s, n * %s, {_NUMBERED[connection.vendor]}, CURRENT_TIMESTAMP
        FROM numbers WHERE n <= %s
    """  # noqa: S608  made of digits
    with connection.cursor() as cursor:
        cursor.execute(statement, [first, session.pk, content, tokens, tokens, last])


def fill(chat: ConversationMemory, key: str, count: int) -> None:
    """Give a session ``count`` messages, and fold all but the last few."""
    chat.append(key, ChatMessage.human("one"), ChatMessage.ai("two"))
    session = models.Session.objects.get(key=key)
    tokens = session.unpinned_tokens // 2
    lengthen(session, 3, count, content="text", tokens=tokens)
    covered = count - 6
    models.Summary.objects.create(
        session=session,
        version=1,
        first_position=1,
        last_position=covered,
        covered_count=covered,
        covered_tokens=covered * tokens,
        text="what was said",
        tokens=9,
    )
    models.Session.objects.filter(pk=session.pk).update(
        last_position=count,
        unpinned_count=count,
        unpinned_tokens=count * tokens,
        settled_tokens=(count - 1) * tokens,
        newest_position=count,
        last_version=1,
        current_version=1,
        covered_position=covered,
        covered_count=covered,
        covered_tokens=covered * tokens,
        revision=F("revision") + 1,
    )
