"""docs/howto/partitions.md adds the app that has the command. tests/partitioning runs the SQL of the page."""

from __future__ import annotations

import re
from typing import Any

from django.apps import AppConfig
from django.core.management import find_commands

from tests.howto.test_pages import PAGES, code_of


def test_the_app_of_the_page_has_the_command() -> None:
    settings: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(code_of("partitions", "settings.py"), settings)  # noqa: S102
    [name] = settings["INSTALLED_APPS"]
    app = AppConfig.create(name)
    assert find_commands(f"{app.path}/management") == ["convmemory_partition"]
    assert set(re.findall(r"manage\.py (\w+)", PAGES["partitions"])) == {"convmemory_partition"}
