"""``python -m tests.run`` runs a tier on each of its databases."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from tests import run, servers, tiers


@pytest.fixture(autouse=True)
def every_server_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(servers.ABSENT, raising=False)


pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize(
    ("database", "code"), [("sqlite", pytest.ExitCode.NO_TESTS_COLLECTED), ("mariadb", pytest.ExitCode.TESTS_FAILED)]
)
def test_a_failure_names_the_database(codes: dict[str, int], capsys: Any, database: str, code: int) -> None:
    codes[database] = code

    assert run.main("all", []) == 1

    printed = capsys.readouterr()
    assert printed.err == f"Tests failed on {database}.\n"
    assert "This is no failure" not in printed.out


# Which tier runs a test, and on which databases.

PLAIN = tiers.Needs(database=True, only_on=(), slow=False, vendors=False, release=False)


@pytest.mark.parametrize(
    ("needs", "quick", "all_tests"),
    [
        (PLAIN, "sqlite", "postgresql"),
        (dataclasses.replace(PLAIN, database=False), "sqlite", ""),
        (dataclasses.replace(PLAIN, vendors=True), "sqlite", "postgresql mariadb"),
        (dataclasses.replace(PLAIN, slow=True), "", "postgresql"),
        (dataclasses.replace(PLAIN, slow=True, vendors=True), "", "sqlite postgresql mariadb"),
        (dataclasses.replace(PLAIN, slow=True, database=False), "", "sqlite"),
        (dataclasses.replace(PLAIN, only_on=("mariadb",)), "", "mariadb"),
        (dataclasses.replace(PLAIN, only_on=("sqlite",)), "sqlite", ""),
        (dataclasses.replace(PLAIN, only_on=("sqlite",), slow=True), "", "sqlite"),
        (dataclasses.replace(PLAIN, release=True), "", ""),
    ],
)
def test_the_tier_all_runs_what_the_quick_one_leaves_out(needs: tiers.Needs, quick: str, all_tests: str) -> None:
    def where(tier: str) -> str:
        return " ".join(name for name in run.DATABASES[tiers.ALL] if tiers.runs(needs, tier, name))

    assert (where("quick"), where("all")) == (quick, all_tests)
    assert where("release")


def test_slow_tests_run_on_sqlite_where_postgresql_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(servers.ABSENT, "mariadb, postgresql")

    assert tiers.runs(dataclasses.replace(PLAIN, slow=True), "all", "sqlite")
    assert not tiers.runs(PLAIN, "all", "sqlite")
