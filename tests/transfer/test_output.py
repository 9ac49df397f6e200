"""The output of the two commands, on a terminal and on other streams."""

from __future__ import annotations

import io
import json
import pathlib
import sys
from typing import Any

import pytest
from django.core.management import call_command

from tests.transfer.records import Terminal, call, record


@pytest.mark.django_db
def test_a_terminal_shows_a_progress_bar(write: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    path = write(*[record(str(number)) for number in range(3)])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())

    imported = call("convmemory_import", path)
    call("convmemory_export", "--output", tmp_path / "out")

    assert "\rimported: 100%" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()
    assert "\rexported: 100%" in terminal.getvalue()
    assert imported.endswith("3 sessions imported with 3 messages, 0 already in the database.\n")


@pytest.mark.django_db
@pytest.mark.parametrize("without_tqdm", [False, True])
def test_nothing_else_shows_one(without_tqdm: bool, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal() if without_tqdm else io.StringIO())
    if without_tqdm:
        monkeypatch.setitem(sys.modules, "tqdm", None)

    call("convmemory_import", write(record("a")))

    assert stream.getvalue() == ""


@pytest.mark.django_db
def test_verbosity_0_prints_nothing(write: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert call("convmemory_import", write(record("a")), verbosity=0) == ""
    assert call("convmemory_export", "--output", tmp_path / "out", verbosity=0) == ""
    assert terminal.getvalue() == ""


@pytest.mark.django_db
def test_standard_output_has_nothing_but_the_export(write: Any) -> None:
    call("convmemory_import", write(record("a")))
    out, stderr = Terminal(), Terminal()

    call_command("convmemory_export", stdout=out, stderr=stderr)

    assert [json.loads(line)["key"] for line in out.getvalue().splitlines()] == ["a"]
    assert stderr.getvalue() == "1 session exported with 1 message.\n"
