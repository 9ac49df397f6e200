"""Find the version of a summary by time, and index no more than is looked up, on PostgreSQL.

Where a table has about one row for each session, PostgreSQL takes any index that begins with the session for as good as
the right one, and reads all of a session that has many. An index of the finished versions cannot be taken for the one
of all versions, nor one of the messages that have an idempotency key for the one of all messages; and an append without
a key writes to one index less. MariaDB has no such indexes, SQLite needs none.
"""

from typing import Any

from django.db import migrations, models

NARROW = [
    "DROP INDEX convmemory_summary_time",
    "CREATE INDEX convmemory_summary_time ON convmemory_summary (session_id, created_at) "
    "WHERE NOT building AND invalidated_at IS NULL",
    "ALTER TABLE convmemory_message DROP CONSTRAINT convmemory_message_key",
    "CREATE UNIQUE INDEX convmemory_message_key ON convmemory_message (session_id, idempotency_key) "
    "WHERE idempotency_key IS NOT NULL",
]
WIDEN = [
    "DROP INDEX convmemory_message_key",
    "ALTER TABLE convmemory_message ADD CONSTRAINT convmemory_message_key UNIQUE (session_id, idempotency_key)",
    "DROP INDEX convmemory_summary_time",
    "CREATE INDEX convmemory_summary_time ON convmemory_summary (session_id, created_at)",
]


def narrow(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in NARROW:
            schema_editor.execute(statement)


def widen(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in WIDEN:
            schema_editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("convmemory", "0002_room_for_updates")]
    operations = [
        migrations.AddIndex(
            model_name="summary",
            index=models.Index(fields=["session", "created_at"], name="convmemory_summary_time"),
        ),
        migrations.RunPython(narrow, widen, hints={"model_name": "message"}),
    ]
