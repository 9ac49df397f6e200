"""What lists show of a session, and the idempotency keys that a session keeps.

Every new column may be NULL, so no database writes a row of the table again, and processes of an earlier release go on
inserting sessions.
"""

from typing import Any

from django.db import migrations, models

CONSTRAINT = models.UniqueConstraint(fields=["creation_key"], name="convmemory_session_creation")


def create_index(apps: Any, schema_editor: Any) -> None:
    # Django would write SQLite's table again for a constraint. An index does the same on every database.
    where = " WHERE creation_key IS NOT NULL" if schema_editor.connection.vendor == "postgresql" else ""
    schema_editor.execute(
        f"CREATE UNIQUE INDEX convmemory_session_creation ON convmemory_session (creation_key){where}"
    )


def drop_index(apps: Any, schema_editor: Any) -> None:
    on = " ON convmemory_session" if schema_editor.connection.vendor == "mysql" else ""
    schema_editor.execute(f"DROP INDEX convmemory_session_creation{on}")


class Migration(migrations.Migration):
    dependencies = [("convmemory", "0009_message_items")]
    operations = [
        migrations.AddField(
            "session", "archived_at", models.DateTimeField(blank=True, null=True, verbose_name="archived at")
        ),
        migrations.AddField(
            "session", "starred_at", models.DateTimeField(blank=True, null=True, verbose_name="starred at")
        ),
        migrations.AddField(
            "session", "creation_key", models.CharField(blank=True, editable=False, max_length=64, null=True)
        ),
        migrations.AddField(
            "session", "creation_hash", models.CharField(blank=True, editable=False, max_length=64, null=True)
        ),
        migrations.AddField("session", "cuts", models.TextField(blank=True, editable=False, null=True)),
        migrations.AddField("session", "spent_keys", models.TextField(blank=True, editable=False, null=True)),
        # MariaDB refuses such statements in a transaction.
        migrations.RunPython(create_index, drop_index, atomic=False, hints={"model_name": "session"}),
        migrations.SeparateDatabaseAndState(state_operations=[migrations.AddConstraint("session", CONSTRAINT)]),
    ]
