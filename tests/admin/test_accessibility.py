"""axe-core finds no defect in any page of the admin: in light and dark, and on a telephone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import User

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests import axe
from tests.admin import showcase
from tests.admin.test_browser import LIST, Visit, session, short, visit
from tests.browser import browser

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["browser", "session", "short", "visit"]

pytestmark = pytest.mark.only_on("sqlite")
# A name that no line has room for.
LONG = "Bahnhofsvorplatzumgestaltungsbeteiligungsverfahren" * 3


@pytest.fixture
def in_every_state(session: models.Session) -> models.Session:
    """Add a pause, marks, a redaction, names without blanks, an empty session, and one whose alias is gone."""
    showcase.outage()
    memories["default"].session(session).redact(6)
    models.Summary.objects.filter(session=session).update(cut=True, carried=True, shortened=True)
    models.Session.objects.filter(pk=session.pk).update(starred_at=session.created_at, archived_at=session.created_at)
    memories["default"].session(LONG, owner=User.objects.create(username=LONG)).append(ChatMessage.human(LONG))
    models.Session.objects.filter(key=LONG).update(title=LONG, due_since=session.created_at, last_error=LONG)
    memories["default"].session("empty").append(ChatMessage.human("Hello"))
    memories["default"].session("empty").clear()
    models.Session.objects.filter(key="chat-4").update(alias="gone")
    return session


def addresses(session: models.Session) -> Iterator[str]:
    yield from (LIST, f"{LIST}?q=nothing", f"{LIST}overview/", f"{LIST}?q=shellfish")
    yield from (
        f"{LIST}{session.pk}/{page}" for page in ("change/", "change/?before=10&version=2&find=shellfish", "history/")
    )
    others = models.Session.objects.filter(key__in=[LONG, "empty", "chat-1", "chat-3", "chat-4"])
    yield from (f"{LIST}{pk}/change/" for pk in others.values_list("pk", flat=True))


def check(page: Page) -> None:
    """Check the page with all its details, in light, in dark, and on a telephone."""
    page.locator("details").evaluate_all("all => all.forEach(details => { details.open = true; })")
    assert axe.violations(page) == [], f"{page.url} in light"
    page.emulate_media(color_scheme="dark")
    assert axe.violations(page, rules=["color-contrast"]) == [], f"{page.url} in dark"
    page.set_viewport_size({"width": 390, "height": 840})
    assert axe.violations(page) == [], f"{page.url} on a telephone"
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{page.url} is {wide} pixels too wide for a telephone"
    heights = page.locator("#content .button:visible, .convmemory summary:visible").evaluate_all(
        "all => all.map(button => button.getBoundingClientRect().height)"
    )
    assert min(heights, default=24) >= 24, page.url
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 800})


def test_every_page(visit: Visit, in_every_state: models.Session) -> None:
    for address in addresses(in_every_state):
        check(visit.open(address))


def test_the_pages_that_ask_first(visit: Visit, in_every_state: models.Session) -> None:
    for button in ("Clear", "Delete", "redact"):
        page = visit.open(f"{LIST}{in_every_state.pk}/change/")
        page.get_by_role("button", name=button).first.click()
        page.get_by_role("button", name="Yes, I’m sure").wait_for()
        check(page)


def test_a_name_without_blanks_leaves_the_other_columns_their_room(
    visit: Visit, in_every_state: models.Session
) -> None:
    page = visit.open(LIST)
    assert page.locator("#result_list").get_by_text(LONG).first.is_visible()
    wide = page.locator(".results").evaluate("results => results.scrollWidth - results.clientWidth")
    assert wide <= 0, f"The last column is {wide} pixels beyond the page."
