"""Leave room in the pages of the sessions' table, on PostgreSQL.

Every append updates a session's row, and no index holds what it changes but for the one of what is due. Where the new
version of a row finds room in the old one's page, none of the indexes is written to, and what the versions before it
took is used again without a vacuum.
"""

from typing import Any

from django.db import migrations


def leave_room(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ALTER TABLE convmemory_session SET (fillfactor = 70)")


def fill(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ALTER TABLE convmemory_session RESET (fillfactor)")


class Migration(migrations.Migration):
    dependencies = [("convmemory", "0001_initial")]
    operations = [migrations.RunPython(leave_room, fill, hints={"model_name": "session"})]
