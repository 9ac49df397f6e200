"""The settings of docs/performance.md do what the page says."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from django.db import connections
from django.db.utils import ConnectionHandler

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "performance.md").read_text(encoding="utf-8")


@pytest.mark.only_on("postgresql")
def test_statements_stay_prepared(db: None) -> None:
    here = connections["default"].settings_dict
    databases: dict[str, dict[str, Any]] = {
        "default": {name: here[name] for name in ("ENGINE", "NAME", "HOST", "PORT", "USER", "PASSWORD")}
    }
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {"DATABASES": databases})  # noqa: S102
    connection = ConnectionHandler(databases)["default"]
    try:
        with connection.cursor() as cursor:
            for number in range(8):
                cursor.execute("SELECT %s::int", [number])
            cursor.execute("SELECT count(*) FROM pg_prepared_statements")
            assert cursor.fetchone()[0] > 0
    finally:
        connection.close()
