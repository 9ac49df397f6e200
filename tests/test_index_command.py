"""``manage.py convmemory_check --reindex`` indexes what is stored already."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.search import indexing
from django_convmemory.store.orm import ORMStore

pytestmark = pytest.mark.django_db

WINDOW = {"MEMORY": "django_convmemory.memory.ConversationWindowMemory", "OPTIONS": {"window_size": 4}}
WITHOUT_INDEX = {**WINDOW, "OPTIONS": {"window_size": 4, "index": False}}


def index(*arguments: str) -> str:
    output = StringIO()
    call_command("convmemory_check", "--reindex", *arguments, stdout=output)
    return output.getvalue()


@pytest.fixture(autouse=True)
def aliases(settings: Any) -> None:
    """Three memories with the sessions ``long`` and ``short``: 300 and 3 messages. The third one is not indexed."""
    convmemory = settings.CONVMEMORY
    settings.CONVMEMORY = {**convmemory, "window": WINDOW, "off": WITHOUT_INDEX}
    for alias in settings.CONVMEMORY:
        for key, count in (("long", 300), ("short", 3), ("one", 1)):
            memories[alias].append(key, *[ChatMessage.human(f"heron {number}") for number in range(count)])


def indexed() -> dict[str, list[int]]:
    rows = models.Session.objects.order_by("pk").values_list("alias", "indexed_position")
    positions: dict[str, list[int]] = {}
    for alias, position in rows:
        positions.setdefault(alias, []).append(position)
    return positions


def test_everything_is_indexed() -> None:
    assert index() == "Checked 9 sessions. 6 sessions reindexed. Nothing is wrong.\n"
    assert indexed() == {"default": [300, 3, 1], "window": [300, 3, 1], "off": [0, 0, 0]}
    assert list(integrity.check(models.Session.objects.all())) == []
    assert index() == "Checked 9 sessions. Nothing is wrong.\n"


def index_by_check(session: models.Session) -> None:
    session.convmemory_segments.all().delete()
    models.Session.objects.filter(pk=session.pk).update(indexed_position=1)
    index()


def index_by_import(session: models.Session) -> None:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        call_command("convmemory_export", "--alias", "window", "--key", "long", output=file.name, stdout=StringIO())
        memories["window"].delete("long")
        call_command("convmemory_import", file.name, "--alias", "window", stdout=StringIO())


@pytest.mark.parametrize("run", [lambda session: index("--alias", "window"), index_by_check, index_by_import])
def test_commands_index_a_session_to_its_end_however_long_it_takes(
    run: Callable[[models.Session], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at the clock is a minute later than the one before.
    minutes = itertools.count()
    monkeypatch.setattr(indexing, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))
    unindexed = ORMStore.unindexed
    monkeypatch.setattr(ORMStore, "unindexed", lambda store, session_id, limit: unindexed(store, session_id, limit=100))

    run(models.Session.objects.get(alias="window", key="long"))

    assert models.Session.objects.get(alias="window", key="long").indexed_position == 300


def test_it_changes_nothing_that_a_site_sees() -> None:
    columns = ("revision", "epoch", "updated_at", "due_since", "last_error", "attempts")
    before = list(models.Session.objects.order_by("pk").values_list(*columns))
    index()
    assert list(models.Session.objects.order_by("pk").values_list(*columns)) == before


def test_it_says_nothing_if_it_is_told_to() -> None:
    assert index("--verbosity", "0") == ""
    assert indexed()["window"] == [300, 3, 1]
