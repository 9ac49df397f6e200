"""The files that ``manage.py convmemory_import`` reads."""

from __future__ import annotations

import io
import json
import pathlib
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_convmemory import models
from django_convmemory.maintenance.transfer.records import BadRecord, read
from django_convmemory.messages import ChatMessage
from tests.transfer import records
from tests.transfer.records import call, human, record, stored


@pytest.mark.django_db
@pytest.mark.parametrize(
    "form", ["{0}\n{1}\n", "\n\n {0}\r\n\n{1}", "[{0},{1}]", " \n [\n{0}\n, {1}\n]\n", "\ufeff{0}\n{1}"]
)
def test_a_file_has_one_record_a_line_or_a_list(form: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records"
    path.write_text(form.format(json.dumps(record("a")), json.dumps(record("b"))), encoding="utf-8", newline="")

    assert call("convmemory_import", path).endswith("2 sessions imported with 2 messages, 0 already in the database.\n")
    assert set(models.Session.objects.values_list("key", flat=True)) == {"a", "b"}


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["", " \n", "[]", " [ ] "])
def test_a_file_may_be_empty(text: str, write: Any) -> None:
    assert "0 sessions imported" in call("convmemory_import", write(text))


@given(
    metadata=st.lists(st.dictionaries(records.TEXTS, records.JSON, max_size=3), max_size=5),
    chunk=st.integers(1, 100),
    data=st.data(),
)
def test_a_list_is_read_the_same_in_pieces_of_any_size(
    metadata: list[dict[str, Any]], chunk: int, data: st.DataObject
) -> None:
    written = [record(str(number), metadata=value) for number, value in enumerate(metadata)]
    text = json.dumps(written, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_convmemory.maintenance.transfer.records._CHUNK", chunk)
        recorded = list(read(io.StringIO(text)))

    assert [(item.place, item.key, item.metadata) for item in recorded] == [
        (f"item {number}", str(number - 1), value) for number, value in enumerate(metadata, 1)
    ]


def test_an_error_in_a_list_is_raised_before_the_rest_is_read() -> None:
    file = io.StringIO('[{"key": nobody, "messages": []}, ' + " " * 1_000_000)

    with pytest.raises(BadRecord, match=r"item 1: this is not JSON .*character 9"):
        list(read(file))
    assert file.tell() < 100_000


@pytest.mark.django_db
def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(
        io.BytesIO(json.dumps(record("a", human("一种语言")), ensure_ascii=False).encode()), "ascii"
    )
    monkeypatch.setattr(sys, "stdin", stdin)

    assert call("convmemory_import", "-") == "1 session imported with 1 message, 0 already in the database.\n"
    assert stored("a") == [ChatMessage.human("一种语言")]
    assert not stdin.buffer.closed
