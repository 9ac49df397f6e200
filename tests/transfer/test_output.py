"""The output of the two commands, on a terminal and on other streams."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest
from django.core.management import call_command

from tests.transfer.records import Terminal, call, record

pytestmark = pytest.mark.django_db


def test_verbosity_0_prints_nothing(write: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert call("convmemory_import", write(record("a")), verbosity=0) == ""
    assert call("convmemory_export", "--output", tmp_path / "out", verbosity=0) == ""
    assert terminal.getvalue() == ""


def test_standard_output_has_nothing_but_the_export(write: Any) -> None:
    call("convmemory_import", write(record("a")))
    out, stderr = Terminal(), Terminal()

    call_command("convmemory_export", stdout=out, stderr=stderr)

    assert [json.loads(line)["key"] for line in out.getvalue().splitlines()] == ["a"]
    assert stderr.getvalue() == "1 session exported with 1 message.\n"
