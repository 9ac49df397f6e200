from __future__ import annotations

from typing import Any

import pytest

from integration_tests.agent_scripts import LIMIT

# The choice of the database, its servers, and the test kit.
pytest_plugins = ["tests.conftest"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ogx", help="the folder of a clone of OGX, for integration_tests/ogx.py")
    parser.addoption(
        "--sequences", type=int, default=None, help="of a conversation store: how many, instead of twenty seconds"
    )


@pytest.fixture
def limit(settings: Any) -> None:
    """The budget of the memory. Nothing is folded unless a test does it."""
    memory = settings.CONVMEMORY["default"]
    options = {"max_token_limit": LIMIT, "max_context_tokens": 2 * LIMIT, "max_summary_tokens": 60}
    settings.CONVMEMORY = {
        "default": memory | {"OPTIONS": options},
        "large": memory | {"OPTIONS": {"max_token_limit": 100_000}},
    }
