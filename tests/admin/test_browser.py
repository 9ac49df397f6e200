"""What people see: the admin's pages in a real browser, which runs nothing that the site did not send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as site
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from django_convmemory import models
from django_convmemory.testing import ScriptedMemories
from tests.admin import showcase
from tests.browser import browser, picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

__all__ = ["browser"]

pytestmark = pytest.mark.only_on("sqlite")
LIST = "/admin/convmemory/session/"


class Visit:
    """A browser's window on the site, and what went wrong in it."""

    def __init__(self, page: Page, root: str) -> None:
        self.page, self.root = page, root
        self.wrong: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))

    def _said(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning") and not said.location["url"].endswith("/favicon.ico"):
            self.wrong.append(said.text)

    def open(self, path: str) -> Page:
        answer = self.page.goto(self.root + path)
        assert answer is not None
        assert answer.status == 200
        return self.page

    def nothing_wrong(self) -> None:
        assert self.wrong == []
        assert [url for url in self.asked if not url.startswith(self.root)] == []


@pytest.fixture
def visit(live_server: LiveServer, browser: Browser, settings: Any, request: Any) -> Iterator[Visit]:
    """The site as staff sees it, under a strict policy, in a light or a dark window of some width."""
    settings.MIDDLEWARE = ["tests.browser.StrictPolicy", *settings.MIDDLEWARE]
    options = getattr(request, "param", {})
    client = Client()
    client.force_login(User.objects.create_superuser("staff"))
    context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
    context.add_cookies(
        [
            {
                "name": site.SESSION_COOKIE_NAME,
                "value": client.cookies[site.SESSION_COOKIE_NAME].value,
                "url": live_server.url,
            }
        ]
    )
    context.set_default_timeout(30_000)
    visit = Visit(context.new_page(), live_server.url)
    yield visit
    context.close()
    visit.nothing_wrong()


@pytest.fixture
def short(settings: Any) -> None:
    """A memory that folds early, and has little room."""
    limits = {"OPTIONS": {"max_token_limit": 150, "max_context_tokens": 800}}
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"] | limits}


@pytest.fixture
def shown(short: None, convmemory: ScriptedMemories) -> models.Session:
    """The conversation of the pictures, among others."""
    convmemory.allow_unused_replies = True
    showcase.trip(User.objects.create_user("maya"), convmemory)
    showcase.others()
    return models.Session.objects.get(key="portugal-in-may")


@pytest.mark.parametrize(
    "visit", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True, ids=["light", "dark"]
)
def test_the_pages_of_the_admin(visit: Visit, shown: models.Session, request: Any) -> None:
    scheme = request.node.callspec.id
    for name, path in (
        ("list", LIST),
        ("session", f"{LIST}{shown.pk}/change/"),
        ("overview", f"{LIST}overview/?period=7d"),
    ):
        page = visit.open(path)
        assert page.locator("h1").first.is_visible()
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide"
        picture(page, f"admin-{name}-{scheme}")
