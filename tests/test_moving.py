"""The code of docs/guides/moving.md moves a table of messages, and continues after an interruption."""

from __future__ import annotations

import datetime as dt
import pathlib
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command

from django_convmemory import exceptions, models
from django_convmemory.maintenance import integrity
from django_convmemory.maintenance.transfer import records
from django_convmemory.memory import memories
from django_convmemory.testing import ScriptedMemories
from tests.guides.test_pages import PAGES, module_of

START = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)

pytestmark = pytest.mark.django_db


class Rows:
    """Stands for the manager of the site's old model."""

    def __init__(self, rows: list[Any], fails_at: int | None = None) -> None:
        self.rows, self.fails_at = rows, fails_at

    def select_related(self, *names: str) -> Rows:
        return self

    def order_by(self, *names: str) -> Rows:
        assert names == ("conversation_id", "pk")
        return self

    def iterator(self) -> Iterator[Any]:
        for number, row in enumerate(self.rows):
            if number == self.fails_at:
                raise ConnectionError
            yield row


def move(monkeypatch: pytest.MonkeyPatch, rows: Rows) -> None:
    """Run the page's code on a site with these rows."""
    table = types.SimpleNamespace(objects=rows)
    monkeypatch.setitem(sys.modules, "chats", types.ModuleType("chats"))
    monkeypatch.setitem(sys.modules, "chats.models", types.SimpleNamespace(OldMessage=table))
    module_of("moving", "move_messages.py")["move"]()


def test_a_table_is_moved_over_and_a_second_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, convmemory: ScriptedMemories
) -> None:
    ann = get_user_model().objects.create(username="ann")
    old = [
        types.SimpleNamespace(
            pk=number,
            conversation_id=number // 20,
            user=ann if number < 40 else None,
            role="bot" if number % 2 else "human",
            text=f"message {number} " + "word " * 30,
            created_at=START + dt.timedelta(minutes=number),
        )
        for number in range(60)
    ]
    with pytest.raises(ConnectionError):
        move(monkeypatch, Rows(old, fails_at=33))
    move(monkeypatch, Rows(old))

    scopes: list[dict[str, Any]] = [{"owner": ann}, {"owner": ann}, {"visitor": "conversation-2"}]
    moved = [
        (stored.message.text, stored.created_at)
        for number, scope in enumerate(scopes)
        for stored in memories["default"].session(f"conversation-{number}", **scope).history(limit=100)
    ]
    assert moved == [(row.text, row.created_at) for row in old]
    assert models.Session.objects.due().count() == 3
    convmemory.reply(*["They counted words."] * 3)
    assert convmemory.run() == ["published"] * 3
    assert list(integrity.check(models.Session.objects.all())) == []


def test_what_cannot_be_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = types.SimpleNamespace(pk=7, conversation_id=1, user=None, role="oracle", text="I see.", created_at=START)
    with pytest.raises(exceptions.InvalidMessage, match="oracle") as raised:
        move(monkeypatch, Rows([old]))
    assert raised.value.__notes__ == ["The error is about old message 7 of conversation 1."]


def test_the_record_of_the_page_can_be_imported(tmp_path: pathlib.Path) -> None:
    [record] = re.findall(r"```json\n(.*?)```", PAGES["moving"], re.DOTALL)
    get_user_model().objects.create(username="anna")
    (tmp_path / "sessions.jsonl").write_text(record)

    call_command("convmemory_import", str(tmp_path / "sessions.jsonl"), verbosity=0)

    [message] = memories["default"].history(models.Session.objects.get(owner__username="anna"))
    assert message.message.metadata == {"old_id": 711}
    table = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)?", PAGES["moving"], re.MULTILINE)
    assert {name for row in table for name in row if name} | {"visitor"} == set(records.FIELDS)
