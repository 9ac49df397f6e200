"""The files that ``manage.py convmemory_import`` reads."""

from __future__ import annotations

import io
import json
import pathlib
import sys
from typing import Any

import pytest

from django_convmemory import models
from django_convmemory.messages import ChatMessage
from tests.transfer.records import call, human, record, stored


@pytest.mark.django_db
@pytest.mark.parametrize("form", ["{0}\n{1}\n", "\n\n {0}\r\n\n{1}", "\ufeff{0}\n{1}"])
def test_a_file_has_one_record_a_line(form: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records"
    path.write_text(form.format(json.dumps(record("a")), json.dumps(record("b"))), encoding="utf-8", newline="")

    assert call("convmemory_import", path).endswith("2 sessions imported with 2 messages, 0 already in the database.\n")
    assert set(models.Session.objects.values_list("key", flat=True)) == {"a", "b"}


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["", " \n"])
def test_a_file_may_be_empty(text: str, write: Any) -> None:
    assert "0 sessions imported" in call("convmemory_import", write(text))


@pytest.mark.django_db
def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(
        io.BytesIO(json.dumps(record("a", human("一种语言")), ensure_ascii=False).encode()), "ascii"
    )
    monkeypatch.setattr(sys, "stdin", stdin)

    assert call("convmemory_import", "-") == "1 session imported with 1 message, 0 already in the database.\n"
    assert stored("a") == [ChatMessage.human("一种语言")]
    assert not stdin.buffer.closed
