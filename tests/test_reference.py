"""docs/reference.md and docs/settings.md name every public name with its default, and no other."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import pathlib
import re
from typing import Any

import pytest
from django.utils.module_loading import import_string

from django_convmemory import conf, exceptions, signals
from django_convmemory.rules import options, strategies

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATHS = {path for page in PAGES for path in re.findall(r"\bdjango_convmemory(?:\.\w+)+", page.read_text("utf-8"))}
SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
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


def table(section: str) -> dict[str, str]:
    """Return the first two columns of the table of a section, without their code marks."""
    text = SETTINGS.partition(f"## {section}\n")[2].partition("\n## ")[0]
    [rows] = [
        list(rows) for is_row, rows in itertools.groupby(text.splitlines(), lambda line: line[:1] == "|") if is_row
    ]
    cells = [[cell.strip().strip("`") for cell in row.split("|")] for row in rows[2:]]
    return {cell[1]: cell[2] for cell in cells}


def test_the_keys_of_the_setting_are_in_its_table() -> None:
    def default(value: Any) -> str:
        return value["BACKEND"] if isinstance(value, dict) and value else str(value)

    assert table("The keys of an alias") == {key: default(value) for key, value in conf.DEFAULTS.items()}


def test_the_options_of_a_memory_are_in_their_table() -> None:
    own = {field.name: field.default for field in dataclasses.fields(options.Options)}
    usual = options.Options().sized(conf.STRATEGY_DEFAULTS["max_token_limit"])
    own |= {"max_context_tokens": usual.max_context_tokens, "max_summary_tokens": usual.summary_tokens}
    trimming = {
        field.name: field.default
        for strategy in (strategies.Window, strategies.TokenBuffer)
        for field in dataclasses.fields(strategy)
        if field.default is not dataclasses.MISSING
    }

    assert table("The options of a memory") == {
        name: f'"{value}"' if isinstance(value, str) else str(value)
        for name, value in {**conf.STRATEGY_DEFAULTS, **trimming, **own}.items()
    }


@pytest.mark.parametrize("path", sorted(PATHS))
def test_a_documented_path_can_be_imported(path: str) -> None:
    names = path.split(".")
    found = importlib.import_module(names[0])
    for number, name in enumerate(names[1:], 2):
        if not hasattr(found, name):
            try:
                importlib.import_module(".".join(names[:number]))
            except ModuleNotFoundError as error:
                if error.name and error.name.startswith("django_convmemory"):
                    raise
                pytest.skip(f"needs {error.name}")
        found = getattr(found, name)
