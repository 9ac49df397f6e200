"""The documentation's first page leads to every other page, and so does each of its tables."""

from __future__ import annotations

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PAGES = [*DOCS.rglob("*.md"), *(DOCS.parent / name for name in ("CONTRIBUTING.md", "SECURITY.md"))]


def test_the_table_of_guides_has_every_guide() -> None:
    table = (DOCS / "guides" / "index.md").read_text(encoding="utf-8")
    guides = {path.name for path in (DOCS / "guides").glob("*.md")} - {"index.md"}

    assert guides <= set(re.findall(r"\]\(([^)]+)\) *\|", table))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: pathlib.Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#?([^):\s]*)[^):]*\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
        if anchor and target.endswith(".md"):
            text = (page.parent / target).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
            assert anchor in anchors | set(re.findall(r"^\((.*)\)=$", text, re.MULTILINE)), f"{target}#{anchor}"
