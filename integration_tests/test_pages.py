"""The Python of the pages about frameworks passes mypy strictly, as that of the other pages does."""

from __future__ import annotations

import importlib.util
import pathlib

from tests.test_typed_pages import FRAMEWORKS, ROOT, modules_of, mypy, package_of


def test_the_code_of_the_pages_passes(tmp_path: pathlib.Path) -> None:
    pages = [
        ROOT / "docs" / "guides" / f"{page}.md"
        for page, module in FRAMEWORKS.items()
        if importlib.util.find_spec(module) is not None
    ]

    assert pages
    assert mypy(tmp_path, {package_of(page): modules_of(page) for page in pages}) == []
