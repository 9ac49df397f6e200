"""The pages of docs/reference name every public name with its default, and no other."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
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
SETTINGS, TUNING = (
    (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") for name in ("settings.md", "tuning.md")
)
REFERENCE = (ROOT / "docs" / "reference" / "reference.md").read_text(encoding="utf-8")
CODE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "django_convmemory").rglob("*.py"))


def section(name: str) -> str:
    return REFERENCE.partition(f"## {name}\n")[2].partition("\n## ")[0]


def described(name: str) -> list[str]:
    """Return what the rows or the items of a section begin with."""
    return re.findall(r"^(?:\||-) `([^`]+)`", section(name), re.MULTILINE)


@pytest.mark.parametrize("path", re.findall(r"`(django_convmemory\.\w+(?:\.\w+)*\.[A-Z]\w+)`", REFERENCE))
def test_backends_are_there_with_their_options(path: str) -> None:
    [row] = [line for line in REFERENCE.splitlines() if f"`{path}`" in line]
    parameters = inspect.signature(import_string(path)).parameters
    options = row.split("|")[3]
    assert all(f"`{name}`" in options for name in parameters) if parameters else "none" in options


def test_signals_and_errors_are_all_named() -> None:
    assert set(described("Signals")) == {name for name in vars(signals) if not name.startswith("_")} - {"Signal"}
    base = exceptions.ConvMemoryError
    errors = {
        name: each for name, each in vars(exceptions).items() if isinstance(each, type) and issubclass(each, base)
    }
    of_models = {name for name, value in errors.items() if issubclass(value, exceptions.ChatModelError)}
    assert set(described("Errors")) == of_models - {"ChatModelError"}
    statuses = {
        name: int(status)
        for status, names in re.findall(r"^\| (\d{3}) +\| (.*)", section("Errors"), re.MULTILINE)
        for name in re.findall(r"`([A-Z]\w+)`", names)
    }
    others = errors.keys() - of_models - {"ConvMemoryError"}
    assert statuses == {name: errors[name].status for name in others}


def test_the_classes_of_the_page_describe_themselves() -> None:
    """What the site shows of them is their docstrings."""
    directives = re.findall(r"^\.\. auto(\w+):: (\S+)\n((?:   .*\n)*)", section("Python objects"), flags=re.MULTILINE)
    assert ("module", "django_convmemory.exceptions") in {(kind, path) for kind, path, _ in directives}
    for kind, path, lines in directives:
        if kind == "module":
            module = importlib.import_module(path)
            members = re.findall(r":members: (.+)", lines)
            names = members[0].split(", ") if members else [name for name in vars(module) if name[0].isupper()]
            values = [getattr(module, name) for name in names]
            own = [value for value in values if getattr(value, "__module__", "").startswith("django_convmemory")]
        else:
            own = [import_string(path)]
        assert own, path
        assert all(inspect.getdoc(value) for value in own), path


def test_every_check_is_named() -> None:
    assert set(described("Checks")) == set(re.findall(r"convmemory\.[EW]\d{3}\b(?= to)?", CODE)) - {""}


def test_every_task_and_command_is_named() -> None:
    tasks = set(re.findall(r'name="(convmemory\.\w+)"', CODE))
    folders = (ROOT / "django_convmemory").rglob("management/commands")
    commands = {f"manage.py {path.stem}" for folder in folders for path in folder.glob("convmemory_*.py")}
    assert set(described("Tasks and commands")) == tasks | commands
    assert "{{ COMMANDS }}" in section("Tasks and commands")


def names_with_defaults() -> dict[str, str]:
    """Return the first two columns of all tables of names and defaults, without their code marks."""
    rows = re.findall(r"^\| name .*\n\|[- |]+\n((?:\|.*\n)+)", SETTINGS + TUNING, re.MULTILINE)
    cells = [[cell.strip().strip("`") for cell in row.split("|")] for row in "".join(rows).splitlines()]
    names = [cell[1] for cell in cells]
    assert len(names) == len(set(names)), "a name is in two tables"
    return {cell[1]: cell[2] for cell in cells}


def test_the_keys_of_an_alias_are_in_the_tables() -> None:
    def default(value: Any) -> str:
        return value["BACKEND"] if isinstance(value, dict) and value else str(value)

    keys = {name: value for name, value in names_with_defaults().items() if name.isupper()}
    assert keys == {key: default(value) for key, value in conf.DEFAULTS.items()}


def test_the_options_of_a_memory_are_in_the_tables() -> None:
    own = {field.name: field.default for field in dataclasses.fields(options.Options)}
    usual = options.Options().sized(conf.STRATEGY_DEFAULTS["max_token_limit"])
    own |= {"max_context_tokens": usual.max_context_tokens, "max_summary_tokens": usual.summary_tokens}
    trimming = {
        field.name: field.default
        for strategy in (strategies.Window, strategies.TokenBuffer)
        for field in dataclasses.fields(strategy)
        if field.default is not dataclasses.MISSING
    }

    assert {name: value for name, value in names_with_defaults().items() if not name.isupper()} == {
        name: f'"{value}"' if isinstance(value, str) else str(value)
        for name, value in {**conf.STRATEGY_DEFAULTS, **trimming, **own}.items()
    }


def test_the_sizes_of_a_prompt_are_those_of_the_code() -> None:
    """The table of sizes, the formula of the largest prompt, and the figures for ``max_token_limit=2000``."""
    [heads] = re.findall(r"^\| for `max_context_tokens` of +\|(.*)\|$", SETTINGS, re.MULTILINE)
    rows = re.findall(r"^\| (?:messages are|a summary|pinned|quotes) [^|]*\|(.*)\|$", SETTINGS, re.MULTILINE)
    sizes, *shares = ([int(cell.replace(" ", "")) for cell in row.split("|")] for row in [heads, *rows])
    for most, limit, *others in zip(sizes, *shares, strict=True):
        sized = options.Options(max_context_tokens=most).sized(limit)
        assert limit == most // 3
        assert others == [sized.summary_tokens, sized.pinned_tokens, sized.recall_tokens]

    [formula] = re.findall(r"`max_context_tokens = (max\(.*?\))`", SETTINGS)
    for limit, summary in ((2000, None), (3000, None), (2000, 2000), (5000, 1000)):
        names = {"max_token_limit": limit, "max_summary_tokens": summary or 0, "max": max}
        largest = eval(formula.replace("×", "*"), names)  # noqa: S307
        assert options.Options(max_summary_tokens=summary).sized(limit).max_context_tokens == largest
    usual = options.Options().sized(2000)
    assert f"at most {2000 + usual.summary_tokens} tokens while workers keep up" in SETTINGS
    assert f"at most {usual.max_context_tokens} tokens while folding lags behind" in SETTINGS


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
