"""Streamed replies from real servers, WSGI and ASGI, to readers who read slowly, leave, or stop the reply."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from django_convmemory import models
from django_convmemory.operations import events, streams
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.operations.turns import Turn
from tests import processes
from tests.api.conftest import url_of
from tests.asgi_server import cookie_of, serving

pytestmark = pytest.mark.django_db(transaction=True)

PIECES = 40
PAUSE = 0.05


class Model:
    """What the site's function asks: it says ``PIECES`` words, one after the other, until it is closed."""

    def __init__(self) -> None:
        self.said = 0
        self.closed = threading.Event()
        self.silent = threading.Event()

    def synchronous(self, turn: Turn) -> Iterator[str]:
        try:
            while self.said < PIECES:
                time.sleep(PAUSE)
                if not self.silent.is_set():
                    self.said += 1
                    yield f"word{self.said} "
        finally:
            self.closed.set()

    async def asynchronous(self, turn: Turn) -> AsyncGenerator[str, None]:
        try:
            while self.said < PIECES:
                await asyncio.sleep(PAUSE)
                if not self.silent.is_set():
                    self.said += 1
                    yield f"word{self.said} "
        finally:
            self.closed.set()


models_of_test: list[Model] = []


def ask(turn: Turn) -> Iterator[str]:
    return models_of_test[-1].synchronous(turn)


async def aask(turn: Turn) -> AsyncIterator[str]:
    async with contextlib.aclosing(models_of_test[-1].asynchronous(turn)) as pieces:
        async for piece in pieces:
            yield piece


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving_wsgi() -> Iterator[int]:
    server = ThreadedWSGIServer(("127.0.0.1", 0), QuietHandler)
    server.set_app(get_wsgi_application())
    thread = threading.Thread(target=server.serve_forever, name="wsgi")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(processes.PATIENCE)


SERVERS: dict[str, Callable[[], Any]] = {"asgi": serving, "wsgi": serving_wsgi}


@pytest.fixture(params=[f"{server} {function}" for server in SERVERS for function in ("ask", "aask")])
def port(request: pytest.FixtureRequest, settings: Any) -> Iterator[int]:
    models_of_test[:] = [Model()]
    server, function = request.param.split()
    settings.ALLOWED_HOSTS = ["*"]
    settings.CONVMEMORY_API = {"RESPONDER": f"{__name__}.{function}"}
    with SERVERS[server]() as port:
        yield port


def headers_of(cookie: str) -> dict[str, str]:
    token = "t" * 32
    return {"Cookie": f"{cookie}; csrftoken={token}", "X-CSRFToken": token}


class Event(NamedTuple):
    name: str
    data: Any
    at: float


class Reader:
    """A page that has asked a question, and reads the events of the reply."""

    def __init__(self, port: int, path: str, cookie: str, message_id: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=processes.PATIENCE)
        body = json.dumps({"message": {"content": "Hi", "id": message_id}})
        headers = {
            "Accept": "text/event-stream",
            "Content-Type": "application/json",
            "Connection": "close",
            **headers_of(cookie),
        }
        self.began = time.monotonic()
        self.connection.request("POST", path, body, headers)
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()
        self.comments = 0

    def events(self) -> Iterator[Event]:
        name = ""
        while line := self.response.readline().decode():
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                yield Event(name, json.loads(line.removeprefix("data: ")), time.monotonic() - self.began)
            elif line.startswith(":"):
                self.comments += 1

    def leave(self) -> None:
        self.response.close()
        self.connection.close()


class Page(NamedTuple):
    chat: SessionHandle
    model: Model
    message_id: str
    ask: Callable[[], Reader]
    post: Callable[[str], int]


@pytest.fixture
def page(port: int, anna: User, chat: SessionHandle) -> Iterator[Page]:
    cookie, message_id = cookie_of(anna), str(uuid.uuid4())
    readers: list[Reader] = []

    def ask() -> Reader:
        readers.append(Reader(port, url_of(chat, "turns/"), cookie, message_id))
        return readers[-1]

    def post(path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=processes.PATIENCE)
        headers = {"Content-Type": "application/json", "Connection": "close", **headers_of(cookie)}
        connection.request("POST", url_of(chat, path), "{}", headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status

    yield Page(chat, models_of_test[-1], message_id, ask, post)
    for reader in readers:
        reader.leave()


def reply_of(chat: SessionHandle) -> models.Message | None:
    return models.Message.objects.filter(position=4, session__key=chat.key).first()


def test_pieces_arrive_as_they_are_said(page: Page, record_property: Any) -> None:
    found = []
    for event in page.ask().events():
        found.append(event)
        if len(found) == 5:
            time.sleep(0.5)  # A slow reader loses nothing.
    deltas = [event for event in found if event.name == "delta"]
    assert [event.name for event in found] == ["start", *["delta"] * PIECES, "done"]
    assert "".join(event.data["text"] for event in deltas) == "".join(f"word{n + 1} " for n in range(PIECES))
    # The first piece was there long before the model had said all.
    assert deltas[0].at < found[-1].at - PIECES * PAUSE / 2
    record_property("measured", f"first piece after {deltas[0].at:.2f} s, all after {found[-1].at:.2f} s")
    assert page.model.closed.wait(processes.PATIENCE)
    assert page.chat.history()[-1].cut_off == ""


def test_a_reader_who_leaves_ends_the_models_stream(page: Page, record_property: Any) -> None:
    reader = page.ask()
    pieces = [event for event, _ in zip(reader.events(), range(6), strict=False)]
    assert pieces[-1].name == "delta"
    reader.leave()
    left = time.monotonic()
    assert page.model.closed.wait(processes.PATIENCE)
    record_property("measured", f"the model's stream was closed {time.monotonic() - left:.2f} s after the reader left")
    assert page.model.said < PIECES
    processes.wait_until(lambda: reply_of(page.chat) is not None, "what was said is stored")
    cut_off = page.chat.history()[-1]
    assert cut_off.cut_off == "lost"
    assert cut_off.message.text.startswith("word1 word2 ")
    # The same request asks again, and its reply takes the place of the part.
    page.model.said = 0
    assert [event.name for event in page.ask().events()][-1] == "done"
    assert [(stored.cut_off, len(stored.message.text.split())) for stored in page.chat.history()[2:]] == [
        (None, 1),
        ("", PIECES),
    ]


def test_a_reply_that_is_stopped(page: Page, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.TurnStream, "sign_of_life", 0.1)
    found = page.ask().events()
    assert [next(found).name for _ in range(4)] == ["start", "delta", "delta", "delta"]
    if "asgi aask" in request.node.name:
        # A function that blocks its thread is stopped at its next piece. This one is stopped in the middle of a wait.
        page.model.silent.set()
    assert page.post(f"turns/{page.message_id}/stop/") == 202
    *_, last = found
    assert (last.name, last.data["reply"]["cut_off"]) == ("done", "stopped")
    assert page.model.closed.wait(processes.PATIENCE)
    assert page.model.said < PIECES
    # It stays.
    assert [event.data for event in page.ask().events()][-1]["reply"]["id"] == last.data["reply"]["id"]


def test_a_page_stops_its_own_reply_at_once(page: Page) -> None:
    reader = page.ask()
    for event, _ in zip(reader.events(), range(4), strict=False):
        assert event.name in ("start", "delta")
    assert page.post(f"turns/{page.message_id}/stop/") == 202
    reader.leave()
    processes.wait_until(lambda: reply_of(page.chat) is not None, "what was said is stored")
    assert page.chat.history()[-1].cut_off == "stopped"


def test_silence_under_asgi(page: Page, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments keep proxies from closing the connection, and a reader who leaves meanwhile is noticed."""
    if "wsgi" in request.node.name:
        pytest.skip("A synchronous server sends only what the model says.")
    monkeypatch.setattr(events, "_SILENCE", 0.1)
    reader = page.ask()
    found = reader.events()
    assert [next(found).name for _ in range(3)] == ["start", "delta", "delta"]
    page.model.silent.set()
    for line in iter(reader.response.readline, b""):
        if line.startswith(b":"):
            break
    reader.leave()
    if "aask" in request.node.name:
        assert page.model.closed.wait(processes.PATIENCE)
    page.model.silent.clear()
    processes.wait_until(lambda: reply_of(page.chat) is not None, "what was said is stored")
    assert page.chat.history()[-1].cut_off == "lost"
