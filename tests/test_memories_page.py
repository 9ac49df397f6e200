"""The code of docs/memories.md does what the page says, and the page names every memory."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from django_convmemory import memory

PATH = pathlib.Path(__file__).parent.parent / "docs" / "memories.md"
PAGE = PATH.read_text(encoding="utf-8")
BLOCKS = [
    (PAGE[: match.start(1)].count("\n"), match[1]) for match in re.finditer(r"```python\n(.*?)```", PAGE, re.DOTALL)
]


@pytest.mark.parametrize(("line", "code"), BLOCKS[1:], ids=lambda value: str(value) if isinstance(value, int) else "")
def test_the_code_runs_after_the_imports(line: int, code: str) -> None:
    namespace: dict[str, Any] = {}
    exec(BLOCKS[0][1], namespace)  # noqa: S102
    # The lines of a traceback are those of the file.
    exec(compile("\n" * line + code, PATH, "exec"), namespace)  # noqa: S102


def test_every_memory_has_a_row_and_an_example() -> None:
    named = re.findall(r"^\| \[`(\w+)`\]\(#", PAGE, re.MULTILINE)
    assert sorted(named) == [
        name for name in memory.__all__ if name.endswith("Memory") and name != "ConversationMemory"
    ]
    assert all(any(f"{name}(" in code for _, code in BLOCKS) for name in named)
