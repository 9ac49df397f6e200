from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import RunPython, RunSQL


@pytest.mark.django_db
def test_a_router_that_decides_by_model_is_told_one_for_all_that_is_run() -> None:
    """It would leave the tables out of a database, and not what is done to them."""
    found = [
        operation
        for (app, _), migration in MigrationLoader(connection).disk_migrations.items()
        if app == "convmemory"
        for operation in migration.operations
        if isinstance(operation, RunPython | RunSQL)
    ]
    assert len(found) == 2
    for operation in found:
        assert apps.get_model("convmemory", operation.hints["model_name"])
