from __future__ import annotations

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import RunPython, RunSQL

from django_convmemory import models
from django_convmemory.maintenance import integrity
from tests.folding import MarkerModel, build, talk


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
    assert len(operations) == 4
    for operation in operations:
        assert apps.get_model("convmemory", operation.hints["model_name"])


@pytest.mark.django_db
def test_a_process_of_the_release_before_still_records_its_calls() -> None:
    state = MigrationLoader(connection).project_state(("convmemory", "0010_lists"))
    state.apps.get_model("convmemory", "Attempt").objects.create(
        alias="default", first_position=1, last_position=4, outcome="published", prompt_tokens=7
    )
    attempt = models.Attempt.objects.get()
    assert (attempt.prompt_tokens, attempt.cached_tokens) == (7, None)


@pytest.mark.django_db(transaction=True)
def test_a_part_of_a_message_is_dropped_when_the_site_goes_back_a_release() -> None:
    memory = build(MarkerModel())
    talk(memory, 12)
    memory.compact("s")
    line = models.Summary.objects.get()
    # The next message is folded in part.
    position = line.last_position + 1
    models.Summary.objects.create(
        session=line.session,
        version=2,
        parent_version=1,
        first_position=position,
        last_position=position,
        covered_count=line.covered_count + 1,
        covered_tokens=line.covered_tokens + 1,
        text="Half of it.",
        tokens=4,
        building=True,
        part_end=9,
        prompt_hash=line.prompt_hash,
    )
    models.Session.objects.update(last_version=2)
    try:
        call_command("migrate", "convmemory", "0005", verbosity=0)
    finally:
        call_command("migrate", "convmemory", verbosity=0)

    assert list(models.Summary.objects.valid().values_list("version", flat=True)) == [1]
    talk(memory, 12)
    assert memory.compact("s") == "published"
    assert list(integrity.check(models.Session.objects.all())) == []
