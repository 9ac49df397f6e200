"""The README's view in its streaming form, behind a real server: whenever the browser leaves, no word is lost.

``tests/api/test_turn_streams.py`` has the other servers and functions, and ``test_chat_page.py`` a page for the view.
"""

from __future__ import annotations

import asyncio
import threading
import types
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.db import transaction
from django.urls import path

from django_convmemory.memory import SessionHandle, memories
from django_convmemory.models import Message, Session
from django_convmemory.operations.turns import Turn
from tests import asgi_server, processes
from tests.asgi_server import Follower
from tests.guides.conftest import ANSWER, stored
from tests.openai_server import Behaviour, OpenAIServer
from tests.test_readme import streaming_view

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

Ask = Callable[..., Follower]
# Of a request to "?stuck", the second word is never sent, as if nobody read it.
a_word_waits = threading.Event()


def application() -> Any:
    django = get_asgi_application()

    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        sent: list[Any] = []

        async def send_some(event: Any) -> None:
            if len(sent) == 3:  # The headers, the start and a word.
                a_word_waits.set()
                await asyncio.Event().wait()
            sent.append(event)
            await send(event)

        await django(scope, receive, send_some if scope["query_string"] == b"stuck" else send)

    return stuck


@pytest.fixture
def ask(settings: Any, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Serve the view, and return a function that sends a message as a user who is logged in."""
    views: dict[str, Any] = {"__name__": "views"}
    exec(streaming_view(), views)  # noqa: S102
    urls: Any = types.ModuleType("urls")
    urls.urlpatterns = [path("chat/", views["chat"])]
    settings.ROOT_URLCONF, settings.ALLOWED_HOSTS = urls, ["127.0.0.1"]
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "Csrf" not in name]
    settings.CONVMEMORY = {"default": {"OPTIONS": {"max_token_limit": 2000}}}
    opened: list[Follower] = []

    def send(text: str = "What is ownership?", *, name: str = "ann", key: str = "key-1", query: str = "") -> Follower:
        user, _ = User.objects.get_or_create(username=name)
        headers = {"Cookie": asgi_server.cookie_of(user), "Idempotency-Key": key}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        body = urllib.parse.urlencode({"text": text})
        opened.append(Follower(port, f"/chat/{query}", method="POST", body=body, **headers))
        return opened[-1]

    with asgi_server.serving(application()) as port:
        yield send
        for follower in opened:
            follower.close()


def words(browser: Follower, count: int) -> str:
    """Read so many words of the reply."""
    text = ""
    while text.count(" ") < count and (event := browser.next()):
        text += event.data["text"] if event.name == "delta" else ""
    return text


def session_of(name: str = "ann") -> SessionHandle:
    return memories["default"].session("main", owner=User.objects.get(username=name))


def reply(name: str = "ann") -> tuple[str, str, str | None]:
    """Wait for the stored reply."""
    session = session_of(name)
    processes.wait_until(lambda: len(stored(session)) == 2, "the reply is stored")
    return stored(session)[1]


def test_a_reply_is_streamed_and_stored_and_a_retry_gets_it(ask: Ask, model: OpenAIServer) -> None:
    model.default = Behaviour(text=ANSWER, pace=0.3)
    browser = ask()
    assert words(browser, 1) == "Ownership "
    assert model.log[0].finished is None  # The model is still speaking.
    *deltas, done = browser.rest()
    assert "".join(event.data["text"] for event in deltas) == ANSWER.removeprefix("Ownership ")
    # It is stored before the browser sees the end.
    assert (done.name, stored(session_of())[1:]) == ("done", [("assistant", ANSWER, "")])
    assert [event.name for event in ask().rest()] == ["start", "delta", "done"]
    assert len(model.log) == 1


def test_what_cannot_be_asked_has_a_status(ask: Ask, model: OpenAIServer) -> None:
    assert [browser.status for browser in (ask(" "), ask(key=""), ask("word " * 40_000))] == [400, 400, 413]
    assert not model.log
    ask().rest()
    assert ask("Something else").status == 422


# The browser disconnects …


def test_while_a_word_waits_to_be_sent(ask: Ask) -> None:
    a_word_waits.clear()
    browser = ask(query="?stuck")
    words(browser, 1)
    assert a_word_waits.wait(processes.PATIENCE)

    browser.close()

    role, text, cut_off = reply()
    assert (role, text.startswith("Ownership says "), cut_off) == ("assistant", True, "lost")


def test_right_after_the_last_word(ask: Ask, model: OpenAIServer) -> None:
    model.default = Behaviour(text=ANSWER, pace=0)
    for number in range(20):
        browser = ask(name=f"user {number}")
        assert words(browser, 5) == ANSWER.removesuffix("memory.")
        browser.next()

        browser.close()

        role, text, cut_off = reply(f"user {number}")
        assert (role, text, cut_off in ("", "lost")) == ("assistant", ANSWER, True)


def test_while_the_reply_is_stored(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    storing, finish = threading.Event(), Turn._finish

    def noted(turn: Turn, said: Any) -> None:
        storing.set()
        finish(turn, said)

    monkeypatch.setattr(Turn, "_finish", noted)
    browser = ask()
    words(browser, 1)
    with transaction.atomic():
        Session.objects.select_for_update().get()
        Session.objects.update(title="locked")  # Storing the reply waits until this transaction ends.
        words(browser, 4)
        browser.next()
        assert storing.wait(processes.PATIENCE)
        browser.close()

    assert reply() == ("assistant", ANSWER, "")
    assert Message.objects.get(role="assistant").reply_to == 1
