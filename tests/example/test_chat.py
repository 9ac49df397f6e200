"""The example's chat site in a real browser, with and without a model."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests import axe
from tests.browser import picture
from tests.example.conftest import answered, begin, begun, edit_last, post, say, served, sign_in, window, writes
from tests.openai_server import Behaviour, OpenAIServer
from tests.processes import PATIENCE
from tests.test_example_project import PROJECT, environment


def test_a_visitor_talks_until_the_conversation_is_folded(site: str, page: Page, other: Page) -> None:
    begin(page, site, "My name is Ada, and I collect stamps from Portugal.")
    answered(page, "My name is Ada")
    assert "offline responder" in page.locator("#messages .assistant").first.inner_text()
    assert "None yet" in page.locator("#panel .summary").inner_text()

    # The summary appears on the open page.
    for number in range(3):
        say(page, f"Something else, number {number}: the weather is fine, and the trains run on time. " * 6)
    expect(page.locator("#panel .summary .quiet")).to_have_count(0)
    page.wait_for_selector("#messages .message.folded")
    say(page, "Which stamps do I collect?")
    assert "Portugal" in page.locator("#messages .assistant").last.inner_text()

    address = page.url
    assert other.goto(address).status == 404  # type: ignore[union-attr]
    for path in (address, f"{address}panel/", site):
        assert "no-store" in page.request.get(path).headers["cache-control"]

    # After signing in, the user has the visitor's conversations.
    sign_in(page, site)
    assert page.goto(address).status == 200  # type: ignore[union-attr]
    assert "Ada" in page.locator("#messages").inner_text()


def test_a_fold_is_seen_and_its_versions_can_be_paged_through(site: str, page: Page) -> None:
    page.goto(site)
    page.click(".suggestions button >> nth=0")
    page.wait_for_selector("#panel")
    answered(page, "allergic to peanuts")
    page.evaluate(
        """() => {
            window.moved = [];
            document.getElementById("messages").addEventListener("animationstart", event => {
                if (event.animationName === "fold") window.moved.push(event.target.id);
            });
        }"""
    )
    folded_twice = "() => /version [2-9]/.test(document.querySelector('#panel h3')?.innerText)"
    # Usually six are enough. A slow worker folds more messages at once.
    for place in ("Ljubljana", "Maribor", "Trieste", "Villach", "Udine", "Zagreb") * 3:
        say(
            page, f"We stay in {place} for two nights, in a house by the river. " + "It has a garden and two cats. " * 8
        )
        expect(page.locator("#panel .state")).to_contain_text("up to date")
        if page.evaluate(folded_twice):
            break
    page.wait_for_function(folded_twice)
    numbers = page.locator("[data-versions]").get_attribute("data-versions")
    assert numbers is not None
    versions = numbers.split()
    assert "m1" in page.evaluate("window.moved")
    # No prompt had the newest reply yet, and none had a summary that is newer than it.
    served, prompt = (int(page.locator("#panel meter").nth(n).get_attribute("value") or 0) for n in (1, 0))
    assert 0 < served < prompt

    # Only the new words are marked. On the slider, those that are gone are there too.
    assert page.locator("#panel .summary ins").count()
    assert page.locator("#panel .summary del").count() == 0
    slider = page.get_by_label("Summary versions")
    for number in reversed(versions[:-1]):
        slider.press("ArrowLeft")
        expect(page.locator("#version")).to_contain_text(f"Version {number},")
    assert "Ines is allergic to peanuts" in page.locator("#version").inner_text()

    # When the panel is replaced, the reader stays there, and so does the keyboard.
    _say_elsewhere(page, "And one in Vienna.")
    expect(slider).to_be_focused()
    expect(page.locator("#version")).to_contain_text(f"Version {versions[0]},")
    # A late response does not replace what a new panel shows.
    late: list[Route] = []
    page.route(f"**/versions/{versions[1]}/", lambda route: late.append(route))  # noqa: PLW0108  it sets an attribute
    slider.press("ArrowRight")
    slider.press("End")
    _say_elsewhere(page, "And one in Bratislava.")
    with page.expect_response("**/versions/*/"):
        late[0].continue_()
    page.evaluate("new Promise(resolve => setTimeout(resolve, 100))")
    assert f"Version {versions[1]}," not in page.locator("#version").inner_text()
    assert page.request.get(f"{page.url}versions/{versions[0]}/").status == 200
    assert page.request.get(f"{page.url}versions/99/").status == 404
    assert page.request.get(f"{page.url}versions/{'9' * 30}/").status == 404


def _say_elsewhere(page: Page, text: str) -> None:
    """Send a message as another window would, and wait until the panel is replaced."""
    page.evaluate("window.panel = document.querySelector('#panel .state')")
    assert post(page, f"{page.url}send/", text=text).status == 302
    page.wait_for_function("() => !window.panel.isConnected")


def test_what_was_recalled_is_shown_at_the_reply(site: str, page: Page) -> None:
    begin(page, site, "The spare key is under the third flowerpot.")
    answered(page, "flowerpot")
    assert page.locator(".recalled").count() == 0
    for number in range(3):
        say(page, f"Number {number}: the weather is fine, and the trains run on time. " * 3)
    say(page, "Where is the spare key?")
    recalled = page.locator("#messages .assistant").last.locator(".recalled")
    # The link is there before it is opened, and for browsers without scripts.
    assert recalled.locator("a").get_attribute("href").endswith("?at=1#m1")  # type: ignore[union-attr]
    recalled.locator("summary").click()
    recalled.locator(".passage", has_text="under the third flowerpot").wait_for()
    assert axe.violations(page) == []
    page.evaluate("window.same = true")
    recalled.locator("a").click()
    page.wait_for_selector("#m1:target")
    assert page.evaluate("window.same")

    # What is redacted now is not told here either.
    page.reload()
    page.locator("#m1 .menu summary").click()
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("#m1 .menu button", has_text="Redact").click()
    page.wait_for_selector("#m1 em")
    recalled.locator("summary").click()
    recalled.locator(".passage em").wait_for()
    assert "flowerpot" not in recalled.inner_text()
    assert page.request.get(f"{page.url.split('?')[0].split('#')[0]}recalled/99/").status == 404


def test_two_windows_of_a_new_browser_belong_to_the_same_visitor(site: str, page: Page) -> None:
    other = page.context.new_page()
    for tab in (page, other):
        tab.goto(site)
    for number, tab in enumerate((page, other)):
        tab.fill("#text", f"Message {number}.")
        tab.click("text=Send")
        tab.wait_for_selector("#panel")
    for tab in (page, other):
        assert tab.reload().status == 200  # type: ignore[union-attr]


@pytest.mark.slow
def test_who_says_too_much_is_told_when_to_go_on(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    with served(tmp_path_factory.mktemp("limited"), CHAT_RATE="2/day") as url:
        for page in window(browser):
            begin(page, url, "One.")
            answered(page, "One.")
            say(page, "Two.")
            page.fill("#text", "Three.")
            page.keyboard.press("Enter")
            page.wait_for_selector("#notice .refused")
            assert "Please wait" in page.locator("#notice").inner_text()
            assert page.input_value("#text") == "Three."
        for page in window(browser):
            # Another visitor at the same address, whatever address the visitor claims to have.
            page.goto(url)
            page.set_extra_http_headers({"X-Forwarded-For": "10.0.0.1"})
            assert post(page, f"{url}/begin/", text="Hello.").status == 429


def test_the_journey_of_a_user(site: str, page: Page, other: Page) -> None:
    sign_in(page, site)
    assert page.locator(".list li").count() >= 4
    page.click("text=Slovenia with my mother")
    page.wait_for_selector("#messages .message.folded")
    count = page.locator("#messages .message").count()
    address = page.url

    # After an edit, the last turn is replaced.
    say(page, "And what about a zeppelin?")
    edit_last(page, "And what about the birthday dinner?")
    expect(page.locator("#messages")).not_to_contain_text("a zeppelin?")
    answered(page, "birthday dinner")

    # A branch is another conversation, with the messages up to that point.
    page.locator("#messages .user").last.locator(".menu summary").click()
    page.click("text=Branch from here >> visible=true")
    page.wait_for_function("address => location.href !== address", arg=address)
    answered(page, "birthday dinner")
    assert "Branch: " in page.locator(".bar h1").inner_text()
    branch = page.url

    # A message that is redacted in the original is redacted in the branch, too.
    with page.expect_download() as download:
        page.click("text=Export")
    assert "Slovenia" in pathlib.Path(download.value.path()).read_text()
    page.goto(address)
    page.on("dialog", lambda dialog: dialog.accept())
    last = page.locator("#messages .user").last
    last.locator(".menu summary").click()
    last.get_by_text("Redact").click()
    expect(page.locator("#messages")).not_to_contain_text("birthday dinner?")
    page.goto(branch)
    assert "birthday dinner?" not in page.locator("#messages").inner_text()

    page.click("text=Delete")
    page.wait_for_url(f"{site}/")
    assert page.goto(branch).status == 404  # type: ignore[union-attr]
    assert other.goto(address).status == 404  # type: ignore[union-attr]

    page.goto(address)
    assert page.locator("#messages .message").count() >= count
    page.click("text=Sign out")
    page.wait_for_url(f"{site}/")
    assert page.goto(address).status == 404  # type: ignore[union-attr]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pictures(site: str, browser: Browser, scheme: Any) -> None:
    for page in window(browser, color_scheme=scheme):
        page.goto(site)
        picture(page, f"chat-first-visit-{scheme}", full_page=False)
        sign_in(page, site)
        page.click("text=Slovenia with my mother")
        page.wait_for_selector("#messages .message.tool.folded")
        assert axe.violations(page) == []
        page.get_by_label("Summary versions").press("ArrowLeft")
        page.wait_for_selector("#version .quiet")
        picture(page, f"chat-versions-{scheme}", full_page=False)
        assert axe.violations(page) == []
        page.click("text=Refund for damaged panniers")
        page.wait_for_selector("#messages .message.folded")
        page.wait_for_timeout(300)
        picture(page, f"chat-{scheme}", full_page=False)
        page.set_viewport_size({"width": 375, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        assert axe.violations(page) == []


def test_the_pictures_of_a_diary(site: str, browser: Browser) -> None:
    for page in window(browser):
        sign_in(page, site)
        page.click("text=A diary of three years")
        page.wait_for_selector("#panel")
        say(page, "Where is the spare key?")
        assert "Frau Aigner" in page.locator("#messages .assistant").last.inner_text()
        page.locator(".recalled summary").last.click()
        page.locator(".recalled .passage", has_text="Frau Aigner").last.scroll_into_view_if_needed()
        picture(page, "chat-recall-light", full_page=False)
        page.fill("#find", "cello in the rain")
        page.keyboard.press("Enter")
        page.wait_for_selector("#found mark")
        picture(page, "chat-search-light", full_page=False)
    for page in window(browser, viewport={"width": 390, "height": 844}, has_touch=True):
        sign_in(page, site)
        page.tap("text=A diary of three years")
        page.wait_for_selector("#panel")
        answered(page, "Where is the spare key?")
        picture(page, "chat-telephone-light", full_page=False)


# With a model.


def test_a_reply_is_streamed_and_can_be_stopped(modelled: str, model: OpenAIServer, page: Page) -> None:
    model.queue(Behaviour(text="Once upon a time. " * 50, pace=0.05))
    begin(page, modelled, "Hello there.")
    writes(page)
    asked = len(model.log)
    page.click("#stop")
    page.wait_for_selector("#messages .partial")
    assert 20 < len(page.locator("#messages .partial .text").inner_text()) < 900
    page.wait_for_selector("#stop", state="hidden")
    assert len(model.log) == asked
    say(page, "And then?")
    assert page.locator("#messages .assistant").count() == 2

    # Before the first word of the reply, only the question is kept.
    model.queue(Behaviour(text="Late.", latency=30))
    page.fill("#text", "Are you there?")
    page.click("text=Send")
    page.click("#stop")
    page.wait_for_selector("#notice .refused")
    assert "Your message is stored." in page.locator("#notice").inner_text()
    page.click("text=Try again")
    answered(page, "Are you there?")
    assert page.locator("#messages .user").count() == 3


def test_a_reply_to_a_turn_that_is_gone_is_not_kept(modelled: str, model: OpenAIServer, page: Page) -> None:
    model.queue(Behaviour(text="old " * 200, pace=0.05))
    begin(page, modelled, "Hello there.")
    writes(page)
    page.evaluate("window.same = true")
    edit_last(page, "Something else?")
    answered(page, "Something else?")
    for title in (".bar h1", ".list [aria-current]"):
        assert page.locator(title).inner_text() == "Something else?"
    assert page.evaluate("window.same")
    assert "old old" not in page.locator("#messages").inner_text()

    model.queue(Behaviour(text="old " * 200, pace=0.05))
    page.fill("#text", "And then?")
    page.keyboard.press("Enter")
    writes(page)
    assert post(page, f"{page.url}delete/").status == 302
    page.goto(modelled)
    page.wait_for_timeout(500)
    page.goto(modelled)
    assert page.locator(".list li a").count() == 0


@pytest.mark.parametrize(
    ("behaviours", "says"),
    [
        ([Behaviour("rate_limited", retry_after="0")] * 2, "The model is overloaded"),
        ([Behaviour("breaks_off", text="Half of this " * 10)], "The model broke off its answer"),
        ([Behaviour("raw", status=500, body={"error": {"message": "secret-org"}})] * 2, "The model could not answer"),
    ],
    ids=["429", "breaks off", "500"],
)
def test_a_model_that_fails(
    modelled: str, model: OpenAIServer, page: Page, behaviours: list[Behaviour], says: str
) -> None:
    begun(page, modelled)
    model.queue(*behaviours)
    page.fill("#text", "Are you still there?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".refused")
    notice = page.locator("#notice").inner_text()
    assert says in notice
    assert "Your message is stored." in notice
    assert "secret-org" not in page.content()
    page.click("text=Try again")
    answered(page, "Are you still there?")
    user_texts = page.locator("#messages .user").all_inner_texts()
    assert [text for text in user_texts if "still there" in text] == [user_texts[-1]]
    assert page.locator("#messages .assistant").count() == 2


def test_what_no_database_stores_is_left_out_of_a_reply(modelled: str, model: OpenAIServer, page: Page) -> None:
    begun(page, modelled)
    delta = {"role": "assistant", "content": "half \ud83d a\0b end"}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    chunks = [
        chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]},
        chunk | {"choices": [], "usage": {"x": "a\0b"}},
    ]
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
    model.queue(Behaviour("raw", body=body, headers={"Content-Type": "text/event-stream"}))
    say(page, "And then?")
    assert "half \ufffd ab end" in page.locator("#messages .assistant").last.inner_text()
    assert page.locator("#messages .partial").count() == 0


def test_wrong_addresses_and_forms(modelled: str, model: OpenAIServer, page: Page) -> None:
    begun(page, modelled)
    address, huge = page.url, "9" * 30
    for path in ("fork/99/", f"fork/{huge}/", "redact/0/", "redact/99/", f"redact/{huge}/"):
        assert post(page, f"{address}{path}").status == 404, path
    for before in ("x", huge, "9" * 5000, "-1"):
        assert page.request.get(address, params={"before": before}).status == 200
    question = page.locator("#m1 [data-edit]").get_attribute("data-edit") or ""
    for text, told in (("a\0b", "could not be stored"), ("a" * 300_000, "Please shorten it.")):
        for url in (f"{modelled}/begin/", f"{address}send/", f"{address}reply/"):
            refused = post(page, url, text=text, again=question)
            assert (refused.status, told in refused.text()) == (422, True), url
            # It is said in the words of a visitor.
            assert not re.search(r"max_|option|PostgreSQL", refused.text())
    page.reload()
    assert "A fine answer" in page.locator("#messages").inner_text()
    # Another window shows fewer messages than are stored, or the question before it was edited.
    second = page.context.new_page()
    second.goto(address)
    say(second, "Good night.")
    asked = len(model.log)
    for again in (question, "x", str(uuid.uuid4())):
        for form in ({}, {"text": "Something else."}):
            assert post(page, f"{address}reply/", again=again, **form).status == 409
    assert len(model.log) == asked
    second.reload()
    assert second.locator("#messages .message").count() == 4
    # The same message with the same key opens the same conversation; a changed message opens another one.
    for key in ("k" * 300, "\0", ""):
        assert post(page, f"{modelled}/begin/", text="a", key=key).status == 302
    key = uuid.uuid4().hex
    sent = [post(page, f"{modelled}/begin/", text=text, key=key).headers["location"] for text in ("a", "b", "a")]
    assert sent[0] == sent[2] != sent[1]


def test_the_titles_of_conversations(modelled: str, page: Page) -> None:
    begun(page, modelled)
    address = page.url

    def titles() -> list[str]:
        page.goto(modelled)
        return sorted(page.locator(".list li").all_inner_texts())

    branch = post(page, f"{address}fork/2/").headers["location"]
    assert titles() == ["Branch: Hello there.", "Hello there."]
    # An edited question changes the title. A redaction in a branch leaves the original as it is.
    page.goto(address)
    edit_last(page, "Good day.")
    answered(page, "Good day.")
    assert post(page, f"{modelled}{branch}redact/1/").status == 302
    assert post(page, f"{modelled}/begin/", text="\u200b").status == 302
    assert titles() == ["Good day.", "Untitled", "Untitled"]
    # A branch of a long title.
    token = page.evaluate("document.body.dataset.token")
    api = address.replace("/c/", "/api/memory/sessions/")
    assert page.request.patch(api, data={"title": "b" * 255}, headers={"X-CSRFToken": token}).status == 200
    assert post(page, f"{address}fork/1/").status == 302


def test_replies_that_repeat_what_was_redacted_can_be_removed_too(
    modelled: str, model: OpenAIServer, page: Page
) -> None:
    begun(page, modelled)
    say(page, "My password is hunter2. Keep it.")
    say(page, "It rains.")
    model.queue(Behaviour(text="Again: my  password is Hunter2!"))
    say(page, "Which password?")
    page.on("dialog", lambda dialog: dialog.accept())
    page.evaluate("window.same = true")
    page.locator("#m3 .menu summary").click()
    page.locator("#m3").get_by_text("Redact").click()
    page.wait_for_selector("#notice .offer")
    assert "1 reply repeats what you removed: message 8." in " ".join(page.locator("#notice").inner_text().split())
    page.click("text=Remove it too")
    expect(page.locator("#messages")).not_to_contain_text("hunter2", ignore_case=True)
    assert page.locator("#notice").inner_text() == ""
    assert page.evaluate("window.same")
    page.reload()
    assert page.locator("#messages .text em").all_inner_texts() == ["redacted"] * 2


@pytest.mark.slow
def test_ended_twice_it_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "serve.py", "--port", "0"],
        cwd=PROJECT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = next(line for line in process.stdout if " is the site" in line)
    port = int(re.findall(r":(\d+)/", line)[0])
    with socket.create_connection(("127.0.0.1", port)) as held:
        held.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n")
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
