"""Fills PostgreSQL tables to the size of a busy site: the app makes conversations, and SQL multiplies them."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import connection, models as orm

from django_convmemory import models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.scheduling import InlineScheduler
from django_convmemory.store.orm import ORMStore

LIMIT = 300
TURN = "We talked about this and that, and then about the weather in Lisbon, which was fine. "
# One in so many sessions has failed.
FAILING = 5000


def memory(limit: int = LIMIT) -> ConversationSummaryBufferMemory:
    """Return a memory to make conversations with. Its sessions belong to the alias ``default``."""
    words = ["Lisbon", "trains", "tiles", "May", "Jonas", "the navy museum", "a budget", "fado", "stairs", "the sea"]
    replies = [", then ".join(f"{words[(n + k) % 10]} {n + k}" for k in range(30)) for n in range(20_000)]
    model = ScriptedChatModel(replies)
    return ConversationSummaryBufferMemory(ORMStore(), model, limit, scheduler=InlineScheduler())


def conversation(key: str, messages: int, owner: User | None = None, limit: int = LIMIT) -> models.Session:
    """Make a conversation of ``messages`` messages that was folded whenever it was due."""
    session = memory(limit).session(key, **({} if owner is None else {"owner": owner}))
    stored = 0
    while stored < messages:
        count = min(1000, messages - stored)
        session.append(*[ChatMessage.human(TURN * 2) if n % 2 == 0 else ChatMessage.ai(TURN * 3) for n in range(count)])
        stored += count
    return models.Session.objects.get(name_hash=session.session_name.name_hash)


def fill(sessions: int, messages: int = 10, owners: int = 1000, limit: int = LIMIT) -> None:
    """Add ``sessions`` copies of a conversation of ``messages`` messages. The ``owners`` users own them in turn."""
    first = conversation("template", messages, limit=limit)
    users = User.objects.bulk_create([User(username=f"user{number}") for number in range(owners)])
    with connection.cursor() as cursor:
        expressions = {
            "id": "%(last)s + n",
            "public_id": "gen_random_uuid()",
            "key": "'chat ' || n",
            "owner_id": "%(user)s + n %% %(owners)s",
            "name_hash": "encode(sha256('default'::bytea || '\\000'::bytea"
            " || ('u:' || %(user)s + n %% %(owners)s)::bytea || '\\000'::bytea || ('chat ' || n)::bytea), 'hex')",
            "created_at": "now() - (%(sessions)s - n) * interval '10 seconds'",
            "updated_at": "now() - (%(sessions)s - n) * interval '10 seconds'",
            "due_since": f"CASE WHEN n %% {FAILING} = 0 THEN now() - n * interval '1 second' END",
            "last_error": f"CASE WHEN n %% {FAILING} = 0 THEN 'ModelUnavailable: 529' ELSE '' END",
        }
        values = {"template": first.pk, "last": first.pk, "user": users[0].pk, "owners": owners, "sessions": sessions}
        _multiply(cursor, models.Session, expressions, values, "t.id = %(template)s")
        belongs = {"session_id": "%(last)s + n"}
        _multiply(cursor, models.Message, belongs, values, "t.session_id = %(template)s")
        _multiply(cursor, models.Segment, belongs, values, "t.session_id = %(template)s")
        _multiply(cursor, models.Summary, belongs, values, "t.session_id = %(template)s")
        calls = belongs | {
            "started_at": "now() - (%(sessions)s - n) * interval '3 seconds'",
            "duration_seconds": "1 + n %% 7",
            "due_seconds": "CASE WHEN n %% 10 = 0 THEN 300 ELSE 2 END",
            "prompt_tokens": "1000 + n %% 500",
            "cached_tokens": "n %% 500",
            "completion_tokens": "100 + n %% 50",
            "cost": "0.0001 * (1 + n %% 97)",
        }
        _multiply(cursor, models.Attempt, calls, values, "t.session_id = %(template)s")
        for table in (models.Session, models.Message, models.Segment, models.Summary, models.Attempt):
            name = table._meta.db_table
            if table not in (models.Message, models.Segment):
                newest = f"(SELECT max(id) FROM {name})"  # noqa: S608  the models' names
                cursor.execute(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), {newest})")
            cursor.execute(f"VACUUM ANALYZE {name}")


def _multiply(
    cursor: Any, table: type[orm.Model], expressions: dict[str, str], values: dict[str, object], where: str
) -> None:
    """Copy the template's rows once for each ``n``. ``expressions`` are the columns that differ, in SQL."""
    columns = [field.column for field in table._meta.concrete_fields if isinstance(field.column, str)]
    if table is not models.Session and "id" in columns:
        columns.remove("id")
    selected = [expressions.get(column, f't."{column}"') for column in columns]
    name = table._meta.db_table
    order = "n, t.position" if table is models.Message else "n"
    cursor.execute(
        f"INSERT INTO {name} ({', '.join(columns)}) SELECT {', '.join(selected)}"  # noqa: S608  no input of others
        f" FROM generate_series(1, %(sessions)s) n, {name} t WHERE {where} ORDER BY {order}",
        values,
    )
