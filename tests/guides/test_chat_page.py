"""The page of docs/start/turns.md in a browser, with its views and the README's function in its streaming form."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import path
from playwright.sync_api import Browser, Page, expect

from django_convmemory.memory import SessionHandle
from django_convmemory.messages import ChatMessage
from tests import asgi_server, processes
from tests.browser import browser
from tests.guides.conftest import ANSWER, stored
from tests.guides.test_pages import PAGES, install, module_of
from tests.openai_server import Behaviour, OpenAIServer
from tests.test_readme import streaming_view

__all__ = ["browser"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
]
[HTML] = re.findall(r"```html\n(.*?)```", PAGES["turns"], re.DOTALL)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The views of the page."""
    views: dict[str, Any] = {"__name__": "views"}
    exec(streaming_view(), views)  # noqa: S102
    install(monkeypatch, "mysite.views", views)
    return module_of("turns", "pages.py")


@pytest.fixture
def page(settings: Any, pages: dict[str, Any], ann: User, model: OpenAIServer, browser: Browser) -> Iterator[Page]:
    """The page in the browser of a user who is logged in. An error in its script fails the test."""
    loaders = [("django.template.loaders.locmem.Loader", {"plain_chat.html": HTML})]
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}
    urls: Any = types.ModuleType("urls")
    routes = re.findall(r'`(path\("plain-chat.*?\))`', PAGES["turns"])
    urls.urlpatterns = [eval(route, {"path": path, "pages": types.SimpleNamespace(**pages)}) for route in routes]  # noqa: S307
    settings.TEMPLATES, settings.ROOT_URLCONF, settings.ALLOWED_HOSTS = [engine], urls, ["127.0.0.1"]
    settings.CONVMEMORY = {"default": {"OPTIONS": {"max_token_limit": 2000}}}
    client = Client()
    client.force_login(ann)
    with asgi_server.serving() as port:
        context = browser.new_context()
        context.set_default_timeout(processes.PATIENCE * 1000)
        url = f"http://127.0.0.1:{port}/plain-chat/"
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": url}])
        shown, wrong = context.new_page(), []
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.goto(url)
        yield shown
        context.close()
        assert wrong == []


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def shows(page: Page, *texts: str) -> None:
    """Wait until the page shows the texts, and the reply is stored. Its last piece is shown before."""
    expect(page.locator("#messages p")).to_have_text(list(texts), timeout=processes.PATIENCE * 1000)
    expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=processes.PATIENCE * 1000)


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


@pytest.mark.parametrize("leaves", [False, True], ids=["stopped", "closed"])
def test_a_reply_that_was_cut_off_can_be_answered_again(
    leaves: bool, page: Page, session: SessionHandle, model: OpenAIServer
) -> None:
    model.queue(Behaviour(text="Tea.", pace=0), Behaviour(text=ANSWER, pace=0.5))
    ask(page, "What do you drink?")
    shows(page, "What do you drink?", "Tea.")
    ask(page, "What is ownership?")
    page.wait_for_function("document.querySelector('#messages').textContent.includes('says ')")
    if leaves:
        page.reload()
    else:
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=processes.PATIENCE * 1000)
        assert page.get_by_role("alert").inner_text() == ""
    processes.wait_until(lambda: len(stored(session)) == 4, "the beginning is stored")
    role, text, cut_off = stored(session)[3]
    assert (role, text.startswith("Ownership says "), ANSWER.startswith(text)) == ("assistant", True, True)
    assert (text != ANSWER, cut_off) == (True, "lost" if leaves else "stopped")
    page.reload()
    shows(page, "What do you drink?", "Tea.", "What is ownership?", text.strip())
    page.get_by_role("button", name="Answer again").click()
    shows(page, "What do you drink?", "Tea.", "What is ownership?", ANSWER)
    assert stored(session)[2:] == [("user", "What is ownership?", None), ("assistant", ANSWER, "")]


def test_after_a_reload_only_what_people_and_the_model_said_is_shown(page: Page, session: SessionHandle) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    session.append(ChatMessage.system("Be kind."), ChatMessage.human("<b>Find it.</b>"))
    session.append(ChatMessage.ai(None, tool_calls=[call]), ChatMessage.tool("a secret", "c"), ChatMessage.ai("There."))
    page.reload()
    shows(page, "<b>Find it.</b>", "There.")


def test_what_the_view_refuses_is_shown(page: Page, session: SessionHandle, model: OpenAIServer) -> None:
    ask(page, "word " * 20_000)
    expect(page.get_by_role("alert")).to_contain_text("The question has about")
    assert (stored(session), model.log) == ([], [])


@pytest.mark.parametrize("cookie", ["sessionid", "csrftoken"])
def test_after_a_logout_the_page_asks_to_be_loaded_again(
    cookie: str, page: Page, session: SessionHandle, model: OpenAIServer
) -> None:
    page.context.clear_cookies(name=cookie)
    ask(page, "What is ownership?")
    expect(page.get_by_role("alert")).to_have_text("Please reload the page.")
    assert (stored(session), model.log) == ([], [])


def test_the_view_edits_and_refuses_what_is_no_id(pages: dict[str, Any], session: SessionHandle, ann: User) -> None:
    session.append(ChatMessage.human("What is Rust?"), ChatMessage.ai("A language."))

    def send(**fields: Any) -> tuple[int, str]:
        request = RequestFactory().post("/plain-chat/turn/", fields, headers={"Idempotency-Key": str(fields)})
        request.user = ann
        response = pages["turn"](request)
        return response.status_code, b"".join(response).decode()

    pages["ask"] = lambda turn: iter(["Iron oxide."])
    status, refused = send(text="And in chemistry?", edit="1")
    assert (status, "edit takes a stored message or its id" in refused) == (400, True)
    assert send(stop="1")[0] == send(again="1")[0] == send(text="")[0] == 400
    edited = send(text="And in chemistry?", edit=str(session.history()[0].id))
    assert (edited[0], "event: done" in edited[1]) == (200, True)
    assert stored(session) == [("user", "And in chemistry?", None), ("assistant", "Iron oxide.", "")]
    assert send(stop=str(session.history()[0].id)) == (200, '{"stopped": false}')


def test_what_people_write_is_no_html(page: Page, model: OpenAIServer) -> None:
    model.default = Behaviour(text="<img src=x onerror=alert(1)>\n\nevent: done data: {}")
    ask(page, "<b>Hi</b>")
    shows(page, "<b>Hi</b>", re.compile("<img src=x .*"))  # type: ignore[arg-type]
    assert page.locator("#messages img, #messages b").count() == 0
