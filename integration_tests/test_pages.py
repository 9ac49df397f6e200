"""The Python of the pages about frameworks passes mypy strictly, as that of the other pages does."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

from tests.test_typed_pages import FRAMEWORKS, ROOT, modules_of, mypy, package_of


def test_the_code_of_the_pages_passes(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mypy_django_plugin", reason="django-stubs is not installed (the extra lint)")
    pages = [
        ROOT / "docs" / "howto" / f"{page}.md"
        for page, module in FRAMEWORKS.items()
        if importlib.util.find_spec(module) is not None
    ]
    for page in pages:
        (tmp_path / package_of(page)).mkdir()
        for name, code in {"__init__": "", **modules_of(page)}.items():
            (tmp_path / package_of(page) / f"{name}.py").write_text(code, encoding="utf-8")

    assert pages
    assert mypy(tmp_path) == []
