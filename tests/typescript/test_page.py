"""The front end of docs/howto/typescript.md compiles, and works in a browser on the example site."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.template import Context, Template
from django.templatetags.static import static

from tests.browser import browser
from tests.example.conftest import sign_in, site, window
from tests.typescript import compiler

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

pytestmark = pytest.mark.slow

__all__ = ["browser", "site"]

TEXT = compiler.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The compiled code of the page."""
    return compiler.compile_page(tmp_path_factory.mktemp("typescript"))


def test_the_title_counts_the_lines_of_the_code() -> None:
    lines = [line for line in compiler.code_of(TEXT, "ts").splitlines() if line.strip()]
    assert TEXT.startswith(f"# A chat front end in {len(lines)} lines of TypeScript\n")


def test_the_commands_of_the_page_are_those_that_compile_it_here() -> None:
    install, types, compile_code = re.findall(r"^\$ (.*)", compiler.code_of(TEXT, "console"), re.MULTILINE)
    pinned = json.loads((pathlib.Path(compiler.__file__).parent / "package.json").read_text())["devDependencies"]
    packages = [f"{name}@{pinned[name].partition('.')[0]}" for name in ("typescript", "openapi-typescript")]
    assert install == f"npm install --save-dev {' '.join(packages)}"
    assert types == "npx openapi-typescript openapi.yaml --output schema.d.ts"
    assert compile_code == f"npx tsc {compiler.OPTIONS.replace('--noUnusedLocals ', '')} chat.ts"


def test_a_misspelt_field_does_not_compile(tmp_path: pathlib.Path) -> None:
    code = compiler.code_of(TEXT, "ts").replace("one.last_message", "one.latest_message")
    with pytest.raises(compiler.Wrong, match=r"latest_message.* does not exist"):
        compiler.compile_page(tmp_path, code)


@contextlib.contextmanager
def opened(page: Page, site: str, script: str) -> Iterator[Page]:
    """Show the front end at an address of the example, with the example's own policy and cookies."""
    address = f"{site}/typescript/"
    html = Template(compiler.code_of(TEXT, "html")).render(Context({"csrf_token": "of-the-form"}))
    policy = {"Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'"}
    page.route(address, lambda route: route.fulfill(content_type="text/html", body=html, headers=policy))
    page.route(f"{site}{static('chat.js')}", lambda route: route.fulfill(content_type="text/javascript", body=script))
    page.goto(address)
    yield page


def fill(page: Page, form: str, text: str) -> None:
    page.fill(f"#{form} [name=text]", text)
    page.keyboard.press("Enter")
    page.wait_for_function("form => document.querySelector(`#${form} [name=text]`).value === ''", arg=form)


def shows(page: Page, *messages: str) -> None:
    """Wait until the page shows exactly these messages."""
    page.wait_for_function(
        """texts => {
            const shown = [...document.querySelectorAll("#messages li")].map(item => item.firstChild.textContent);
            return JSON.stringify(shown) === JSON.stringify(texts);
        }""",
        arg=list(messages),
    )


def test_two_windows_chat_edit_branch_and_search(site: str, browser: Browser, script: str) -> None:
    for page in window(browser):
        sign_in(page, site)
        other = page.context.new_page()
        with opened(page, site, script), opened(other, site, script):
            fill(page, "compose", "Where do we eat <b>octopus</b> in Lisbon?")
            shows(page, "user: Where do we eat <b>octopus</b> in Lisbon?")

            # The other window finds the conversation, and follows it.
            fill(other, "search", "octopus")
            other.locator("#sessions li", has_text="octopus").locator("button").first.click()
            shows(other, "user: Where do we eat <b>octopus</b> in Lisbon?")
            fill(page, "compose", "And in Porto?")
            shows(other, "user: Where do we eat <b>octopus</b> in Lisbon?", "user: And in Porto?")

            # An edit replaces the message and what follows, in both windows.
            other.once("dialog", lambda dialog: dialog.accept("And in Faro?"))
            other.locator("#messages li", has_text="Porto").get_by_text("Edit").click()
            for each in (page, other):
                shows(each, "user: Where do we eat <b>octopus</b> in Lisbon?", "user: And in Faro?")

            # Whoever cancels an edit changes nothing.
            other.once("dialog", lambda dialog: dialog.dismiss())
            other.locator("#messages li", has_text="Faro").get_by_text("Edit").click()

            # A branch has the first message only. The other window stays with the original.
            page.locator("#messages li", has_text="Lisbon").get_by_text("Branch").click()
            shows(page, "user: Where do we eat <b>octopus</b> in Lisbon?")
            assert page.inner_text("#title").endswith("(branch)")
            fill(page, "compose", "Only here")
            shows(page, "user: Where do we eat <b>octopus</b> in Lisbon?", "user: Only here")
            shows(other, "user: Where do we eat <b>octopus</b> in Lisbon?", "user: And in Faro?")
            page.locator("#sessions li", has_text="Faro").get_by_text("Open").click()
            shows(page, "user: Where do we eat <b>octopus</b> in Lisbon?", "user: And in Faro?")


def write_elsewhere(page: Page, site: str, messages: str) -> None:
    """Store a message of the user without the page."""
    token = next(one["value"] for one in page.context.cookies() if one["name"] == "csrftoken")
    headers = {"X-CSRFToken": token, "Referer": site}
    body = {"messages": [{"role": "user", "content": "And the wind?"}]}
    assert page.context.request.post(messages, data=body, headers=headers).status == 201


def test_an_edit_of_what_has_changed_is_refused(site: str, browser: Browser, script: str) -> None:
    for page in window(browser):
        sign_in(page, site)
        with opened(page, site, script):
            fill(page, "compose", "What is the tide tomorrow?")
            shows(page, "user: What is the tide tomorrow?")
            names = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
            messages = next(name for name in names if name.endswith("/messages/"))

            def interrupt(dialog: Dialog, page: Page = page, messages: str = messages) -> None:
                """While the user types, somebody else writes."""
                write_elsewhere(page, site, messages)
                dialog.accept("What is the tide today?")

            page.once("dialog", interrupt)
            page.locator("#messages li").get_by_text("Edit").click()

            page.locator("#error", has_text="has changed since").wait_for()
            shows(page, "user: What is the tide tomorrow?", "user: And the wind?")

            # What succeeds takes the error away. An empty search shows the list again.
            fill(page, "search", "tide")
            page.wait_for_function("() => document.getElementById('error').textContent === ''")
            fill(page, "search", "xyzzy")
            page.wait_for_function("() => document.querySelectorAll('#sessions li').length === 0")
            fill(page, "search", "")
            page.locator("#sessions li", has_text="And the wind?").wait_for()
