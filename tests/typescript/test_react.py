"""The chat page of docs/start/react.md compiles, and works in a browser with a responder behind it."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import shlex
import types
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.templatetags.static import static
from django.test import Client
from django.urls import include, path
from django.views.generic import TemplateView
from playwright.sync_api import expect

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.operations.turns import Turn
from tests import asgi_server, processes
from tests.browser import browser
from tests.typescript import compiler

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

TEXT = (processes.ROOT / "docs/start/react.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.*)", compiler.code_of(TEXT, "console"), re.MULTILINE)
MILLISECONDS = processes.PATIENCE * 1000


class Speech:
    """What the responder says: words, one in ``pace`` seconds. Then it raises ``error``."""

    words = "Take the slow train."
    pace = 0.01
    error: Exception | None = None


async def ask(turn: Turn) -> AsyncIterator[str]:
    """The site's function."""
    for word in Speech.words.split():
        yield f"{word} "
        await asyncio.sleep(Speech.pace)
    if Speech.error:
        raise Speech.error


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bundle, made by the commands of the page."""
    folder = tmp_path_factory.mktemp("react")
    (folder / "openapi.yaml").symlink_to(processes.ROOT / "django_convmemory/api/openapi.yaml")
    (folder / "node_modules").symlink_to(compiler.PROGRAMS.parent)
    (folder / "chat.tsx").write_text(compiler.code_of(TEXT, "tsx"), encoding="utf-8")
    for npx, program, *arguments in map(shlex.split, COMMANDS[2:]):
        assert npx == "npx"
        strict = ["--noUnusedLocals"] if program == "tsc" else []
        compiler.run(program, *strict, *arguments, folder=folder)
    return (folder / "chat.js").read_text(encoding="utf-8")


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def session(ann: User) -> SessionHandle:
    """A conversation with a question and a reply."""
    handle = memories["default"].session("main", owner=ann)
    handle.append(ChatMessage.human("Where do we go?"), ChatMessage.ai("To Porto."))
    return handle


@pytest.fixture
def page(settings: Any, monkeypatch: pytest.MonkeyPatch, ann: User, browser: Browser, script: str) -> Iterator[Page]:
    """A window of a user who is logged in. An error in the script fails the test."""
    for name, value in {"words": "Take the slow train.", "pace": 0.01, "error": None}.items():
        monkeypatch.setattr(Speech, name, value)
    loaders = [("django.template.loaders.locmem.Loader", {"react_chat.html": compiler.code_of(TEXT, "html")})]
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}
    urls: Any = types.ModuleType("urls")
    urls.urlpatterns = [
        path("api/memory/", include("django_convmemory.api.urls")),
        path("react-chat/", login_required(TemplateView.as_view(template_name="react_chat.html"))),
    ]
    settings.TEMPLATES, settings.ROOT_URLCONF, settings.ALLOWED_HOSTS = [engine], urls, ["127.0.0.1"]
    settings.CONVMEMORY_API = {"RESPONDER": f"{__name__}.ask"}
    client = Client()
    client.force_login(ann)
    with asgi_server.serving() as port:
        site = f"http://127.0.0.1:{port}"
        context = browser.new_context()
        context.set_default_timeout(MILLISECONDS)
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site}])
        context.route(
            f"{site}{static('chat.js')}", lambda route: route.fulfill(content_type="text/javascript", body=script)
        )
        window, wrong = context.new_page(), []
        window.on("pageerror", lambda error: wrong.append(str(error)))
        window.chat = f"{site}/react-chat/"  # type: ignore[attr-defined]
        yield window
        context.close()
        assert wrong == []


def show(page: Page) -> None:
    page.goto(page.chat)  # type: ignore[attr-defined]
    expect(button(page, "Send")).to_be_enabled(timeout=MILLISECONDS)


def button(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=name)


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    button(page, "Send").click()


def shows(page: Page, *texts: str) -> None:
    """Wait until the page shows exactly these messages, and is ready for the next one."""
    expect(page.locator("li p")).to_have_text(list(texts), timeout=MILLISECONDS)
    expect(button(page, "Send")).to_be_enabled(timeout=MILLISECONDS)


def stored(session: SessionHandle) -> list[tuple[str, str | None]]:
    return [(row.message.text.strip(), row.cut_off) for row in session.history()]


def waits_for_a_word(page: Page, word: str) -> None:
    expect(page.locator("li p").last).to_contain_text(word, timeout=MILLISECONDS)


def test_the_packages_of_the_page_are_those_that_compile_it_here() -> None:
    pinned = json.loads((pathlib.Path(compiler.__file__).parent / "package.json").read_text())["devDependencies"]
    named = [word for command in COMMANDS[:2] for word in command.split()[2:] if word != "--save-dev"]
    # esbuild has no major version yet.
    majors = {f"{name}@{version.partition('.')[0]}".removesuffix("@0") for name, version in pinned.items()}
    assert set(named) == majors - {"openai@6", "@ag-ui/client@1", "ai-7@npm:ai@7"}  # Other tests use these.


def test_a_reply_streams_and_stays_after_a_reload(page: Page, ann: User) -> None:
    show(page)
    Speech.pace = 0.5
    send(page, "How do we <b>travel</b>?")
    waits_for_a_word(page, "Take")
    expect(page.locator("li p").last).not_to_contain_text("train")
    expect(button(page, "Send")).to_be_disabled()
    shows(page, "How do we <b>travel</b>?", "Take the slow train.")
    [row] = Session.objects.all()
    assert row.owner == ann
    page.reload()
    shows(page, "How do we <b>travel</b>?", "Take the slow train.")
    Speech.pace = 0.01
    send(page, "And then?")
    shows(page, *["How do we <b>travel</b>?", "Take the slow train.", "And then?", "Take the slow train."])
    assert Session.objects.count() == 1


def test_stop_keeps_what_was_said(page: Page, session: SessionHandle) -> None:
    show(page)
    Speech.words, Speech.pace = "one two three " + "more " * 100, 0.3
    send(page, "Count.")
    waits_for_a_word(page, "two")
    button(page, "Stop").click()
    expect(button(page, "Send")).to_be_enabled(timeout=MILLISECONDS)
    [*_, (question, _), (reply, cut_off)] = stored(session)
    assert (question, cut_off) == ("Count.", "stopped")
    assert reply.startswith("one two")
    assert "more " * 50 not in reply
    shows(page, "Where do we go?", "To Porto.", "Count.", reply)
    page.reload()
    shows(page, "Where do we go?", "To Porto.", "Count.", reply)


def test_a_question_is_edited_and_answered_again(page: Page, session: SessionHandle) -> None:
    show(page)
    page.once("dialog", lambda dialog: dialog.accept("And by bike?"))
    button(page, "Edit").click()
    shows(page, "And by bike?", "Take the slow train.")
    Speech.words = "Take two bikes."
    button(page, "Answer again").click()
    shows(page, "And by bike?", "Take two bikes.")
    assert stored(session) == [("And by bike?", None), ("Take two bikes.", "")]
    # Who cancels an edit changes nothing.
    page.once("dialog", lambda dialog: dialog.dismiss())
    button(page, "Edit").click()
    shows(page, "And by bike?", "Take two bikes.")
    page.reload()
    shows(page, "And by bike?", "Take two bikes.")


def test_after_an_error_the_same_request_is_sent_again(page: Page, session: SessionHandle) -> None:
    show(page)
    page.once("dialog", lambda dialog: dialog.accept("And by bike?"))
    Speech.error = ZeroDivisionError("a secret")
    button(page, "Edit").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The model did not reply.", timeout=MILLISECONDS)
    expect(button(page, "Send")).to_be_disabled()
    Speech.error = None
    button(page, "Try again").click()
    shows(page, "And by bike?", "Take the slow train.")
    expect(alert).to_have_text("")
    assert stored(session) == [("And by bike?", None), ("Take the slow train.", "")]


def test_a_lost_connection_stores_the_question_once(page: Page, session: SessionHandle) -> None:
    show(page)
    page.route("**/turns/", lambda route: route.abort())
    send(page, "And by bike?")
    page.get_by_role("alert").wait_for()
    page.unroute("**/turns/")
    button(page, "Try again").click()
    shows(page, "Where do we go?", "To Porto.", "And by bike?", "Take the slow train.")
    assert len(stored(session)) == 4


def test_an_edit_of_what_has_changed_is_refused(page: Page, session: SessionHandle) -> None:
    show(page)
    session.append(ChatMessage.human("And the wind?"))
    page.once("dialog", lambda dialog: dialog.accept("And by bike?"))
    button(page, "Edit").click()
    expect(page.get_by_role("alert")).to_contain_text("changed", timeout=MILLISECONDS)
    button(page, "Show what is stored").click()
    shows(page, "Where do we go?", "To Porto.", "And the wind?")
    # A question that was stored without a reply gets one.
    button(page, "Answer again").last.click()
    shows(page, "Where do we go?", "To Porto.", "And the wind?", "Take the slow train.")


def test_a_reload_finds_the_reply_that_is_being_written(page: Page, session: SessionHandle) -> None:
    show(page)
    Speech.words, Speech.pace = "one two three " + "more " * 100, 0.3
    send(page, "Count.")
    waits_for_a_word(page, "two")
    other = page.context.new_page()
    other.goto(page.chat)  # type: ignore[attr-defined]
    expect(other.locator("li p").last).to_have_text("Count.", timeout=MILLISECONDS)
    expect(button(other, "Send")).to_be_disabled()
    # It can also stop the reply.
    button(other, "Stop").click()
    expect(button(other, "Send")).to_be_enabled(timeout=MILLISECONDS)
    expect(button(page, "Send")).to_be_enabled(timeout=MILLISECONDS)
    [*_, (reply, cut_off)] = stored(session)
    assert cut_off == "stopped"
    for window in (page, other):
        shows(window, "Where do we go?", "To Porto.", "Count.", reply)
