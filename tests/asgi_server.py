"""The site of the tests on a real ASGI server, and clients that follow its event streams."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import uvicorn
from django.conf import settings
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.test import Client

from tests.processes import PATIENCE


@contextlib.contextmanager
def serving(application: Any = None) -> Iterator[int]:
    """Serve the site in a thread, on the database of the tests, and yield the port."""
    config = uvicorn.Config(application or get_asgi_application(), port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    ends = time.monotonic() + PATIENCE
    while not server.started:
        assert time.monotonic() < ends, "the server did not start"
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not stop"


def cookie_of(user: User) -> str:
    """Return the header ``Cookie`` of a browser in which the user is logged in."""
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={client.cookies[name].value}"


class Event(NamedTuple):
    name: str
    data: Any
    id: str


class Follower:
    """A client that reads events, as a browser's EventSource does but without connecting again."""

    def __init__(
        self, port: int, path: str, *, last: str | None = None, method: str = "GET", body: str = "", **headers: str
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        self._connection.request(method, path, body or None, headers)
        self.response = self._connection.getresponse()
        self.status = self.response.status
        self.comments = 0
        self.last = last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def next(self) -> Event | None:
        """Wait for the next event. None: the server has ended the stream."""
        fields: dict[str, str] = {}
        while line := self.response.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if line == b"\n" and "data" in fields:
                self.last = fields.get("id", "")
                return Event(fields["event"], json.loads(fields["data"]), self.last)
            if line == b"\n":
                fields.clear()
            elif line.startswith(b":"):
                self.comments += 1
            else:
                assert name not in fields
                fields[name] = value
        return None

    def until(self, name: str) -> Event:
        """Wait for an event of this name."""
        while (event := self.next()) is not None:
            if event.name == name:
                return event
        raise AssertionError(f"the stream ended before an event {name}")

    def rest(self) -> list[Event]:
        """Return the events until the server ends the stream."""
        return list(iter(self.next, None))

    def is_complete(self) -> bool:
        """Wait for the end of the stream, and return whether the server has finished it. It may have broken off."""
        try:
            self.response.read()
        except (http.client.IncompleteRead, ConnectionError):
            return False
        return True
