"""Finding a phrase, a position and a version in a real browser, by keyboard."""

from __future__ import annotations

from typing import Any

import pytest

from django_convmemory import models
from tests.admin.test_browser import LIST, Visit, session, short, visit
from tests.browser import browser, picture

__all__ = ["browser", "session", "short", "visit"]

pytestmark = pytest.mark.only_on("sqlite")
WINDOWS = [{}, {"color_scheme": "dark"}, {"viewport": {"width": 375, "height": 740}}]


@pytest.mark.parametrize("visit", WINDOWS, indirect=True, ids=["light", "dark", "telephone"])
def test_from_the_list_to_what_became_of_a_phrase(visit: Visit, session: models.Session, request: Any) -> None:
    name = request.node.callspec.id
    page = visit.open(LIST)
    page.locator("#searchbar").fill("shellfish")
    page.keyboard.press("Enter")
    page.wait_for_url("**/session/?q=shellfish*")
    found = page.locator(".convmemory-found li")
    assert "He must not eat shellfish" in found.last.inner_text()
    assert page.locator(".convmemory-found mark").count() == found.count()
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    picture(page, f"admin-search-{name}")

    found.last.get_by_role("link", name="What became of it?").click()
    page.wait_for_url(f"**/{session.pk}/change/?find=shellfish&before=19#convmemory-find")
    assert page.locator(".convmemory-fate").first.bounding_box()["y"] < page.viewport_size["height"]  # type: ignore[index]
    page.go_back()
    found.last.get_by_role("link").first.click()
    page.wait_for_url(f"**/{session.pk}/change/?find=shellfish&before=19#m8")
    assert page.locator("#m8:target").count() == 1
    assert page.get_by_label("Find in messages and summaries:").input_value() == "shellfish"
    fate = page.locator(".convmemory-fate").first.inner_text()
    assert fate.startswith("message 8 · folded into version ")
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    picture(page, f"admin-finding-{name}")
    for button in page.locator(".convmemory-find .button, .convmemory-goto .button").all():
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 24

    # To the version that folded it.
    page.locator(".convmemory-fate a").nth(1).click()
    page.wait_for_url("**#convmemory-summaries")
    assert page.locator(".convmemory-version summary strong").first.inner_text() in fate.title().replace("Into ", "")


def test_the_forms_go_to_a_position_and_to_a_version(visit: Visit, session: models.Session) -> None:
    page = visit.open(f"{LIST}{session.pk}/change/")
    page.get_by_label("Go to position").fill("3")
    page.keyboard.press("Enter")
    page.wait_for_url("**/change/?before=14#m3")
    assert page.locator("#m3:target").is_visible()
    page.get_by_label("Go to version").fill("2")
    page.keyboard.press("Enter")
    page.wait_for_url("**/change/?version=2&before=14#convmemory-summaries")
    assert page.locator(".convmemory-version summary strong").first.inner_text() == "Version 2"
    # The messages stay where they were.
    assert page.locator("#m3").count() == 1
