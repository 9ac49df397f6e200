"""The compiler, which ``make`` installs where npm is there."""

from __future__ import annotations

import pytest

from tests import servers
from tests.typescript import compiler


@pytest.fixture(scope="session", autouse=True)
def typescript() -> None:
    if not servers.REQUIRED and not (compiler.PROGRAMS / "tsc").exists():
        pytest.skip("The TypeScript compiler is not installed. Run make test-all, which needs npm for it.")
