"""Let the counters be signed, without a check of each that it is not negative.

PostgreSQL reads and carries out the checks of a table with each statement that writes to it, and there were nineteen of
a session's row: a seventh of what an append took. ``convmemory_check`` compares what they count with the messages.

MariaDB and SQLite make a table anew for each of its columns that changes.
"""

from typing import Any

from django.db import migrations, models

COUNTERS: dict[str, dict[str, Any]] = {
    "message": {
        "answers": models.BigIntegerField("answers", blank=True, null=True),
        "position": models.BigIntegerField("position"),
        "tokens": models.IntegerField("tokens"),
        "tokens_through": models.BigIntegerField("tokens through"),
    },
    "session": {
        "answered_position": models.BigIntegerField(default=0, editable=False),
        "attempts": models.IntegerField("attempts", default=0),
        "call_position": models.BigIntegerField("last tool calls at", default=0),
        "covered_count": models.BigIntegerField("covered messages", default=0),
        "covered_position": models.BigIntegerField("covered through", default=0),
        "covered_tokens": models.BigIntegerField("covered tokens", default=0),
        "current_version": models.BigIntegerField("current version", default=0),
        "due_revision": models.BigIntegerField(default=0, editable=False),
        "epoch": models.BigIntegerField("epoch", default=0),
        "fork_position": models.BigIntegerField("forked at", blank=True, null=True),
        "last_position": models.BigIntegerField("last position", default=0),
        "last_version": models.BigIntegerField("last version", default=0),
        "newest_position": models.BigIntegerField("newest exchange begins at", default=0),
        "pinned_count": models.SmallIntegerField("pinned messages", default=0),
        "pinned_tokens": models.BigIntegerField("pinned tokens", default=0),
        "revision": models.BigIntegerField("revision", default=0),
        "settled_tokens": models.BigIntegerField("tokens before the newest exchange", default=0),
        "unpinned_count": models.BigIntegerField("unpinned messages", default=0),
        "unpinned_tokens": models.BigIntegerField("unpinned tokens", default=0),
    },
}


class Migration(migrations.Migration):
    dependencies = [("convmemory", "0003_indexes")]
    operations = [
        migrations.AlterField(model, name, field)
        for model, counters in COUNTERS.items()
        for name, field in counters.items()
    ]
