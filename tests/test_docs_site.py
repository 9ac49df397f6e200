"""The documentation's first page leads to every other page, and so does each of its tables."""

from __future__ import annotations

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent / "docs"
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
# The pages that no other test looks at for their links.
PAGES = ("index", "settings", "memories", "operations", "how-it-works", "architecture", "example", "python")


def test_the_contents_have_every_page_under_one_of_four_captions() -> None:
    contents = re.findall(r"```{toctree}\n:hidden:\n:caption: ([^\n]*)\n\n(.*?)```", INDEX, re.DOTALL)

    assert [caption for caption, _ in contents] == re.findall(r"^## (.*)", INDEX, re.MULTILINE)
    assert len(contents) == 4
    pages = [page for _, listed in contents for page in listed.split()]
    assert sorted(pages) == sorted(
        path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md") if path != DOCS / "index.md"
    )


def test_the_table_of_guides_has_every_guide() -> None:
    table = (DOCS / "howto" / "index.md").read_text(encoding="utf-8")
    guides = {path.name for path in (DOCS / "howto").glob("*.md")} - {"index.md"}

    assert guides <= set(re.findall(r"\]\(([^)]+)\) *\|", table))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")

    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", page):
        assert (DOCS / target).exists(), target
