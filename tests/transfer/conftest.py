from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Write records to a file, one a line."""

    def write(*records: Any, name: str = "records.jsonl") -> pathlib.Path:
        path = tmp_path / name
        path.write_text(
            "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
        )
        return path

    return write


@pytest.fixture
def two(settings: Any) -> None:
    """A second memory, ``other``."""
    settings.CONVMEMORY = dict.fromkeys(("default", "other"), settings.CONVMEMORY["default"])
