"""A redacted text is in no dump of the database, and in no page of SQLite's file after ``VACUUM``."""

from __future__ import annotations

import pathlib

import pytest
from django.db import connection

from django_convmemory import models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.messages import ChatMessage
from django_convmemory.search import indexing
from tests import servers
from tests.chaos.servers import Absent
from tests.conversations import call
from tests.folding import build
from tests.releases import databases

pytestmark = pytest.mark.vendors

# As it is stored, and as a term of the index.
SECRET = "quetzal"


def dump() -> bytes:
    """Return all that somebody can read who gets hold of a dump, or of SQLite's file."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        name = str(connection.settings_dict["NAME"])
        paths = [pathlib.Path(name + suffix) for suffix in ("", "-wal", "-journal")]
        return b"".join(path.read_bytes() for path in paths if path.exists())
    try:
        return databases.dumped()
    except Absent as error:
        if servers.REQUIRED:
            raise
        pytest.skip(str(error))


@pytest.mark.django_db(transaction=True)
def test_a_redacted_text_is_in_no_dump() -> None:
    model = ScriptedChatModel([f"They spoke of a {SECRET}."] * 9)
    memory = build(model)
    memory.append("s", ChatMessage.human("Which birds are there?"))
    arguments = f'{{"bird": "{SECRET}"}}'
    spoken = ChatMessage.ai(f"A {SECRET}.", tool_calls=[call("c", arguments)], metadata={"bird": SECRET})
    position = memory.append("s", spoken).last_position
    memory.append("s", ChatMessage.tool("Done.", "c"))
    memory.append("s", *[ChatMessage.human(f"Remark {number} " + "and so on " * 5) for number in range(30)])
    assert memory.compact("s") == "published"
    memory.fork("s", 20, key="copy")
    for session in models.Session.objects.all():
        indexing.catch_up(memory.store, session.pk)
    tables = (models.Message, models.Summary, models.Segment)
    assert all(row_count(table) for table in tables)
    assert dump().lower().count(SECRET.encode()) >= 6

    assert memory.redact("s", position).sessions == 2

    assert [row_count(table) for table in tables] == [0, 0, 0]
    assert dump().lower().count(SECRET.encode()) == 0


def row_count(table: type[models.Message | models.Summary | models.Segment]) -> int:
    """Return how many rows have the word in a column of text."""
    rows = table._default_manager.values_list(*(field.name for field in table._meta.concrete_fields))
    return sum(SECRET in str(row) for row in rows)
