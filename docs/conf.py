"""The documentation as a site: ``make docs``."""

import pathlib
import re
from typing import Any

project = "django_convmemory"
author = "django-convmemory contributors"
copyright = author  # noqa: A001  its name in Sphinx
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "django_convmemory"
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
html_extra_path = ["openapi.yaml"]


def setup(app: Any) -> None:
    """Put the README where the index names it, and name the repository's other files instead of linking them."""
    app.connect("source-read", lambda app, name, content: read(content))


def read(content: list[str]) -> None:
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    text = content[0].replace("{{ README }}", readme.partition("\n")[2].replace("](docs/", "]("))
    content[0] = re.sub(r"\[([^]]+)\]\((?:\.\./)*example_project/[^)]*\)", r"\1", text)
