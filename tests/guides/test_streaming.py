"""The README's view in its streaming form, behind real servers: a reply is streamed, and no word is lost."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import socket
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from django_convmemory.memory import SessionHandle, memories
from django_convmemory.models import Message, Session
from tests import processes
from tests.guides.test_pages import code_of
from tests.openai_server import Behaviour, OpenAIServer
from tests.test_readme import streaming_view

ANSWER = "Ownership says who frees the memory."
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
# It prints when the reply is about to be stored. Of a request to "?stuck", the second word is never sent, as if nobody
# read it.
SITE = """

import asyncio

from django.core.asgi import get_asgi_application
from django.urls import path

finish = Turn._finish


def noted(self, said):
    print("storing the reply", flush=True)
    return finish(self, said)


async def application(scope, receive, send):
    sent = []

    async def stuck(event):
        if len(sent) == 3:  # The headers, the start and a word.
            print("a word waits", flush=True)
            await asyncio.Event().wait()
        sent.append(event)
        await send(event)

    await django(scope, receive, stuck if scope["query_string"] == b"stuck" else send)


urlpatterns = [path("chat/", chat)]
django = get_asgi_application()
Turn._finish = noted
"""
CODE = streaming_view() + SITE
# The same view with the page's asynchronous function.
ASYNCHRONOUS = streaming_view() + "\n\n" + code_of("turns", "async_ask.py") + SITE

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
]


class Site:
    """The view behind a server, on the test database."""

    def __init__(self, folder: pathlib.Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.browsers: list[Browser] = []

    def ask(
        self, text: str = "What is ownership?", *, name: str = "anna", key: str = "key-1", query: str = ""
    ) -> Browser:
        """Send a message as a user who is logged in."""
        user, _ = User.objects.get_or_create(username=name)
        client = Client()
        client.force_login(user)
        browser = Browser(user, self.port)
        self.browsers.append(browser)
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"sessionid={client.cookies['sessionid'].value}",
            "Idempotency-Key": key,
        }
        body = urllib.parse.urlencode({"text": text}).encode()
        browser.connection.request("POST", f"/chat/{query}", body, headers)
        return browser

    def printed(self, text: str) -> int:
        return (self.folder / "output").read_text(encoding="utf-8").count(text)


class Browser:
    """A user's connection, which has sent a message and reads the reply."""

    def __init__(self, user: User, port: int) -> None:
        self.session: SessionHandle = memories["default"].session("main", owner=user)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=processes.PATIENCE)
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        self._response = self._response or self.connection.getresponse()
        return self._response

    def next(self) -> tuple[str, Any] | None:
        """Wait for the next event, and return its name and data, or None at the end."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if fields and not name:
                return fields["event"], json.loads(fields["data"])
            if name:
                fields[name] = value
        return None

    def text(self, words: int) -> str:
        """Read so many words."""
        text = ""
        while text.count(" ") < words and (event := self.next()):
            text += event[1]["text"] if event[0] == "delta" else ""
        return text

    def events(self) -> list[tuple[str, Any]]:
        """Read to the end."""
        return list(iter(self.next, None))

    def leave(self) -> None:
        if self._response is not None:
            self._response.close()
        self.connection.close()

    def stored(self) -> list[tuple[str, str, str | None]]:
        return [(row.message.role, row.message.text, row.cut_off) for row in self.session.history()]

    def reply(self) -> tuple[str, str, str | None]:
        """Wait for the stored reply."""
        processes.wait_until(lambda: len(self.stored()) == 2, "the reply is stored")
        return self.stored()[1]


@contextlib.contextmanager
def served(folder: pathlib.Path, code: str, protocol: str) -> Iterator[Site]:
    (folder / "streaming_site.py").write_text(code, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = {
        "asgi": ("uvicorn", "streaming_site:application", "--lifespan", "off", "--port", str(port)),
        "wsgi": ("django", "runserver", "--noreload", str(port)),
    }
    process = processes.start(
        folder,
        *commands[protocol],
        ROOT_URLCONF="streaming_site",
        MIDDLEWARE=MIDDLEWARE,
        ALLOWED_HOSTS=["127.0.0.1"],
        CONVMEMORY={"default": {"OPTIONS": {"max_token_limit": 2000}}},
        SILENCED_SYSTEM_CHECKS=["admin.E408", "admin.E409", "admin.E410"],
    )
    site = Site(folder, port)
    try:
        processes.wait_until(lambda: answers(process, port), "the site is served")
        yield site
    finally:
        for browser in site.browsers:
            browser.leave()
        processes.stop(process)


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


Serve = Callable[..., Site]


@pytest.fixture
def serve(model: OpenAIServer, tmp_path: pathlib.Path) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda protocol="asgi", code=CODE: stack.enter_context(served(tmp_path, code, protocol))


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve()


QUESTION = ("user", "What is ownership?", None)


@pytest.mark.parametrize("protocol", ["asgi", "wsgi"])
@pytest.mark.parametrize("code", [CODE, ASYNCHRONOUS], ids=["function", "async function"])
def test_a_reply_is_streamed_and_stored(serve: Serve, code: str, protocol: str, model: OpenAIServer) -> None:
    site = serve(protocol, code)
    model.default = Behaviour(text=ANSWER, pace=0.3)
    browser = site.ask()
    assert browser.text(1) == "Ownership "
    assert model.log[0].finished is None  # The model is still speaking.
    *deltas, (name, done) = browser.events()
    assert "".join(event["text"] for _, event in deltas) == ANSWER.removeprefix("Ownership ")
    # It is stored before the browser sees the end.
    assert (name, browser.stored()) == ("done", [QUESTION, ("assistant", ANSWER, "")])
    assert done["reply"]["id"] == str(browser.session.history()[1].id)

    # A retry gets the stored reply.
    assert [name for name, _ in site.ask().events()] == ["start", "delta", "done"]
    assert len(model.log) == 1

    # A model that fails in the middle: the same key asks again.
    model.queue(Behaviour("breaks_off", text=ANSWER))
    failing = site.ask("And lifetimes?", key="key-2")
    name, problem = failing.events()[-1]
    assert (name, problem["retryable"], len(failing.stored())) == ("error", True, 3)
    assert site.ask("And lifetimes?", key="key-2").events()[-1][0] == "done"

    # The browser disconnects between two words: the same key asks again, and replaces what was said.
    leaving = site.ask("And borrowing?", key="key-3")
    leaving.text(2)
    leaving.leave()
    processes.wait_until(lambda: len(leaving.stored()) == 6, "the reply is stored")
    role, text, cut_off = leaving.stored()[5]
    assert (role, text.startswith("Ownership says "), ANSWER.startswith(text)) == ("assistant", True, True)
    assert cut_off == "lost"
    assert site.ask("And borrowing?", key="key-3").events()[-1][0] == "done"
    assert leaving.stored()[4:] == [("user", "And borrowing?", None), ("assistant", ANSWER, "")]


def test_what_cannot_be_asked_has_a_status(site: Site, model: OpenAIServer) -> None:
    requests = [site.ask(" "), site.ask(key=""), site.ask("word " * 40_000)]
    assert [browser.response.status for browser in requests] == [400, 400, 413]
    assert not model.log
    site.ask().events()
    assert site.ask("Something else").response.status == 422
    browser = site.ask()
    assert (browser.response.status, browser.response.headers["Content-Type"]) == (200, "text/event-stream")


# The browser disconnects …


def test_while_a_word_waits_to_be_sent(site: Site) -> None:
    browser = site.ask(query="?stuck")
    browser.text(1)
    processes.wait_until(lambda: site.printed("a word waits") == 1, "a word waits to be sent")

    browser.leave()

    role, text, cut_off = browser.reply()
    assert (role, text.startswith("Ownership says "), cut_off) == ("assistant", True, "lost")


def test_right_after_the_last_word(site: Site, model: OpenAIServer) -> None:
    model.default = Behaviour(text=ANSWER, pace=0)
    for number in range(20):
        browser = site.ask(name=f"user {number}")
        assert browser.text(5) == ANSWER.removesuffix("memory.")
        browser.next()

        browser.leave()

        role, text, cut_off = browser.reply()
        assert (role, text, cut_off in ("", "lost")) == ("assistant", ANSWER, True)


def test_while_the_reply_is_stored(site: Site) -> None:
    browser = site.ask()
    browser.text(1)
    with transaction.atomic():
        Session.objects.select_for_update().get()
        Session.objects.update(title="locked")  # Storing the reply waits until this transaction ends.
        browser.text(4)
        browser.next()
        processes.wait_until(lambda: site.printed("storing the reply") == 1, "the reply is about to be stored")
        browser.leave()

    assert browser.reply() == ("assistant", ANSWER, "")
    assert Message.objects.get(role="assistant").reply_to == 1
