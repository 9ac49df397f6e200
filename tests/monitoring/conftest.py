from __future__ import annotations

from typing import Any

import pytest
from django.urls import include, path

TOKEN = "a-token-that-nobody-guesses"

urlpatterns = [path("convmemory/", include("django_convmemory.contrib.monitoring.urls"))]


@pytest.fixture(autouse=True)
def monitored(settings: Any) -> None:
    """A site with the monitoring views, and the memories ``default`` and ``other``."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_convmemory.contrib.monitoring"]
    settings.ROOT_URLCONF = "tests.monitoring.conftest"
    settings.CONVMEMORY_MONITORING = {"TOKEN": TOKEN}
    settings.CONVMEMORY = dict.fromkeys(("default", "other"), settings.CONVMEMORY["default"])


@pytest.fixture
def authorized() -> dict[str, Any]:
    """The headers of a monitoring system."""
    return {"headers": {"Authorization": f"Bearer {TOKEN}"}}
