"""Replies that stay in place: what the user types, where the user reads, and what other windows see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.example.conftest import answered, begin, begun, edit_last, say, texts, window, writes
from tests.openai_server import Behaviour, OpenAIServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

TURNS = 5
# Milliseconds between two keys of a quick typist.
KEYS = 45


def test_no_key_is_lost_while_replies_are_written(modelled: str, page: Page) -> None:
    begin(page, modelled, "Question 0.")
    page.evaluate("window.same = true")
    for number in range(1, TURNS + 1):
        # Typed during the reply to the last question and after it.
        page.locator("#text").press_sequentially(f"Question {number}, typed by a quick hand.", delay=KEYS)
        assert page.input_value("#text") == f"Question {number}, typed by a quick hand."
        expect(page.locator("#stop")).to_be_hidden()
        page.keyboard.press("Enter")
        page.wait_for_function("number => document.querySelectorAll('#messages .user').length > number", arg=number)
    answered(page, f"Question {TURNS}")
    asked = ["Question 0.", *[f"Question {number}, typed by a quick hand." for number in range(1, TURNS + 1)]]
    assert texts(page) == [text for one in asked for text in (one, "A fine answer to what was asked.")]
    # It is still the page that was opened first.
    assert page.evaluate("window.same")
    page.reload()
    assert len(texts(page)) == 2 * TURNS + 2


def test_a_message_that_is_sent_too_early_waits_and_says_why(modelled: str, model: OpenAIServer, page: Page) -> None:
    model.queue(Behaviour(text="word " * 40, pace=0.05))
    begin(page, modelled, "Hello there.")
    writes(page)
    page.fill("#text", "And then?")
    page.keyboard.press("Enter")
    expect(page.locator("#hint")).to_contain_text("still being written")
    assert page.input_value("#text") == "And then?"
    answered(page, "Hello there.")
    assert page.locator("#hint").inner_text() == ""
    page.locator("#text").press("Enter")
    answered(page, "And then?")
    assert len(texts(page)) == 4


@pytest.mark.parametrize("size", [(1360, 500), (390, 700)])
def test_who_reads_what_was_said_before_stays_there(
    modelled: str, model: OpenAIServer, browser: Browser, size: tuple[int, int]
) -> None:
    for page in window(browser, viewport={"width": size[0], "height": size[1]}):
        model.queue(Behaviour(text="A long answer.\n" * 60))
        begun(page, modelled)
        at_end = "() => document.querySelector('#messages').lastElementChild.getBoundingClientRect().bottom"
        assert 0 < page.evaluate(at_end) < size[1]
        page.reload()
        assert 0 < page.evaluate(at_end) < size[1]

        model.queue(Behaviour(text="More of it.\n" * 60, pace=0.02))
        page.fill("#text", "More, please.")
        page.keyboard.press("Enter")
        writes(page)
        page.locator("#m2").evaluate("one => one.scrollIntoView({ block: 'start', behavior: 'instant' })")
        top = page.locator("#m2").evaluate("one => one.getBoundingClientRect().top")
        answered(page, "More, please.")
        assert abs(page.locator("#m2").evaluate("one => one.getBoundingClientRect().top") - top) < 2


def test_a_message_that_an_event_brings_before_its_response_stands_once(modelled: str, page: Page) -> None:
    begun(page, modelled)

    def late(route: Route) -> None:
        response = route.fetch()
        page.wait_for_selector("#m3")
        route.fulfill(response=response)

    page.route("**/send/", late)
    say(page, "Is it windy in Ljubljana?")
    assert page.locator("#m3").count() == 1
    assert len(texts(page)) == 4


def test_two_windows_agree(modelled: str, model: OpenAIServer, page: Page) -> None:
    address = begun(page, modelled)
    second = page.context.new_page()
    second.goto(address)
    second.evaluate("window.same = true")
    asked = len(model.log)

    page.bring_to_front()
    say(page, "Is it windy in Ljubljana?")
    say(page, "And in Bled?")
    second.bring_to_front()
    expect(second.locator("#messages .message")).to_have_count(6)
    assert texts(second) == texts(page)

    # A question that is asked otherwise replaces the old turn in both.
    edit_last(second, "And in Maribor?")
    answered(second, "And in Maribor?")
    page.bring_to_front()
    answered(page, "And in Maribor?")
    assert texts(page) == texts(second) == [text for text in texts(page) if "Bled" not in text]
    assert page.locator("[data-edit]").count() == second.locator("[data-edit]").count() == 1

    # Only one window asked the model for each reply.
    assert len(model.log) == asked + 3
    assert page.evaluate("window.same")
    assert second.evaluate("window.same")


def test_a_window_that_is_opened_meanwhile_waits_for_the_same_reply(
    modelled: str, model: OpenAIServer, page: Page
) -> None:
    model.queue(Behaviour(text="word " * 40, pace=0.05))
    begin(page, modelled, "Hello there.")
    asked = len(model.log)
    writes(page)
    second = page.context.new_page()
    second.goto(page.url)
    answered(second, "Hello there.")
    page.bring_to_front()
    answered(page, "Hello there.")
    assert texts(page) == texts(second)
    assert len(model.log) <= asked + 1
    assert second.locator("#notice").inner_text() == ""


def test_an_edit_ends_the_reply_that_another_window_shows(modelled: str, model: OpenAIServer, page: Page) -> None:
    address = begun(page, modelled)
    second = page.context.new_page()
    second.goto(address)
    model.queue(Behaviour(text="old " * 800, pace=0.05))
    page.bring_to_front()
    page.fill("#text", "And in Bled?")
    page.keyboard.press("Enter")
    writes(page)
    second.bring_to_front()
    expect(second.locator("#messages .user")).to_have_count(2)
    edit_last(second, "And in Maribor?")
    answered(second, "And in Maribor?")
    page.bring_to_front()
    answered(page, "And in Maribor?")
    assert texts(page) == texts(second)
    assert "old" not in " ".join(texts(page))


def test_a_reply_stays_until_another_one_is_stored(modelled: str, model: OpenAIServer, page: Page) -> None:
    begun(page, modelled)
    model.queue(Behaviour("breaks_off", text="A better answer. " * 10))
    page.locator("#m1 .menu summary").click()
    page.click("text=Another answer")
    page.wait_for_selector("#notice .refused")
    assert texts(page) == ["Hello there.", "A fine answer to what was asked."]
    model.queue(Behaviour(text="A better answer."))
    page.click("text=Try again")
    expect(page.locator("#messages")).to_contain_text("A better answer.")
    answered(page, "Hello there.")
    assert texts(page) == ["Hello there.", "A better answer."]

    # One that is stopped takes its place, and can be asked for again.
    model.queue(Behaviour(text="Once upon a time. " * 50, pace=0.05))
    page.locator("#m1 .menu summary").click()
    page.click("text=Another answer")
    writes(page)
    page.click("#stop")
    page.wait_for_selector("#messages .partial")
    page.click("text=Answer again")
    page.wait_for_selector("#messages .partial", state="detached")
    answered(page, "Hello there.")
    assert texts(page) == ["Hello there.", "A fine answer to what was asked."]
    assert page.evaluate("window.same")


def test_offline_and_back(modelled: str, page: Page) -> None:
    begun(page, modelled)
    page.context.set_offline(True)
    page.fill("#text", "Are you there?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#notice .refused")
    assert "cannot be reached" in page.locator("#notice").inner_text()
    assert page.input_value("#text") == "Are you there?"
    page.context.set_offline(False)
    page.locator("#text").press("Enter")
    answered(page, "Are you there?")
    assert texts(page) == ["Hello there.", "A fine answer to what was asked.", "Are you there?", texts(page)[1]]


def test_a_reply_that_ends_too_early_can_be_asked_for_again(modelled: str, page: Page) -> None:
    begun(page, modelled)
    # As from a server that is killed.
    page.route("**/reply/", lambda route: route.fulfill(body='{"text": "Half of"}\n'), times=1)
    page.fill("#text", "Are you there?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#notice .refused")
    assert "Your message is stored." in page.locator("#notice").inner_text()
    page.locator("#text").press_sequentially("And then")
    page.click("text=Try again")
    answered(page, "Are you there?")
    assert page.input_value("#text") == "And then"
    assert texts(page)[2:] == ["Are you there?", "A fine answer to what was asked."]


def test_without_scripts_a_message_can_be_sent_and_its_reply_read(
    modelled: str, model: OpenAIServer, browser: Browser
) -> None:
    model.queue(Behaviour("unauthorized"))
    for page in window(browser, java_script_enabled=False):
        begin(page, modelled, "Hello there.")
        page.click("text=Get the reply")
        assert "does not accept the key" in page.locator("main").inner_text()
        page.click("text=Back to the conversation")
        page.click("text=Get the reply")
        page.fill("#text", "And then?")
        page.click("text=Send")
        page.click("text=Get the reply")
        assert texts(page) == ["Hello there.", "A fine answer to what was asked.", "And then?", texts(page)[1]]


def test_on_a_telephone_the_list_is_closed_and_the_memory_one_tap_away(modelled: str, browser: Browser) -> None:
    for page in window(browser, viewport={"width": 390, "height": 844}, has_touch=True):
        begin(page, modelled, "A question with a title that is longer than a telephone is wide, and is read whole.")
        answered(page, "A question with a title")
        title = page.locator(".bar h1")
        assert title.evaluate("one => one.scrollWidth <= one.clientWidth")
        assert page.locator(".list li").first.is_hidden()
        page.tap("a.to-memory")
        page.wait_for_function(
            "() => document.querySelector('#panel dl').getBoundingClientRect().bottom <= innerHeight"
        )
        page.tap(".list summary")
        assert page.locator(".list li").first.is_visible()


def test_the_visitor_names_the_conversation_copies_and_chooses_colours(modelled: str, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(modelled)
    page.click(".suggestions button >> nth=0")
    page.wait_for_selector("#panel")
    answered(page, "allergic to peanuts")
    page.click("text=Rename")
    page.fill("#title", "  Ines and <b>peanuts</b> ")
    page.click("text=Save")
    expect(page.locator(".bar h1")).to_have_text("Ines and <b>peanuts</b>")
    assert page.locator(".list [aria-current]").inner_text() == "Ines and <b>peanuts</b>"

    page.click("#m2 .menu summary")
    assert page.locator("#m2 time").is_visible()
    page.click("#m2 [data-copy-message]")
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "A fine answer to what was asked."

    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    page.click("#theme")
    assert page.locator("#theme").inner_text() == "Colours: dark"
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark


def test_a_conversation_moves_up_in_the_list_when_somebody_writes_in_it(modelled: str, page: Page) -> None:
    addresses = []
    for number in range(3):
        begin(page, modelled, f"Conversation {number}.")
        answered(page, f"Conversation {number}.")  # While a reply is written, nothing can be sent.
        addresses.append(page.url)
    second = page.context.new_page()

    def listed(window: Page) -> list[str]:
        return window.locator(".list li").all_inner_texts()

    for window_of_it in (page, second):
        window_of_it.goto(addresses[0])
        assert listed(window_of_it) == ["Conversation 2.", "Conversation 1.", "Conversation 0."]
    say(page, "And then?")
    answered(second, "And then?")
    for window_of_it in (page, second):
        assert listed(window_of_it) == ["Conversation 0.", "Conversation 2.", "Conversation 1."]
        window_of_it.goto(addresses[1])  # It stays there.
        assert listed(window_of_it) == ["Conversation 0.", "Conversation 2.", "Conversation 1."]
