"""A conversation that plays by itself, in a real browser and with a real worker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from tests import axe
from tests.browser import picture
from tests.example.conftest import begin, post, say, texts, window
from tests.test_example_project import PROJECT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCRIPT = [json.loads(line)["content"] for line in (PROJECT / "chat" / "dinner.jsonl").read_text().splitlines()]
# Keeps what the status line says, and what the panel shows.
WATCH = """() => {
    window.told = [], window.prompts = [];
    const watch = (selector, look) => {
        const target = document.querySelector(selector);
        new MutationObserver(look).observe(target, { childList: true, subtree: true });
        look();
    };
    watch("#player [role=status]", () => told.push(document.querySelector("#player [role=status]").innerText));
    watch("#panel", () => prompts.push(Number(document.querySelector("#panel .state").dataset.prompt)));
}"""


def play(page: Page, button: str = "Play a conversation") -> None:
    page.get_by_role("button", name=button).press("Enter")
    page.wait_for_selector("#player:not([data-over])")


def memory(page: Page) -> dict[str, int]:
    shown: dict[str, str] = page.evaluate("({...document.querySelector('#panel .state').dataset})")
    return {name: int(number) for name, number in shown.items()}


def test_what_is_played_shows_the_summary_the_short_prompt_and_a_folded_fact(site: str, page: Page) -> None:
    page.goto(site)
    play(page)
    page.evaluate(WATCH)
    stop = page.get_by_role("button", name="Stop playing")
    expect(stop).to_be_focused()
    expect(page.locator("#text")).to_be_hidden()
    page.wait_for_selector("#messages .message.folded")
    assert page.locator("#messages").get_attribute("aria-live") == "off"
    assert axe.violations(page) == []
    page.wait_for_selector("#player[data-over]")

    answers = page.locator("#messages .assistant")
    assert "Twelve guests, and at most 600 euros" in answers.nth(7).inner_text()
    last = answers.last
    assert "You told me 26 messages ago: “My sister Ines is allergic to hazelnuts" in last.inner_text()
    assert last.locator(".recalled a").get_attribute("href").endswith("?at=1#m1")  # type: ignore[union-attr]
    expect(page.locator("#m1")).to_have_class("message user folded")
    expect(page.locator("#version .summary")).to_contain_text("Ines")
    assert max(page.evaluate("prompts")) <= 900 < memory(page)["stored"]
    assert memory(page)["prompt"] < memory(page)["stored"] * 0.6
    # Each message once, and in order, and two answers that are not in the file.
    stored = texts(page)
    assert [text for text in stored if text in SCRIPT] == SCRIPT
    assert len(stored) == len(SCRIPT) + 2

    # A screen reader is told how it goes, and not each message.
    told = page.evaluate("told")
    assert [text.split(".")[0] for text in told] == [
        *("A conversation plays", "The older messages are in the summary now", "That was all"),
    ]
    assert page.locator("#messages").get_attribute("aria-live") == "polite"
    expect(page.locator("#text")).to_be_focused()
    assert axe.violations(page) == []
    picture(page, "chat-played-light", full_page=False)
    page.reload()
    assert texts(page) == stored
    expect(page.locator("#player")).to_have_count(0)


def test_it_can_be_stopped_begun_anew_and_left(site: str, browser: Browser) -> None:
    for page in window(browser, viewport={"width": 390, "height": 844}, reduced_motion="reduce"):
        page.goto(site)
        assert axe.violations(page) == []
        play(page)
        first = page.url
        page.wait_for_selector("#m3")
        assert page.evaluate("document.getAnimations().length") == 0
        assert axe.violations(page) == []
        expect(page.locator("#player .growth")).to_be_visible()
        page.keyboard.press("Enter")
        expect(page.locator("#player [role=status]")).to_contain_text("Stopped.")
        expect(page.locator("#text")).to_be_focused()
        page.wait_for_timeout(500)
        count = len(texts(page))
        page.wait_for_timeout(2500)
        assert len(texts(page)) == count < len(SCRIPT)
        assert axe.violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0

        play(page, "Play again")
        assert page.url != first
        page.wait_for_selector("#m2")
        assert texts(page)[:2] == SCRIPT[:2]
        second = page.url
        page.goto(site)
        page.wait_for_timeout(2500)
        page.goto(second)
        assert len(texts(page)) < 8
        say(page, "I go on by myself.")
        assert page.locator(".list li").count() == 2


def test_only_a_conversation_that_was_begun_to_be_played_takes_the_messages(site: str, page: Page, other: Page) -> None:
    begin(page, site, "Hello there.")
    assert post(page, f"{page.url}lines/0/").status == 404
    address = post(page, f"{site}/play/").headers["location"].removesuffix("?play=1")
    line = f"{site}{address}lines/"
    for _ in range(2):
        assert post(page, f"{line}0/").json() == {"asks": False}
    asks: list[Any] = [post(page, f"{line}{number}/").json()["asks"] for number in range(1, len(SCRIPT))]
    assert asks.count(True) == 2
    assert asks[-1]
    assert post(page, f"{line}{len(SCRIPT)}/").status == 404
    other.goto(site)
    assert post(other, f"{line}0/").status == 404
    page.goto(f"{site}{address}")
    assert texts(page)[: len(SCRIPT)] == SCRIPT
