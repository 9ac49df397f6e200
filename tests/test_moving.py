"""The code of docs/moving.md moves a table of messages over, and goes on after an interruption."""

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

from django_convmemory import integrity, models
from django_convmemory.memory import memories
from django_convmemory.testing import ScriptedMemories

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "moving.md"
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


def test_a_table_is_moved_over_and_a_second_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, convmemory: ScriptedMemories
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    ann = get_user_model().objects.create(username="ann")
    old = [
        types.SimpleNamespace(
            pk=number,
            conversation_id=number // 20,
            user=ann,
            role="assistant" if number % 2 else "user",
            text=f"message {number} " + "word " * 30,
            created_at=START + dt.timedelta(minutes=number),
        )
        for number in range(60)
    ]
    table = types.SimpleNamespace(objects=Rows(old, fails_at=33))
    monkeypatch.setitem(sys.modules, "chats", types.ModuleType("chats"))
    monkeypatch.setitem(sys.modules, "chats.models", types.SimpleNamespace(OldMessage=table))
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # noqa: S102

    with pytest.raises(ConnectionError):
        namespace["move"]()
    table.objects = Rows(old)
    namespace["move"]()

    moved = [
        (one.message.text, one.created_at)
        for number in range(3)
        for one in memories["default"].session(f"conversation-{number}", owner=ann).history(limit=100)
    ]
    assert moved == [(row.text, row.created_at) for row in old]
    assert models.Session.objects.due().count() == 3
    convmemory.reply(*["They counted."] * 3)
    assert convmemory.run() == ["published"] * 3
    assert list(integrity.check(models.Session.objects.all())) == []
