"""Migrations of the app, and those that it may get later, on a table with partitions."""

from __future__ import annotations

import pathlib
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, models as orm
from django.db.migrations import operations
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.utils import NotSupportedError

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.partitioning.conversions import rows

PAGE = (pathlib.Path(__file__).parents[2] / "docs/guides/partitions.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.release, pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("partitioned")]


def converse() -> None:
    memories["default"].append("s", ChatMessage.human("Hello."), idempotency_key="k")
    assert memories["default"].append("s", ChatMessage.human("Hello."), idempotency_key="k").replayed
    assert memories["default"].load("s")[-1].text == "Hello."
    memories["default"].delete("s")


def apply(*changes: operations.base.Operation) -> None:
    """Apply the operations, and then all of them backwards."""
    states: list[ProjectState] = [MigrationLoader(connection).project_state()]
    for change in changes:
        after = states[-1].clone()
        change.state_forwards("convmemory", after)
        with connection.schema_editor() as editor:
            change.database_forwards("convmemory", editor, states[-1], after)
        states.append(after)
        converse()
    for change in reversed(changes):
        after = states.pop()
        with connection.schema_editor() as editor:
            change.database_backwards("convmemory", editor, after, states[-1])
        converse()


def test_django_sees_no_difference() -> None:
    output = StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=output)
    assert output.getvalue() == "No changes detected\n"
    call_command("migrate", "--check", verbosity=0)


def test_a_later_release_can_change_columns_and_indexes() -> None:
    apply(
        operations.AddField("message", "mood", orm.TextField(null=True)),
        operations.AddField("message", "stars", orm.IntegerField(db_default=0)),
        operations.AlterField("message", "kind", orm.CharField(max_length=64, default="chat")),
        operations.AddIndex("message", orm.Index(fields=["session", "kind"], name="later")),
        operations.AddConstraint("message", orm.UniqueConstraint(fields=["session", "mood"], name="once")),
        operations.RenameField("message", "mood", "temper"),
    )
    assert rows("SELECT count(*) FROM pg_inherits WHERE inhparent = 'convmemory_message'::regclass") == [(64,)]


def sql_of(section: str) -> str:
    """Return the SQL in a section of the page about partitions."""
    return PAGE.partition(f"## {section}")[2].partition("```sql\n")[2].partition("\n```")[0]


def test_an_index_is_made_without_stopping_the_site() -> None:
    with pytest.raises(NotSupportedError, match="concurrently"):
        rows("CREATE INDEX CONCURRENTLY later ON convmemory_message (session_id, kind)")
    begin, build, attach = sql_of("Later migrations").split("\n\n")
    rows(begin)
    for statement in (build, attach):
        for number in range(64):
            rows(statement.replace("p00", f"p{number:02}"))
    assert rows("SELECT indisvalid FROM pg_index WHERE indexrelid = 'later'::regclass") == [(True,)]
    converse()


def test_the_way_back_by_hand() -> None:
    memories["default"].append("kept", ChatMessage.human("Hello."), idempotency_key="k")
    rows(sql_of("The way back"))
    assert rows("SELECT relkind FROM pg_class WHERE relname = 'convmemory_message'") == [("r",)]
    assert memories["default"].history("kept")[0].message.text == "Hello."
    names = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'convmemory_message'::regclass ORDER BY 1"
    assert [name for (name,) in rows(names)] == [
        "convmemory_message_pkey",
        "convmemory_message_public_id",
        "convmemory_message_through",
    ]
    [(keys,)] = rows(
        "SELECT count(*) FROM pg_constraint WHERE conrelid = 'convmemory_message'::regclass AND contype = 'f'"
    )
    assert keys == 1
    converse()
    call_command("convmemory_partition", verbosity=0)
    converse()
