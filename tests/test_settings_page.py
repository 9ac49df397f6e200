"""docs/settings.md names every key and option with its default."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from typing import Any

from django_convmemory import conf
from django_convmemory.rules import options, strategies

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "settings.md").read_text(encoding="utf-8")


def table(section: str) -> dict[str, str]:
    """Return the first two columns of the table of a section, without their code marks."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
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
