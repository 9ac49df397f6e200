from __future__ import annotations

from tests.conftest import pytest_report_header

__all__ = ["pytest_report_header"]
pytest_plugins = ["django_convmemory.testing"]
