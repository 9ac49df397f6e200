"""The README as a package index shows it, where no files are beside it: a hook of the build.

If the project has the URL ``Source``, links lead there. Otherwise only their texts stay.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"!?\[([^]]*)\]\((?!https?:)([^)]+)\)")


def absolute(text: str, source: str | None) -> str:
    """Return the README with links to the repository at the address ``source``, or without links to files."""
    if source is None:
        return _LINK.sub(lambda link: "" if link[0].startswith("!") else link[1], text)
    return _LINK.sub(lambda link: link[0].replace(f"({link[2]}", f"({source}/{_kind(link[0])}/main/{link[2]}"), text)


def _kind(link: str) -> str:
    return "raw" if link.startswith("!") else "blob"


class LongDescription(MetadataHookInterface):
    """Fills in the project's ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (pathlib.Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, source)}
