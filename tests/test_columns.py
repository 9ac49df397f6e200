"""The columns of a message: the table, the values and the model agree, and a fork carries them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db.models import Field

from django_convmemory import models
from django_convmemory.fields import ExactJSONField
from django_convmemory.store import columns
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
