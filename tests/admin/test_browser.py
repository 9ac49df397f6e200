"""The admin's pages in a real browser. They load and run nothing from other sites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as site
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from django_convmemory import models
from django_convmemory.admin import timeline
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.admin import showcase
from tests.browser import browser, picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

__all__ = ["browser"]

pytestmark = pytest.mark.only_on("sqlite")
LIST = "/admin/convmemory/session/"
PAGES = [("list", LIST), ("session", LIST + "{}/change/"), ("overview", f"{LIST}overview/")]


class Visit:
    """A window of the browser, with its errors and its requests."""

    def __init__(self, page: Page, root: str) -> None:
        self.page, self.root = page, root
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requests.append(request.url))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.location["url"].endswith("/favicon.ico"):
            self.errors.append(message.text)

    def _dismiss(self, dialog: Dialog) -> None:
        self.errors.append(dialog.message)
        dialog.dismiss()

    def open(self, path: str) -> Page:
        answer = self.page.goto(self.root + path)
        assert answer is not None
        assert answer.status == 200
        return self.page

    def check(self) -> None:
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith(self.root)] == []


@pytest.fixture
def visit(live_server: LiveServer, browser: Browser, settings: Any, request: Any) -> Iterator[Visit]:
    """The site as staff sees it, under a strict policy. Parameters are options of the window."""
    settings.MIDDLEWARE = ["tests.browser.StrictPolicy", *settings.MIDDLEWARE]
    options = getattr(request, "param", {})
    client = Client()
    client.force_login(User.objects.create_superuser("staff"))
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}} | options)
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
    visit.check()


@pytest.fixture
def short(settings: Any) -> None:
    """A memory that folds early and has a small budget."""
    limits = {"OPTIONS": {"max_token_limit": 150, "max_summary_tokens": 500, "max_context_tokens": 900}}
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"] | limits}


@pytest.fixture
def session(short: None, convmemory: ScriptedMemories) -> models.Session:
    """The conversation of the pictures, beside those of others."""
    convmemory.allow_unused_replies = True
    showcase.trip(User.objects.create_user("maya"), convmemory)
    showcase.others()
    return models.Session.objects.get(key="portugal-in-may")


def test_the_pages_of_the_pictures(visit: Visit, session: models.Session) -> None:
    for name, path in PAGES:
        page = visit.open(path.format(session.pk))
        assert page.locator("h1").first.is_visible()
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide"
        picture(page, f"admin-{name}-light")


EVIL = [
    "<script>document.title = 'owned'; alert(1)</script>",
    "<img src=x onerror=alert(1)><svg/onload=alert(1)>",
    "</pre></li></ol></section></body><script>alert(1)</script>",
    "{% debug %}{{ settings.SECRET_KEY }}{{ 7|add:7 }}{% include 'admin/base.html' %}",
    "javascript:alert(1) \x1b[31mred \x07",
    "left \u202e right to left \u2066 isolate \u202d",
    "zero\u200bwidth\u200d\ufeff\u2060 \u0301\u0301\u0301" + "\u0301" * 300,
    "x" * 1_000_000,
    "مرحبا بالعالم " * 30,
]


def test_hostile_content_is_shown_and_not_run(visit: Visit, convmemory: ScriptedMemories) -> None:
    convmemory.allow_unused_replies = True
    # Large messages are folded in parts, with a call for each.
    convmemory.reply(*[text[:2000] for text in EVIL * 40])
    session = memories["default"].session(EVIL[0], owner=User.objects.create_user("anna"))
    for number, text in enumerate(EVIL):
        call_id = f"c{number}{EVIL[1]}"
        call = {"id": call_id, "type": "function", "function": {"name": EVIL[0], "arguments": text}}
        image = {"type": "image_url", "image_url": {"url": f'{visit.root}/{number}.png"><script>alert(1)</script>'}}
        session.append(
            ChatMessage.human([{"type": "text", "text": text}, image], name="anna", metadata={"note": text[:99]}),
            ChatMessage.ai(text[:100_000], tool_calls=[call]),
            ChatMessage.tool(text[:100_000], call_id),
        )
        convmemory.run()
    row = models.Session.objects.get()
    models.Session.objects.update(title=EVIL[0], last_error=EVIL[1], due_since=row.created_at)
    models.Attempt.objects.update(error=EVIL[2], model=EVIL[0][:40])
    assert models.Summary.objects.exists()

    contents: list[str] = []
    for last in range(row.last_position - timeline.MESSAGES, 0, -timeline.MESSAGES):
        earlier = visit.open(f"{LIST}{row.pk}/change/?before={last + 1}")
        contents += earlier.locator("#timeline pre").all_text_contents()
    page = visit.open(f"{LIST}{row.pk}/change/")
    assert page.title() != "owned"
    contents += page.locator("#timeline pre").all_text_contents()
    for text in EVIL:
        kept = text.replace("\x07", "")[:20_000]
        assert any(kept in content.replace("\x07", "") for content in contents), text[:50]
    assert page.locator("#content script, #content img, #content iframe, #content [style]").count() == 0
    assert (
        page.locator("#content *").evaluate_all(
            "all => all.flatMap(element => element.getAttributeNames()).filter(name => name.startsWith('on'))"
        )
        == []
    )
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    # A right-to-left override in a message does not leave the message.
    assert page.locator("#timeline li").first.evaluate("item => getComputedStyle(item).direction") == "ltr"
    for path in (LIST, f"{LIST}overview/"):
        page = visit.open(path)
        assert page.title() != "owned"
        assert page.locator("#content script").count() == page.locator("#content script[src]").count()
