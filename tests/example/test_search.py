"""Search on the example's pages, in a real browser: in a conversation, and in all conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests import axe
from tests.browser import picture
from tests.example.conftest import answered, begin, sign_in, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REFUND = "Refund for damaged panniers"


def find(page: Page, query: str, box: str = "#find") -> None:
    """Search in the conversation that is open, and wait for what is found."""
    # Before its scripts have run, the page would send the form by itself.
    page.wait_for_load_state()
    page.fill(box, query)
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_contain_text(query[:40])


def marks(page: Page) -> set[str]:
    return set(page.locator("mark").all_inner_texts())


def in_view(page: Page, position: int) -> bool:
    """Whether the message at this position is marked as the one that was jumped to, and on the screen."""
    page.wait_for_selector(f"#m{position}:target")
    seen: bool = page.evaluate(
        """id => {
            const list = document.getElementById("messages").getBoundingClientRect();
            const one = document.getElementById(id).getBoundingClientRect();
            return one.top >= Math.max(list.top, 0) && one.bottom <= Math.min(list.bottom, innerHeight);
        }""",
        f"m{position}",
    )
    return seen


def test_what_is_found_is_marked_and_leads_to_the_message(site: str, page: Page) -> None:
    sign_in(page, site)
    page.click(f"text={REFUND}")
    assert page.locator("#m2").count() == 0  # It is on another page.
    address = page.url
    page.evaluate("window.same = true")
    find(page, "Marta's torn buckles")
    assert page.evaluate("window.same")
    assert {"Marta", "torn", "buckle"} <= marks(page)

    # To a message of another page.
    page.locator(".hits a", has_text="this is Marta Lindqvist").click()
    page.wait_for_url("**/*#m2")
    assert in_view(page, 2)
    assert page.input_value("#find") == "Marta's torn buckles"
    assert page.locator(".hits mark").count() > 2

    # To a message of this page: the page stays.
    page.evaluate("window.same = true")
    page.locator(".hits a", has_text="pulled out of the buckle").click()
    assert in_view(page, 4)
    assert page.evaluate("window.same")
    page.locator(".hits a", has_text="this is Marta Lindqvist").click()
    assert in_view(page, 2)

    # From there to the newest messages.
    page.click("text=Later messages")
    expect(page.locator("#messages:not([data-older])")).to_be_attached()
    assert page.locator("#messages .message").last.get_attribute("id") == "m71"
    page.go_back()
    page.click("text=Newest messages")
    page.wait_for_url(address)
    assert page.locator(".hits").count() == 0


def test_a_search_works_without_scripts(site: str, browser: Browser) -> None:
    for page in window(browser, java_script_enabled=False):
        sign_in(page, site)
        page.click(f"text={REFUND}")
        page.fill("#find", "torn buckle")
        page.click(".bar >> text=Find")
        page.locator(".hits a").first.click()
        assert page.locator("#m2 .text").inner_text().startswith("Hi, this is Marta")
        page.fill("#everywhere", "torn buckle")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search/?q=torn+buckle")
        assert REFUND in page.locator(".hits").inner_text()


def test_a_search_in_all_conversations(site: str, page: Page) -> None:
    sign_in(page, site)
    page.fill("#everywhere", "panniers and passport")
    page.keyboard.press("Enter")
    page.wait_for_selector(".searched .hits")
    assert page.input_value("#everywhere") == "panniers and passport"
    assert "panniers" in page.locator("h1").inner_text()
    page.locator(".hits a", has_text="this is Marta Lindqvist").click()
    assert in_view(page, 2)
    assert page.locator(".bar h1").inner_text() == REFUND
    page.fill("#everywhere", "xylophone")
    page.keyboard.press("Enter")
    page.wait_for_selector(".searched")
    assert page.locator("h1").inner_text() == "Nothing matches “xylophone”"


def test_everybody_finds_only_their_own_conversations(site: str, page: Page, other: Page) -> None:
    for visitor, animal in ((page, "heron"), (other, "walrus")):
        begin(visitor, site, f"I keep a {animal}, and a secret.")
        answered(visitor, animal)
    page.goto(f"{site}/search/?q=secret+walrus+panniers")
    assert marks(page) == {"secret"}
    assert "walrus" not in page.locator(".hits").inner_text()
    for path in ("?q=secret", "find/?q=secret"):
        assert other.request.get(f"{other.url}{path}").status == 200
        assert page.request.get(f"{other.url}{path}").status == 404


def test_what_was_written_is_shown_as_text(site: str, page: Page) -> None:
    script = '<img src=x onerror="window.hacked = 1"> heron <b>bold</b> {{ 7 }} 🦆'
    begin(page, site, script)
    answered(page, "heron")
    query = '"><script>window.hacked = 1</script> heron'
    find(page, query)
    assert script in page.locator(".hits").inner_text()
    assert page.input_value("#find") == query
    page.reload()
    assert page.input_value("#find") == query
    page.goto(f"{site}/search/?q=%22%3E%3Cscript%3Eheron%3C/script%3E%00%ED%A0%80")
    assert script in page.locator(".hits").inner_text()
    assert page.locator("main img, main script, main b").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_search_by_keyboard(site: str, page: Page) -> None:
    sign_in(page, site)
    page.click(f"text={REFUND}")
    page.get_by_label("Search this conversation").focus()
    page.keyboard.type("Kiel office")
    page.keyboard.press("Enter")
    page.wait_for_selector("#found .hits")
    assert "match “Kiel office”" in page.get_by_role("status").inner_text()
    page.locator(".hits a").first.wait_for()
    page.keyboard.press("Tab")  # the button
    for _ in range(5):  # and what can be done with the conversation
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.hits a')"):
            break
    position = int(str(page.evaluate("document.activeElement.dataset.jump"))[1:])
    page.keyboard.press("Enter")
    assert in_view(page, position)
    # The keyboard goes on from the message.
    page.keyboard.press("Tab")
    assert page.evaluate("id => document.activeElement.closest('li').id === id", f"m{position}")
    page.get_by_label("Search this conversation").focus()
    page.keyboard.press("Escape")
    assert page.locator(".hits").count() == 0
    assert page.evaluate("document.activeElement.id") == "find"
    assert page.input_value("#find") == ""
    assert "q=" not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("device", "width", "height"), [("wide", 1360, 860), ("telephone", 390, 844)])
def test_a_search_fits_the_screen(
    site: str, browser: Browser, scheme: Any, device: str, width: int, height: int
) -> None:
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for page in window(browser, viewport={"width": width, "height": height}, color_scheme=scheme):
        sign_in(page, site)
        page.click(f"text={REFUND}")
        find(page, "order number panniers " + "LC-204817" * 12)
        expect(page.locator("#found .count")).to_be_in_viewport()
        assert page.evaluate(wide) <= 0
        assert axe.violations(page) == []
        picture(page, f"search-here-{device}-{scheme}", full_page=False)
        page.locator(".hits a").first.click()
        # The message may be on another page.
        page.wait_for_selector(".message:target")
        page.wait_for_load_state()
        assert page.evaluate(wide) <= 0
        page.goto(f"{site}/search/?q=order+number+panniers+LC-204817")
        assert page.locator(".hits a").first.is_visible()
        assert page.evaluate(wide) <= 0
        assert axe.violations(page) == []
        picture(page, f"search-all-{device}-{scheme}", full_page=False)
