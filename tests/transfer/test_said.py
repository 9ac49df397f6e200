"""The output of the two commands, on a terminal and elsewhere."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

if TYPE_CHECKING:
    pass

from tests.transfer.records import Terminal, call, record


@pytest.mark.django_db
def test_on_a_terminal_there_is_a_bar(write: Any, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tqdm")
    path = write(*[record(str(number)) for number in range(3)])

    imported = call("convmemory_import", path, stream=Terminal())
    said = call("convmemory_export", "--output", tmp_path / "out", stream=Terminal())

    assert "\rimported: 100%" in imported
    assert "3/3" in imported
    assert imported.endswith("3 sessions imported with 3 messages, 0 were there already.\n")
    assert "\rexported: 100%" in said


@pytest.mark.django_db
def test_without_tqdm_there_are_lines_on_a_terminal_too(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)

    said = call("convmemory_import", write(record("a")), stream=Terminal())

    assert "\r" not in said
    assert said.endswith("1 session imported with 1 message, 0 were there already.\n")


@pytest.mark.django_db
def test_elsewhere_there_are_lines(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_convmemory.management.progress._EACH", 2)
    path = write(*[record(str(number)) for number in range(5)])

    assert call("convmemory_import", path).splitlines()[1:] == [
        "2 sessions imported so far",
        "4 sessions imported so far",
        "5 sessions imported with 5 messages, 0 were there already.",
    ]


@pytest.mark.django_db
def test_it_is_quiet_when_told_to_be(write: Any, tmp_path: pathlib.Path) -> None:
    assert call("convmemory_import", write(record("a")), verbosity=0, stream=Terminal()) == ""
    assert call("convmemory_export", "--output", tmp_path / "out", verbosity=0, stream=Terminal()) == ""


@pytest.mark.django_db
def test_what_is_exported_to_standard_output_is_alone_there(write: Any) -> None:
    call("convmemory_import", write(record("a")))
    out, said = Terminal(), Terminal()

    call_command("convmemory_export", stdout=out, stderr=said)

    assert [json.loads(line)["key"] for line in out.getvalue().splitlines()] == ["a"]
    assert said.getvalue() == "1 session exported with 1 message.\n"
