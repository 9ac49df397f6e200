"""The view of docs/howto/streaming.md, served by an ASGI server: whenever the browser leaves, no word is lost."""

from __future__ import annotations

import contextlib
import http.client
import pathlib
import re
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from django_convmemory.memory import memories
from django_convmemory.models import Message, Session
from tests import processes
from tests.howto.test_pages import PAGES
from tests.openai_server import Behaviour, OpenAIServer

[CODE] = re.findall(r"```python\n(.*?)```", PAGES["streaming"], re.DOTALL)
ANSWER = "Ownership says who frees the memory."
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
# It prints when an append begins. Of a request to "?stuck", the second word is never sent, as if nobody read it.
SITE = """

import asyncio

from django.core.asgi import get_asgi_application
from django.urls import path

from django_convmemory.operations.handles import ConversationMemory

append = ConversationMemory.append


def noted(self, session, *messages, **arguments):
    print(f"appending {messages[0].role}", flush=True)
    return append(self, session, *messages, **arguments)


async def application(scope, receive, send):
    sent = []

    async def stuck(event):
        if len(sent) == 2:  # The headers and a word.
            print("a word waits", flush=True)
            await asyncio.Event().wait()
        sent.append(event)
        await send(event)

    await django(scope, receive, stuck if scope["query_string"] == b"stuck" else send)


urlpatterns = [path("chat/", chat)]
django = get_asgi_application()
ConversationMemory.append = noted
"""

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


class Site:
    """The page's view behind uvicorn, on the test database."""

    def __init__(self, folder: pathlib.Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.browsers: list[Browser] = []

    def ask(self, text: str = "What is ownership?", *, name: str = "anna", query: str = "") -> Browser:
        """Send a message as a user who is logged in."""
        user, _ = User.objects.get_or_create(username=name)
        client = Client()
        client.force_login(user)
        browser = Browser(user, self.port)
        self.browsers.append(browser)
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"sessionid={client.cookies['sessionid'].value}",
        }
        browser.connection.request("POST", f"/chat/{query}", f"text={text}".encode(), headers)
        return browser

    def printed(self, text: str) -> int:
        return (self.folder / "output").read_text(encoding="utf-8").count(text)


class Browser:
    """A user's connection, which has sent a message and reads the reply."""

    def __init__(self, user: User, port: int) -> None:
        self.user = user
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=processes.PATIENCE)
        self.response: http.client.HTTPResponse | None = None

    def read(self, characters: int | None = None) -> str:
        """Read so many characters, or to the end."""
        self.response = self.response or self.connection.getresponse()
        return self.response.read(characters).decode()

    def leave(self) -> None:
        if self.response is not None:
            self.response.close()
        self.connection.close()

    def stored(self) -> list[tuple[str, str, dict[str, Any]]]:
        rows = memories["default"].session("main", owner=self.user).history()
        return [(row.message.role, row.message.text, dict(row.message.metadata)) for row in rows]

    def reply(self) -> tuple[str, str, dict[str, Any]]:
        """Wait for the stored reply."""
        processes.wait_until(lambda: len(self.stored()) == 2, "the reply is stored")
        return self.stored()[1]


@pytest.fixture
def site(model: OpenAIServer, tmp_path: pathlib.Path) -> Iterator[Site]:
    (tmp_path / "streaming_site.py").write_text(CODE + SITE, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = processes.start(
        tmp_path,
        *("uvicorn", "streaming_site:application", "--lifespan", "off", "--port", str(port)),
        ROOT_URLCONF="streaming_site",
        MIDDLEWARE=MIDDLEWARE,
        ALLOWED_HOSTS=["127.0.0.1"],
        CONVMEMORY={"default": {"OPTIONS": {"max_token_limit": 10**9, "max_message_bytes": 2**30}}},
    )
    try:
        processes.wait_until(lambda: answers(process, port), "the site is served")
        served = Site(tmp_path, port)
        yield served
        for browser in served.browsers:
            browser.leave()
    finally:
        processes.stop(process)


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


QUESTION: tuple[str, str, dict[str, Any]] = ("user", "What is ownership?", {})


def test_a_reply_is_streamed_and_stored_with_what_it_took(site: Site) -> None:
    browser = site.ask()

    assert browser.read() == ANSWER
    # It is stored before the browser sees the end.
    assert browser.stored() == [QUESTION, ("assistant", ANSWER, {})]
    assert Message.objects.get(role="assistant").usage["completion_tokens"] > 0


def test_an_empty_text_is_refused(site: Site, model: OpenAIServer) -> None:
    browser = site.ask(" ")

    assert browser.read() == "Send a text."
    assert browser.stored() == []
    assert not model.log


def test_a_model_that_fails_loses_nothing(site: Site, model: OpenAIServer) -> None:
    model.queue(Behaviour("breaks_off", text=ANSWER))
    browser = site.ask()

    with pytest.raises((http.client.HTTPException, ConnectionError)):
        browser.read()
    assert browser.stored() == [QUESTION]


# The browser disconnects …


def test_before_the_first_word(site: Site, model: OpenAIServer) -> None:
    model.queue(Behaviour("hang"))
    browser = site.ask()
    assert model.wait_for(lambda log: len(log) == 1)

    browser.leave()

    # The view stops waiting for the model.
    assert model.wait_for(lambda log: log[0].aborted)
    assert browser.stored() == [QUESTION]


def test_between_two_words(site: Site, model: OpenAIServer) -> None:
    model.queue(Behaviour(text=ANSWER, pace=0.2))
    browser = site.ask()
    read = browser.read(len("Ownership "))

    browser.leave()

    role, text, metadata = browser.reply()
    assert read == "Ownership "
    assert (role, metadata) == ("assistant", {"partial": True})
    assert text.startswith(read)
    assert ANSWER.startswith(text)


def test_while_a_word_waits_to_be_sent(site: Site) -> None:
    browser = site.ask(query="?stuck")
    browser.read(1)
    processes.wait_until(lambda: site.printed("a word waits") == 1, "a word waits to be sent")

    browser.leave()

    assert browser.reply() == ("assistant", "Ownership says ", {"partial": True})


def test_right_after_the_last_word(site: Site, model: OpenAIServer) -> None:
    model.default = Behaviour(text=ANSWER, pace=0)
    for number in range(20):
        browser = site.ask(name=f"user {number}")
        assert browser.read(len(ANSWER)) == ANSWER

        browser.leave()

        role, text, metadata = browser.reply()
        assert (role, text) == ("assistant", ANSWER)
        assert metadata in ({}, {"partial": True})


def test_during_the_append(site: Site, model: OpenAIServer) -> None:
    browser = site.ask()
    browser.read(1)
    with transaction.atomic():
        Session.objects.select_for_update().get()
        Session.objects.update(title="locked")  # The append of the reply waits until this transaction ends.
        browser.read(len(ANSWER) - 1)
        processes.wait_until(lambda: site.printed("appending assistant") == 1, "the append has begun")
        browser.leave()

    assert browser.reply() == ("assistant", ANSWER, {})
    assert Message.objects.get(role="assistant").usage["completion_tokens"] > 0
