"""docs/reference.md names every public name, and no other."""

from __future__ import annotations

import inspect
import pathlib
import re

import pytest
from django.utils.module_loading import import_string

from django_convmemory import exceptions, signals

ROOT = pathlib.Path(__file__).parent.parent
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
CODE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "django_convmemory").rglob("*.py"))


def first_cells(section: str) -> list[str]:
    text = REFERENCE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


@pytest.mark.parametrize("path", re.findall(r"`(django_convmemory\.\w+(?:\.\w+)*\.[A-Z]\w+)`", REFERENCE))
def test_backends_are_there_with_their_options(path: str) -> None:
    [row] = [line for line in REFERENCE.splitlines() if f"`{path}`" in line]
    parameters = inspect.signature(import_string(path)).parameters
    options = row.split("|")[3]
    assert all(f"`{name}`" in options for name in parameters) if parameters else "none" in options


def test_signals_and_errors_are_all_named() -> None:
    assert set(first_cells("Signals")) == {name for name in vars(signals) if not name.startswith("_")} - {"Signal"}
    errors = {name for name, value in vars(exceptions).items() if inspect.isclass(value)}
    assert set(first_cells("Errors")) == errors - {"ConvMemoryError", "ChatModelError"}


def test_every_check_is_named() -> None:
    assert set(first_cells("Checks")) == set(re.findall(r"convmemory\.[EW]\d{3}\b(?= to)?", CODE)) - {""}


def test_every_task_and_command_is_named() -> None:
    tasks = set(re.findall(r'name="(convmemory\.\w+)"', CODE))
    folders = (ROOT / "django_convmemory").rglob("management/commands")
    commands = {f"manage.py {path.stem}" for folder in folders for path in folder.glob("convmemory_*.py")}
    assert set(first_cells("Tasks and commands")) == tasks | commands
