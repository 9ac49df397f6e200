"""``python -m tests.run`` runs pytest on each database, and says why a run had no tests. CI has the same examples."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests import run, servers


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The exit code of pytest on each database, to be set by the test. Every server is available."""
    codes: dict[str, int] = {}

    def call(command: list[str], env: dict[str, str]) -> int:
        assert command[:3] == [sys.executable, "-m", "pytest"]
        return codes.get(env["CONVMEMORY_TEST_DATABASE"], 0)

    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr(servers, "why_absent", lambda name: None)
    monkeypatch.delenv("CONVMEMORY_TEST_DATABASES", raising=False)
    return codes


def test_a_file_that_needs_no_database_is_no_failure_on_a_server_database(codes: dict[str, int], capsys: Any) -> None:
    codes["postgresql"] = codes["mariadb"] = pytest.ExitCode.NO_TESTS_COLLECTED

    assert run.main(["tests/test_counters.py"]) == 0

    assert capsys.readouterr().out.count("This is no failure") == 2


@pytest.mark.parametrize(
    ("database", "code"), [("sqlite", pytest.ExitCode.NO_TESTS_COLLECTED), ("mariadb", pytest.ExitCode.TESTS_FAILED)]
)
def test_a_failure_names_the_database(codes: dict[str, int], capsys: Any, database: str, code: int) -> None:
    codes[database] = code

    assert run.main([]) == 1

    printed = capsys.readouterr()
    assert printed.err == f"Tests failed on {database}.\n"
    assert "This is no failure" not in printed.out


def test_the_environment_chooses_the_databases(
    codes: dict[str, int], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVMEMORY_TEST_DATABASES", "sqlite")
    codes["postgresql"] = pytest.ExitCode.TESTS_FAILED

    assert run.main([]) == 0

    assert "Tests on postgresql" not in capsys.readouterr().out


# Property tests.

_PRINTS_EXAMPLES = """
import json
import hypothesis
from hypothesis import strategies as st
import tests.conftest

examples = []

@hypothesis.given(st.integers())
def note(example):
    examples.append(example)

note()
print(json.dumps(examples))
"""


def examples(folder: pathlib.Path, **variables: str) -> list[int]:
    """Return the examples that a new process gives a property test."""
    script = folder / "prints_examples.py"
    script.write_text(_PRINTS_EXAMPLES)
    environ = {name: value for name, value in os.environ.items() if name != "CI"}
    environ |= {"PYTHONPATH": str(pathlib.Path(__file__).parent.parent), **variables}
    printed = subprocess.run([sys.executable, script], cwd=folder, env=environ, check=True, stdout=subprocess.PIPE)
    numbers: list[int] = json.loads(printed.stdout)
    return numbers


def test_in_ci_the_examples_depend_on_the_commit_only(tmp_path: pathlib.Path) -> None:
    assert examples(tmp_path, CI="true") == examples(tmp_path, CI="true")


def test_elsewhere_each_run_tries_other_examples(tmp_path: pathlib.Path) -> None:
    assert examples(tmp_path) != examples(tmp_path)
