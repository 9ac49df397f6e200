"""The content security policy of the example: strict, on every page, and no page needs what it forbids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.browser import STRICT
from tests.example.conftest import say, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

# The pages of the admin that the app has, and those of the site.
ADMIN = [
    "/admin/",
    "/admin/convmemory/session/",
    "/admin/convmemory/session/?q=demo",
    "/admin/convmemory/session/overview/",
    "/admin/auth/user/",
    "/admin/auth/user/add/",
    "/admin/password_change/",
]


def directives(policy: str) -> set[str]:
    return {directive.strip() for directive in policy.split(";")}


def check(response: Response | None) -> None:
    assert response is not None
    assert response.status == 200, response.url
    policy = response.headers["content-security-policy"]
    assert directives(policy) == directives(STRICT), response.url
    assert "unsafe" not in policy


def test_every_page_works_under_the_policy(site: str, page: Page) -> None:
    for path in ("/", "/sign-in/", "/search/?q=Portugal"):
        check(page.goto(site + path))
    sign_in(page, site)
    check(page.goto(f"{site}/search/?q=panniers"))
    page.goto(site)
    page.click("text=Slovenia with my mother")
    page.wait_for_selector("#messages .message.folded")
    check(page.reload())
    say(page, "And what about the birthday dinner?")
    for path in ADMIN:
        check(page.goto(site + path))
    page.goto(site + "/admin/convmemory/session/")
    page.click("#result_list th a >> nth=0")
    page.wait_for_url(re.compile(r"/change/"))
    check(page.reload())
