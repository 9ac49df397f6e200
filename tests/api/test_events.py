"""What an event stream says, read a batch at a time from a server without ASGI."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api.views import events
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.testing import ScriptedMemories
from tests.api.conftest import row_of, url_of

Events = list[tuple[str, Any, str]]


def batch(api: APIClient, chat: SessionHandle, last: str = "") -> Events:
    """Return the events since the one with the id ``last``: their names, data and ids."""
    response: Any = api.get(url_of(chat, "events/"), headers={"Last-Event-ID": last} if last else {})
    assert response.status_code == 200, response.content
    retry, *blocks = response.content.decode().removesuffix("\n\n").split("\n\n")
    assert retry == "retry: 5000"
    found = []
    for block in blocks:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        assert list(lines) == ["id", "event", "data"]
        found.append((lines["event"], json.loads(lines["data"]), lines["id"]))
    return found


def now(api: APIClient, chat: SessionHandle) -> str:
    """Return the id of an event after which nothing has happened."""
    [(_, _, last)] = batch(api, chat)
    return last


def test_the_first_event_tells_to_read_the_messages(api: APIClient, chat: SessionHandle) -> None:
    [(name, data, last)] = batch(api, chat)
    assert (name, data) == ("reset", api.get(url_of(chat, "status/")).json())
    assert batch(api, chat, last) == []


def test_caches_and_proxies_keep_nothing(api: APIClient, chat: SessionHandle) -> None:
    response = api.get(url_of(chat, "events/"), headers={"Accept": "text/event-stream"})
    assert response["Content-Type"] == "text/event-stream"
    assert response["X-Accel-Buffering"] == "no"
    assert response["Content-Encoding"] == "identity"  # GZipMiddleware would hold back events.
    assert set(response["Cache-Control"].split(", ")) == {"no-store", "no-transform", "no-cache", "private"}


def test_new_messages_come_once_and_as_the_list_shows_them(api: APIClient, chat: SessionHandle) -> None:
    last = now(api, chat)
    chat.append(ChatMessage.human("Line one\r\nline two\u2028three \U0001f980"), ChatMessage.ai("data: no event\n\n"))
    listed = api.get(url_of(chat, "messages/?after=2")).json()["results"]
    found = batch(api, chat, last)
    assert [(name, data) for name, data, _ in found] == [("message", message) for message in listed]
    assert len(listed) == 2
    # A connection that is lost between two events misses nothing.
    assert batch(api, chat, found[0][2]) == found[1:]
    assert batch(api, chat, found[1][2]) == []


def test_a_fold_is_a_summary_and_states(api: APIClient, chat: SessionHandle, convmemory: ScriptedMemories) -> None:
    last = now(api, chat)
    chat.append(*[ChatMessage.human("word " * 60) for _ in range(6)])
    *messages, (name, status, last) = batch(api, chat, last)
    assert [each[0] for each in messages] == ["message"] * 6
    assert (name, status["state"]) == ("state", "due")
    convmemory.reply("They talked about words.")
    convmemory.run()
    summary, state = batch(api, chat, last)
    assert summary[:2] == ("summary", api.get(url_of(chat, "summaries/1/")).json())
    assert state[:2] == ("state", api.get(url_of(chat, "status/")).json())
    assert state[1]["state"] == "idle"
    assert batch(api, chat, summary[2]) == [state]
    assert batch(api, chat, state[2]) == []


@pytest.mark.parametrize("last", ["x", "1-1-1", "9-0-0-i", f"{'9' * 18}-0-0-i", f"{'9' * 400}-0-0-i", "1-0-0-i\t", "-"])
def test_an_id_of_something_else_tells_to_read_again(last: str, api: APIClient, chat: SessionHandle) -> None:
    assert [name for name, _, _ in batch(api, chat, last)] == ["reset"]


def test_a_long_absence_is_made_up_for_in_portions(api: APIClient, chat: SessionHandle) -> None:
    last = now(api, chat)
    count = events.MAX_MESSAGES + 10
    chat.append(*[ChatMessage.human(str(number)) for number in range(count)])
    first = batch(api, chat, last)
    second = batch(api, chat, first[-1][2])
    positions = [data["position"] for name, data, _ in first + second if name == "message"]
    assert positions == list(range(3, 3 + count))
    assert len(first) <= events.MAX_MESSAGES + 1


def test_messages_of_a_later_epoch_are_left_to_the_reset(chat: SessionHandle) -> None:
    read = models.Session.objects.with_clock().get()
    seen = events.Seen.all_of(read)
    chat.append(ChatMessage.human("A third message."))
    read = models.Session.objects.with_clock().get()
    chat.truncate(2)
    chat.append(ChatMessage.human("Another third message."))
    text, seen = events.news(read, seen)
    assert "third message" not in text
    text, _ = events.news(models.Session.objects.with_clock().get(), seen)
    assert "event: reset" in text


def test_the_head_is_that_of_a_stream(api: APIClient, chat: SessionHandle) -> None:
    head = api.head(url_of(chat, "events/"))
    assert (head.status_code, head["Content-Type"]) == (200, "text/event-stream")
    # It takes no parameters.
    refused = api.get(url_of(chat, "events/?after=1"))
    assert (refused.status_code, refused["Content-Type"]) == (400, "application/problem+json")


class Page:
    """A page that shows a session, and changes what it shows by events."""

    def __init__(self, api: APIClient, chat: SessionHandle) -> None:
        self.api, self.chat = api, chat
        self.messages: list[Any] = []
        self.summary = self.state = self.last = ""

    def stored(self) -> tuple[list[Any], str, str]:
        messages = self.api.get(url_of(self.chat, "messages/?limit=200")).json()["results"]
        summary = self.api.get(url_of(self.chat, "context/")).json()["summary"] or ""
        return messages, summary, self.api.get(url_of(self.chat, "status/")).json()["state"]

    def take(self, name: str, data: Any) -> None:
        if name == "message":
            assert data["position"] == len(self.messages) + 1
            self.messages.append(data)
        elif name == "summary":
            self.summary = data["text"]
        else:
            self.state = data["state"]
        if name == "reset":
            self.messages, self.summary, _ = self.stored()

    def follow(self, most: int) -> bool:
        """Take at most this many events, and return whether there were more: the connection is lost then."""
        found = batch(self.api, self.chat, self.last)
        for name, data, last in found[:most]:
            self.take(name, data)
            self.last = last
        return len(found) > most


# The first ones are chosen more often.
CHANGES = ("appending", "folding", "redacting", "truncating", "clearing")


def change(chat: SessionHandle, convmemory: ScriptedMemories, chance: random.Random) -> None:
    """Change the session in a random way."""
    count = row_of(chat).last_position
    match chance.choice(CHANGES[: chance.randint(1, len(CHANGES))]):
        case "appending":
            chat.append(*[ChatMessage.human("word " * 30) for _ in range(chance.randint(1, 4))])
        case "folding":
            convmemory.reply(*["many words"] * 9)
            convmemory.run()
        case "redacting" if count:
            chat.redact(chance.randint(1, count))
        case "truncating":
            chat.truncate(chance.randint(0, count))
        case "clearing":
            chat.clear()


@pytest.mark.parametrize("seed", range(8))
def test_a_page_shows_what_is_stored(
    seed: int, api: APIClient, chat: SessionHandle, convmemory: ScriptedMemories
) -> None:
    convmemory.allow_unused_replies = True
    chance, page = random.Random(seed), Page(api, chat)
    for _ in range(25):
        change(chat, convmemory, chance)
        if not page.follow(most=chance.choice([0, 1, 2, 100])):
            assert (page.messages, page.summary, page.state) == page.stored()
