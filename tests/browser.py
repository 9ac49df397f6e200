"""A real browser: Debian's Chromium, driven by Playwright.

With ``CONVMEMORY_TEST_SERVICES=all`` in the environment one that is not there is a failure, not a skip.
``CONVMEMORY_SCREENSHOTS`` names a folder that pictures are written to; without it none are kept.
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
# What a site can send with its pages that trusts nobody. The policy is the tests'; the admin's own pages keep it.
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class StrictPolicy:
    """Middleware that sends the strict policy with every answer."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        response = self.get_response(request)
        response["Content-Security-Policy"] = STRICT
        return response


# Not for longer than a module: its event loop runs in this thread, where tests of others run loops of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, started once for a module."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        if servers.REQUIRED:
            pytest.fail("Chromium is required but not there.")
        pytest.skip("Chromium is not there.")
    from playwright.sync_api import sync_playwright

    # Playwright runs an event loop in this thread, which Django would take for an asynchronous view.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with sync_playwright() as playwright:
            started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
            yield started
            started.close()
    finally:
        if before is None:
            del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def picture(page: Page, name: str, *, full_page: bool = True) -> None:
    """Keep what the page looks like, where pictures are wanted."""
    if folder := os.environ.get("CONVMEMORY_SCREENSHOTS"):
        page.screenshot(path=pathlib.Path(folder) / f"{name}.png", full_page=full_page)
