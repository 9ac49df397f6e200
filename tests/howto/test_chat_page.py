"""The page of docs/howto/turns.md in a browser, with the README's view in its streaming form behind it."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.test import Client
from django.urls import path
from django.views.generic import TemplateView
from playwright.sync_api import expect

from django_convmemory.memory import SessionHandle, memories
from tests import asgi_server, processes
from tests.browser import browser
from tests.howto.test_pages import PAGES
from tests.openai_server import Behaviour, OpenAIServer
from tests.test_readme import streaming_view

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
]
[HTML] = re.findall(r"```html\n(.*?)```", PAGES["turns"], re.DOTALL)
ANSWER = "Ownership says who frees the memory."


@pytest.fixture
def page(settings: Any, ann: User, model: OpenAIServer, browser: Browser) -> Iterator[Page]:
    """The page in the browser of a user who is logged in. An error in its script fails the test."""
    loaders = [("django.template.loaders.locmem.Loader", {"chat.html": HTML})]
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}
    urls: Any = types.ModuleType("urls")
    exec(streaming_view(), vars(urls))  # noqa: S102
    urls.urlpatterns = [
        path("", login_required(TemplateView.as_view(template_name="chat.html"))),
        path("chat/", urls.chat),
    ]
    settings.TEMPLATES, settings.ROOT_URLCONF, settings.ALLOWED_HOSTS = [engine], urls, ["127.0.0.1"]
    settings.CONVMEMORY = {"default": {"OPTIONS": {"max_token_limit": 2000}}}
    client = Client()
    client.force_login(ann)
    with asgi_server.serving() as port:
        context = browser.new_context()
        context.set_default_timeout(processes.PATIENCE * 1000)
        url = f"http://127.0.0.1:{port}/"
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": url}])
        shown, wrong = context.new_page(), []
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.goto(url)
        yield shown
        context.close()
        assert wrong == []


@pytest.fixture
def session(ann: User) -> SessionHandle:
    return memories["default"].session("main", owner=ann)


def stored(session: SessionHandle) -> list[tuple[str, str, str | None]]:
    return [(row.message.role, row.message.text, row.cut_off) for row in session.history()]


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def shows(page: Page, *texts: str) -> None:
    """Wait until the page shows the texts, and the reply is stored. Its last piece is shown before."""
    expect(page.locator("#messages p")).to_have_text(list(texts), timeout=processes.PATIENCE * 1000)
    expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=processes.PATIENCE * 1000)


def test_the_page_is_short() -> None:
    assert len(HTML.splitlines()) <= 40


def test_a_reply_appears_while_the_model_writes_it(page: Page, session: SessionHandle, model: OpenAIServer) -> None:
    model.default = Behaviour(text=ANSWER, pace=0.5)
    ask(page, "What is ownership?")
    page.wait_for_function("document.querySelector('#messages').textContent.includes('Ownership ')")
    assert model.log[0].finished is None
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    shows(page, "What is ownership?", ANSWER)
    # The same text again is a new message.
    ask(page, "What is ownership?")
    shows(page, *["What is ownership?", ANSWER] * 2)
    expect(page.get_by_label("Message")).to_have_value("")
    assert stored(session) == [("user", "What is ownership?", None), ("assistant", ANSWER, "")] * 2
    assert page.get_by_role("alert").inner_text() == ""


def test_after_a_failure_the_message_is_sent_with_the_same_key(
    page: Page, session: SessionHandle, model: OpenAIServer
) -> None:
    model.queue(Behaviour("unauthorized"), Behaviour("breaks_off", text=ANSWER))
    for _ in range(2):
        ask(page, "What is ownership?")
        expect(page.get_by_role("alert")).to_contain_text("The model did not reply.")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        assert stored(session) == [("user", "What is ownership?", None)]
    ask(page, "What is ownership?")
    shows(page, "What is ownership?", ANSWER)
    assert page.get_by_role("alert").inner_text() == ""
    assert stored(session) == [("user", "What is ownership?", None), ("assistant", ANSWER, "")]


def test_a_reply_can_be_stopped(page: Page, session: SessionHandle, model: OpenAIServer) -> None:
    model.queue(Behaviour(text=ANSWER, pace=0.5))
    ask(page, "What is ownership?")
    page.wait_for_function("document.querySelector('#messages').textContent.includes('says ')")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("alert")).to_have_text("Stopped.")
    processes.wait_until(lambda: len(stored(session)) == 2, "the beginning is stored")
    role, text, cut_off = stored(session)[1]
    assert (role, text.startswith("Ownership says "), ANSWER.startswith(text)) == ("assistant", True, True)
    assert (text != ANSWER, cut_off) == (True, "lost")
    # The user may go on, or have the same message answered.
    page.get_by_role("button", name="Send").click()
    shows(page, "What is ownership?", ANSWER)
    assert stored(session) == [("user", "What is ownership?", None), ("assistant", ANSWER, "")]


def test_what_the_view_refuses_is_shown(page: Page, session: SessionHandle, model: OpenAIServer) -> None:
    ask(page, "word " * 20_000)
    expect(page.get_by_role("alert")).to_contain_text("The question has about")
    page.context.clear_cookies()
    ask(page, "What is ownership?")
    expect(page.get_by_role("alert")).not_to_be_empty()
    assert (stored(session), model.log) == ([], [])


def test_what_people_write_is_no_html(page: Page, model: OpenAIServer) -> None:
    model.default = Behaviour(text="<img src=x onerror=alert(1)>\n\nevent: done data: {}")
    ask(page, "<b>Hi</b>")
    shows(page, "<b>Hi</b>", re.compile("<img src=x .*"))  # type: ignore[arg-type]
    assert page.locator("#messages img, #messages b").count() == 0
