"""A database of each earlier release, as its dump has it, works after ``migrate``."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command

from django_convmemory import models
from django_convmemory.contrib.embeddings.models import Vector
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests import settings
from tests.releases import databases
from tests.test_migrations import tables

pytestmark = [
    pytest.mark.vendors,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(settings.PARTITIONS > 0, reason="The dumps have no partitions."),
]
RELEASES = sorted(path.name for path in databases.FOLDER.glob("*.*.*"))


@pytest.fixture(params=RELEASES)
def new_tables(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[object]:
    """Load the dump of a release, and migrate. Yield the tables of a database that was made by this code."""
    made = tables()
    dump = databases.FOLDER / request.param / f"{settings.DATABASE}.sql"
    with databases.empty(tmp_path):
        databases.load(dump.read_text(encoding="utf-8"))
        call_command("migrate", verbosity=0, skip_checks=False)
        yield made


def test_there_is_a_dump_of_each_release_for_each_database() -> None:
    assert RELEASES
    for release in RELEASES:
        names = {path.name for path in (databases.FOLDER / release).iterdir()}
        assert names == {"sqlite.sql", "postgresql.sql", "mariadb.sql"}


def test_a_database_of_an_earlier_release_becomes_like_a_new_one(new_tables: object) -> None:
    """It fails if a released migration is edited: the old database keeps what the edit changed."""
    assert tables() == new_tables


def test_a_database_of_an_earlier_release_works(new_tables: object) -> None:
    output = StringIO()
    call_command("check", databases=["default"])
    call_command("convmemory_check", stdout=output)
    assert "Nothing is wrong." in output.getvalue()

    memory = memories["default"]
    rows = {row.key: row for row in models.Session.objects.all()}
    assert len(rows) >= 5
    for row in rows.values():
        history, context = memory.history(row), memory.load(row)
        assert [stored.position for stored in history] == list(range(1, row.last_position + 1))
        assert context[-1].text == history[-1].message.text
        if row.current_version:
            summary = row.convmemory_summaries.get(version=row.current_version)
            assert summary.text
            assert any(summary.text in message.text for message in context)

    trip = memory.session("trip", owner=get_user_model().objects.get(username="anna"))
    assert trip.search("48151")[0].position == 2
    assert {hit.position for hit in trip.search("heron", limit=8)} == set(range(6, 14))
    assert [stored.position for stored in trip.history() if stored.redacted] == [4, 5]
    assert [stored.position for stored in memory.history(rows["copy"]) if stored.redacted] == [4, 5]
    assert rows["copy"].forked_from == rows["trip"]
    assert Vector.objects.filter(session=rows["trip"]).exists()
    assert memory.session("visit", visitor="v-1").history()[1].reply_to == 1
    [kept] = memory.history("everybody", items=True)
    assert kept.message.item == {"type": "message", "role": "user", "content": "A kingfisher, as an item."}

    first = (ChatMessage.human("My number is 48151."), ChatMessage.ai("Noted."))
    assert trip.append(*first, idempotency_key="first").replayed
    appended = trip.append(ChatMessage.human("And on Friday?"), idempotency_key="next")
    assert appended.last_position == rows["trip"].last_position + 1
    assert trip.load()[-1].text == "And on Friday?"
    assert memory.compact("due") == "published"
    call_command("convmemory_check", stdout=output)
    assert output.getvalue().count("Nothing is wrong.") == 2
