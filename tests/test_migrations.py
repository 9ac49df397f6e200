from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import RunPython, RunSQL

pytestmark = pytest.mark.vendors


@pytest.mark.django_db
def test_a_router_that_decides_by_model_is_told_one_for_all_that_is_run() -> None:
    """A router that answers by model would keep the tables out of a database, but not the SQL that alters them."""
    operations = [
        operation
        for (app, _), migration in MigrationLoader(connection).disk_migrations.items()
        if app == "convmemory"
        for operation in migration.operations
        if isinstance(operation, RunPython | RunSQL)
    ]
    assert len(operations) == 2
    for operation in operations:
        assert apps.get_model("convmemory", operation.hints["model_name"])


@pytest.mark.django_db(transaction=True)
def test_the_tables_can_be_removed_and_made_again() -> None:
    before = tables()
    assert "convmemory_message" in before
    try:
        call_command("migrate", "convmemory", "zero", verbosity=0)
        assert not [name for name in connection.introspection.table_names() if name.startswith("convmemory_")]
    finally:
        call_command("migrate", verbosity=0)  # Also the apps whose tables belong to these.
    assert tables() == before


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Only PostgreSQL has such indexes.")
@pytest.mark.django_db
def test_on_postgresql_indexes_hold_only_what_is_looked_up_and_pages_keep_room() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'convmemory_session'")
        assert cursor.fetchone() == (["fillfactor=70"],)
        cursor.execute(
            "SELECT indexname, split_part(indexdef, ' WHERE ', 2) FROM pg_indexes "
            "WHERE tablename LIKE 'convmemory%%' AND indexdef LIKE '%% WHERE %%' "
            "AND tablename NOT IN (SELECT inhrelid::regclass::text FROM pg_inherits) ORDER BY 1"  # no partitions
        )
        assert cursor.fetchall() == [
            ("convmemory_session_creation", "(creation_key IS NOT NULL)"),
            ("convmemory_summary_time", "((NOT building) AND (invalidated_at IS NULL))"),
        ]


def tables() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Return the columns of each table, and its indexes and constraints."""
    found = {}
    with connection.cursor() as cursor:
        for name in connection.introspection.table_names(cursor):
            if name.startswith("convmemory_"):
                # MariaDB says how long the longest stored value is.
                described = connection.introspection.get_table_description(cursor, name)
                columns = [str(column._replace(display_size=None)) for column in described]
                found[name] = columns, connection.introspection.get_constraints(cursor, name)
    return found
