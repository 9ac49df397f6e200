"""The example as ``make demo`` serves it, and browser windows that show it."""

from __future__ import annotations

import contextlib
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser import browser
from tests.openai_server import Behaviour, OpenAIServer
from tests.processes import PATIENCE
from tests.test_example_project import PROJECT, environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]

MILLISECONDS = PATIENCE * 1000
expect.set_options(timeout=MILLISECONDS)


@contextlib.contextmanager
def served(folder: pathlib.Path, port: str = "0", **variables: str) -> Iterator[str]:
    """Serve the example as ``make demo`` does, and yield its address. Without ``port``, any free port is taken.

    What it prints at the start is in the file ``said`` of the folder.
    """
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "serve.py", "--port", port],
            cwd=PROJECT,
            env=environment(folder, **({"EXAMPLE_PACE": "0.005", "CHAT_RATE": "1000/min"} | variables)),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        said = ""
        while " is the site" not in said and (line := process.stdout.readline()):
            said += line
        (folder / "said").write_text(said)
        match = re.search(r"(http://\S+)/ is the site", said)
        assert match, (folder / "errors").read_text()
        yield match.group(1)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site as it is, without a model: one that the shell names for other programs is not used."""
    variables = {"OPENAI_MODEL": "unwanted", "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    with served(tmp_path_factory.mktemp("site"), **variables) as url:
        yield url


@pytest.fixture(scope="session")
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        server.default = Behaviour(text="A fine answer to what was asked.", pace=0.05)
        yield server


@pytest.fixture(scope="session")
def modelled(model: OpenAIServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site with a model."""
    variables = {"DEMO_MODEL": "fake", "OPENAI_BASE_URL": model.base_url}
    # No fold of an earlier conversation takes an answer that is meant for a reply.
    variables["CONVMEMORY_TOKEN_LIMIT"] = "100000"
    with served(tmp_path_factory.mktemp("modelled"), **variables) as url:
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A browser window. An error in it fails the test, and so does what the site's policy forbids."""
    yield from window(browser)


@pytest.fixture
def other(browser: Browser) -> Iterator[Page]:
    """A window of another visitor."""
    yield from window(browser)


def window(browser: Browser, **options: Any) -> Iterator[Page]:
    context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}} | options)
    context.set_default_timeout(MILLISECONDS)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if "Content Security" in message.text else None)
    yield page
    context.close()
    assert wrong == []


def sign_in(page: Page, site: str) -> None:
    page.goto(f"{site}/sign-in/")
    page.click("text=Sign in as demo")
    page.wait_for_url(f"{site}/")


def begin(page: Page, site: str, text: str) -> None:
    """Begin a conversation with a message."""
    page.goto(site)
    page.fill("#text", text)
    page.click("text=Send")
    page.wait_for_selector("#panel")


def begun(page: Page, site: str) -> str:
    """Begin a conversation, wait for the answer, and return the address. A reload would forget ``window.same``."""
    begin(page, site, "Hello there.")
    page.evaluate("window.same = true")
    answered(page, "Hello there.")
    return page.url


def texts(page: Page) -> list[str]:
    """The texts of the messages that are shown."""
    return page.locator("#messages > [data-position] .text").all_inner_texts()


def edit_last(page: Page, text: str) -> None:
    """Edit the last question, and ask it again."""
    page.locator("#messages .user").last.locator(".menu summary").click()
    page.click("text=Edit and ask again")
    page.get_by_label("Your message, edited").fill(text)
    page.keyboard.press("Enter")


def post(page: Page, address: str, **form: str | float | bool) -> Any:
    """Send a form like the page's scripts."""
    token = page.evaluate("document.body.dataset.token")
    return page.request.post(address, form=form, headers={"X-CSRFToken": token}, max_redirects=0)


def say(page: Page, text: str) -> None:
    """Send a message, and wait for the answer."""
    page.fill("#text", text)
    page.keyboard.press("Enter")
    answered(page, text)


def answered(page: Page, text: str) -> None:
    """Wait until the user's last message is ``text``, and its answer is stored and shown."""
    page.wait_for_function(
        """text => {
            const all = [...document.querySelectorAll("#messages > .message")];
            const users = all.filter(one => one.matches(".user"));
            return document.readyState === "complete" && !document.querySelector(".writing")
                && users.at(-1)?.innerText.includes(text) && all.at(-1).matches(".assistant:has(.menu)");
        }""",
        arg=text.strip(),
    )


def writes(page: Page) -> None:
    """Wait until a reply is being written."""
    page.wait_for_function("() => document.querySelector('.writing .text')?.innerText.length > 20")
