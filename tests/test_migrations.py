from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import RunPython, RunSQL


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
