"""The columns of a message: the table, the values and the model agree, a fork carries them, and two lines add one."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.db.models import Field

import django_convmemory
from django_convmemory import models
from django_convmemory.fields import ExactJSONField
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.counters import Entry, Row
from django_convmemory.store import columns
from tests import processes
from tests.folding import MarkerModel, build, session, talk

TYPES = {
    "BigIntegerField": "bigint",
    "CharField": "text",
    "DateTimeField": "timestamptz",
    "IntegerField": "int",
    "TextField": "text",
    "UUIDField": "uuid",
}
# By model: what a fork has of its own.
OWN = {models.Message: {"session"}, models.Summary: {"id", "session"}}


def fields(model: type[Any]) -> dict[str, Field[Any, Any]]:
    return {field.name: field for field in model._meta.concrete_fields}


def test_the_table_has_the_columns_of_the_model() -> None:
    table = {column.name: column.type for column in columns.MESSAGE_COLUMNS}
    stored = {name: field for name, field in fields(models.Message).items() if name != "session"}
    assert table == {name: TYPES[field.get_internal_type()] for name, field in stored.items()}


def test_the_values_of_a_row_are_those_of_the_table_in_its_order() -> None:
    values = columns.row_values(Entry(ChatMessage.human("Hi."), 1), Row(1, 1, None), uuid.uuid4())
    assert list(values) == [column.name for column in columns.APPENDED]


def test_the_columns_that_are_read_begin_with_those_that_a_message_is_made_of() -> None:
    assert columns.READ_NAMES[:5] == ("role", "kind", "content", "wire", "metadata")
    message_fields = {field.name for field in dataclasses.fields(ChatMessage)}
    assert message_fields.issuperset(columns.MORE_NAMES)


def sample(field: Field[Any, Any]) -> Any:
    """A value that the field does not have by itself."""
    if field.get_internal_type() == "DateTimeField":
        return dt.datetime(2020, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)
    if isinstance(field, ExactJSONField):
        return {"name": "a name"}
    return {"BooleanField": True, "CharField": "x", "TextField": "x"}.get(field.get_internal_type(), 77)


def contents(rows: Any, own: set[str]) -> list[dict[str, Any]]:
    names = [field.attname for name, field in fields(rows.model).items() if name not in own]
    return list(rows.order_by(names[0]).values(*names))


@pytest.mark.django_db
def test_a_fork_carries_every_column() -> None:
    memory = build(MarkerModel())
    talk(memory, 12)
    assert memory.compact("s") == "published"
    keep = {"position", "public_id", "role", "version", "first_position", "last_position", "building", "invalidated_at"}
    rows = {models.Message: session().convmemory_messages, models.Summary: session().convmemory_summaries}
    for model, related in rows.items():
        changed = {name: sample(field) for name, field in fields(model).items() if name not in keep | OWN[model]}
        related.update(**changed)
        assert all(related.filter(**{name: value}).exists() for name, value in changed.items())

    copy = memory.fork("s", 12, key="copy")

    assert contents(copy.convmemory_messages, OWN[models.Message]) == contents(
        session().convmemory_messages, OWN[models.Message]
    )
    assert contents(copy.convmemory_summaries, OWN[models.Summary]) == contents(
        session().convmemory_summaries, OWN[models.Summary]
    )
    assert copy.convmemory_summaries.exists()


def copy_of_the_package(folder: Path) -> Path:
    """Copy the package, and add the column ``name`` to it: a field of the model, an entry of the table, its value."""
    package = folder / "django_convmemory"
    shutil.copytree(
        Path(django_convmemory.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "locale")
    )
    for file, line, added in (
        ("models.py", "    tokens = models.IntegerField", "    name = models.TextField(null=True)\n"),
        ("store/columns.py", '    Column("usage"', '    Column("name", "text", read=True, redacted=True),\n'),
        ("store/columns.py", '        "usage": ', '        "name": message.name,\n'),
    ):
        text = (package / file).read_text()
        assert text.count(line) == 1
        (package / file).write_text(text.replace(line, added + line))
    return package


# What the site does with the column. Its value is then changed in the row, to see that the row is read.
SCRIPT = """
import django
django.setup()

from django.core.management import call_command
from django.db import connection

call_command("makemigrations", "convmemory", verbosity=0)
connection.creation.create_test_db(verbosity=0)
try:
    from django_convmemory import models
    from django_convmemory.memory import memories
    from django_convmemory.messages import ChatMessage

    def names(key):
        rows = list(models.Message.objects.filter(session__key=key).order_by("position").values_list("name", flat=True))
        # The pinned message comes first in a context.
        shown = [message.name for message in memory.load(key)]
        assert sorted(shown, key=str) == sorted(rows, key=str), (shown, rows)
        assert [one.message.name for one in memory.history(key)] == rows
        return rows

    memory = memories["default"]
    memory.append("s", ChatMessage.human("one", name="anna"))
    memory.append("s", ChatMessage.human("two"), ChatMessage.ai("three", name="bert"), ChatMessage.system("four"))
    assert names("s") == ["anna", None, "bert", None], names("s")
    models.Message.objects.filter(position__in=(1, 2, 4)).update(name="carl")
    memory.fork("s", 4, key="copy")
    assert names("s") == names("copy") == ["carl", "carl", "bert", "carl"], names("copy")
    memory.redact("s", 3, forks=False)
    assert names("s") == ["carl", "carl", "bert", "carl"], names("s")
finally:
    connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)
"""


@pytest.mark.slow
@pytest.mark.django_db
def test_a_column_is_added_by_a_field_a_migration_an_entry_of_the_table_and_its_value(tmp_path: Path) -> None:
    package = copy_of_the_package(tmp_path)
    root = Path(__file__).parent.parent
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, root))),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "CONVMEMORY_TEST_RUN": f"{os.environ['CONVMEMORY_TEST_RUN']}_column_{os.getpid()}",
    }
    environ.pop("CONVMEMORY_TEST_DATABASE_NAME", None)
    # makemigrations looks for the database of the site, which the tests do not have.
    command = [sys.executable, "-W", "error", "-W", "ignore:Got an error checking", "-c", SCRIPT]
    processes.output_of(command, tmp_path, environ)
    assert len(list((package / "migrations").glob("0*.py"))) > len(
        list((root / "django_convmemory" / "migrations").glob("0*.py"))
    )
