"""The output of the two commands, on a terminal and on other streams."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest
from django.core.management import call_command

from tests.transfer.records import Terminal, call, record


@pytest.mark.django_db
def test_a_terminal_shows_a_progress_bar(write: Any, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tqdm")
    path = write(*[record(str(number)) for number in range(3)])

    imported = call("convmemory_import", path, stream=Terminal())
    exported = call("convmemory_export", "--output", tmp_path / "out", stream=Terminal())

    assert "\rimported: 100%" in imported
    assert "3/3" in imported
    assert imported.endswith("3 sessions imported with 3 messages, 0 already in the database.\n")
    assert "\rexported: 100%" in exported


@pytest.mark.django_db
def test_without_tqdm_a_terminal_shows_lines(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)

    output = call("convmemory_import", write(record("a")), stream=Terminal())

    assert "\r" not in output
    assert output.endswith("1 session imported with 1 message, 0 already in the database.\n")


@pytest.mark.django_db
def test_other_streams_show_lines(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_convmemory.management.progress._INTERVAL", 2)
    path = write(*[record(str(number)) for number in range(5)])

    assert call("convmemory_import", path).splitlines()[1:] == [
        "2 sessions imported so far",
        "4 sessions imported so far",
        "5 sessions imported with 5 messages, 0 already in the database.",
    ]


@pytest.mark.django_db
def test_verbosity_0_prints_nothing(write: Any, tmp_path: pathlib.Path) -> None:
    assert call("convmemory_import", write(record("a")), verbosity=0, stream=Terminal()) == ""
    assert call("convmemory_export", "--output", tmp_path / "out", verbosity=0, stream=Terminal()) == ""


@pytest.mark.django_db
def test_standard_output_has_nothing_but_the_export(write: Any) -> None:
    call("convmemory_import", write(record("a")))
    out, stderr = Terminal(), Terminal()

    call_command("convmemory_export", stdout=out, stderr=stderr)

    assert [json.loads(line)["key"] for line in out.getvalue().splitlines()] == ["a"]
    assert stderr.getvalue() == "1 session exported with 1 message.\n"
