"""Every dotted path that the documentation names can be imported."""

from __future__ import annotations

import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATHS = {path for page in PAGES for path in re.findall(r"\bdjango_convmemory(?:\.\w+)+", page.read_text("utf-8"))}


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
