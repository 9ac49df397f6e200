from __future__ import annotations

# The choice of the database, its servers, and the test kit.
pytest_plugins = ["tests.conftest"]
