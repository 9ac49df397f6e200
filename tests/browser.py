"""A real browser: Debian's Chromium, driven by Playwright.

If ``CONVMEMORY_TEST_SERVICES`` is ``all``, a missing browser is a failure, not a skip.
``CONVMEMORY_SCREENSHOTS`` names a folder for pictures. Without it, no pictures are kept.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests import servers

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# The strictest policy that a site can send. The admin's own pages work with it.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class StrictPolicy:
    """Middleware that sends the strict policy with every response."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        response = self.get_response(request)
        response["Content-Security-Policy"] = STRICT
        return response


# Per module, not per session: its event loop runs in this thread, where other tests run their own loops.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, started once for a module."""
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None:
        if servers.REQUIRED:
            pytest.fail("Chromium is required but not installed.")
        pytest.skip("Chromium is not installed.")
    from playwright.sync_api import sync_playwright

    # Because Playwright runs an event loop in this thread, Django would refuse to use the database here.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with sync_playwright() as playwright:
            started = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            yield started
            started.close()
    finally:
        if before is None:
            del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def picture(page: Page, name: str, *, full_page: bool = True) -> None:
    """Keep a picture of the page, if pictures are wanted."""
    if folder := os.environ.get("CONVMEMORY_SCREENSHOTS"):
        page.screenshot(path=pathlib.Path(folder) / f"{name}.png", full_page=full_page)
