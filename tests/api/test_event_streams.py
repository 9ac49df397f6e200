"""Event streams from a real ASGI server, with clients that follow them."""

from __future__ import annotations

import functools
import pathlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as SiteSession
from django.db import OperationalError, connection
from pytest_django import DjangoAssertNumQueries

from django_convmemory import models
from django_convmemory.api.views import events
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from tests import processes
from tests.api.conftest import row_of, url_of
from tests.asgi_server import Follower, cookie_of, serving
from tests.test_changes_at_once import InThread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look and check ten times as often as a site does."""
    monkeypatch.setattr(events, "POLL", 0.1)
    monkeypatch.setattr(events, "CHECK", 0.5)


@pytest.fixture
def port(settings: Any) -> Iterator[int]:
    settings.ALLOWED_HOSTS = ["*"]
    with serving() as port:
        yield port


@pytest.fixture
def follow(port: int, anna: User, chat: SessionHandle) -> Iterator[Callable[..., Follower]]:
    """Open a stream of the conversation: as anna, unless a cookie says otherwise."""
    opened = []

    def open_stream(**options: Any) -> Follower:
        opened.append(Follower(port, url_of(chat, "events/"), **{"cookie": cookie_of(anna)} | options))
        return opened[-1]

    yield open_stream
    for follower in opened:
        follower.close()
    processes.wait_until(lambda: not list(events._open), "all streams are closed")


def say(chat: SessionHandle, text: str) -> None:
    chat.append(ChatMessage.human(text))


def test_messages_of_several_writers_come_in_order_also_after_a_lost_connection(
    follow: Callable[..., Follower], chat: SessionHandle
) -> None:
    tab, leaving = follow(), follow()
    assert [each.until("reset").data["last_position"] for each in (tab, leaving)] == [2, 2]

    def write() -> None:
        for number in range(15):
            say(chat, str(number))

    writers = [InThread(write) for _ in range(4)]
    seen = [leaving.until("message").data["position"] for _ in range(20)]
    leaving.close()
    assert [tab.until("message").data["position"] for _ in range(60)] == list(range(3, 63))
    again = follow(last=leaving.last)
    assert seen + [again.until("message").data["position"] for _ in range(40)] == list(range(3, 63))
    for writer in writers:
        writer.result()


@pytest.mark.parametrize(
    "lose",
    [
        lambda chat, anna: row_of(chat).delete(),
        lambda chat, anna: models.Session.objects.update(owner=User.objects.create_user("berta")),
        lambda chat, anna: SiteSession.objects.all().delete(),
        lambda chat, anna: User.objects.update(password="another"),
    ],
    ids=["deleted", "moved", "logged out", "new password"],
)
def test_who_loses_access_loses_the_stream(
    lose: Callable[..., Any], follow: Callable[..., Follower], chat: SessionHandle, anna: User
) -> None:
    cookie = cookie_of(anna)
    tab = follow(cookie=cookie)
    tab.until("reset")
    lose(chat, anna)
    assert tab.rest() == []
    path = "/api/memory/sessions/00000000-0000-0000-0000-000000000000/events/"
    if models.Session.objects.exists():
        path = url_of(chat, "events/")
    with Follower(tab._connection.port, path, cookie=cookie) as again:
        assert again.status in (403, 404)


@pytest.mark.parametrize("revoked", [True, False])
def test_a_token_is_checked_again(
    revoked: bool, port: int, chat: SessionHandle, anna: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LIFE", 3.0)
    # The framework notes the user of the token in the request, where session authentication would find it again.
    settings.CONVMEMORY_API = {
        "AUTHENTICATION_CLASSES": [
            "rest_framework.authentication.SessionAuthentication",
            "rest_framework.authentication.BasicAuthentication",
        ]
    }
    anna.set_password("pw")
    anna.save()
    with Follower(port, url_of(chat, "events/"), authorization="Basic YW5uYTpwdw==") as follower:
        follower.until("reset")
        if revoked:
            anna.set_password("another")
            anna.save()
        time.sleep(1.5)
        say(chat, "three")
        assert [event.name for event in follower.rest()] == ([] if revoked else ["message"])


def test_a_user_has_a_few_streams(follow: Callable[..., Follower], port: int, settings: Any, anna: User) -> None:
    settings.CONVMEMORY_API = {"MAX_EVENT_STREAMS": 2}
    first, _, third = follow(), follow(), follow()
    assert third.status == 429
    assert third.response.headers["Content-Type"] == "application/problem+json"
    assert b'"too_many_streams"' in third.response.read()
    berta = User.objects.create_user("berta")
    other = memories["default"].session("hers", owner=berta)
    say(other, "hello")
    [row] = models.Session.objects.filter(owner=berta)
    with Follower(port, f"/api/memory/sessions/{row.public_id}/events/", cookie=cookie_of(berta)) as hers:
        hers.until("reset")
    # A stream that its client has left makes room.
    first.close()
    processes.wait_until(lambda: follow().status == 200, "the client has room for a stream")


def test_silent_streams_send_comments_and_end_some_day(
    follow: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT", 0.3)
    monkeypatch.setattr(events, "LIFE", 2.0)
    tab = follow()
    assert [event.name for event in tab.rest()] == ["reset"]
    assert tab.comments >= 2


@pytest.mark.only_on("postgresql")
def test_streams_hold_no_connection(follow: Callable[..., Follower]) -> None:
    for follower in [follow() for _ in range(4)]:
        follower.until("reset")
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()")
        # This one, and perhaps the one of the look that is running.
        assert cursor.fetchone()[0] <= 2


def stream_of(chat: SessionHandle, admits: Callable[[], bool] = lambda: True) -> events.Stream:
    """A stream of anna's that has seen everything."""
    row = models.Session.objects.with_clock().get(pk=row_of(chat).pk)
    return events.Stream("anna", row, events.Seen.all_of(row), admits)


def test_all_streams_share_a_statement(
    anna: User, chat: SessionHandle, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    others = [memories["default"].session(f"s{number}", owner=anna) for number in range(4)]
    for other in others:
        say(other, "hello")
    opened = [stream_of(each) for each in (chat, chat, *others)]
    with django_assert_num_queries(1):
        assert events._look(opened) == {}


def test_streams_outlast_a_database_that_fails(
    chat: SessionHandle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(open_streams: Any) -> Any:
        raise OperationalError("the database is away")

    stream = stream_of(chat)
    say(chat, "three")
    with monkeypatch.context() as patch:
        patch.setattr(events, "_sessions", failing)
        assert events._look([stream]) == {}
    assert "could not be read" in caplog.text
    assert "event: message" in str(events._look([stream])[stream])


def test_a_defect_of_the_sites_own_classes_ends_one_stream(
    chat: SessionHandle, caplog: pytest.LogCaptureFixture
) -> None:
    def defective() -> bool:
        raise KeyError("a defect of the site")

    hers, mine = stream_of(chat, defective), stream_of(chat)
    hers.check_at = 0
    say(chat, "three")
    answers = events._look([hers, mine])
    assert answers[hers] is None
    assert "event: message" in str(answers[mine])
    assert "a defect of the site" in caplog.text


def test_when_many_sessions_change_the_first_streams_do_not_wait_for_the_last(chat: SessionHandle) -> None:
    opened = [stream_of(chat) for _ in range(50)]
    say(chat, "three")
    sent: list[Any] = []
    rest = events._look(opened, sent.append)
    assert [len(answers) for answers in (*sent, rest)] == [20, 20, 10]
    assert {stream for answers in (*sent, rest) for stream in answers} == set(opened)
    assert events._look(opened, sent.append) == {}


def test_slow_checks_are_spread_over_several_looks(chat: SessionHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CHECKING", 0.05)
    checked: list[int] = []

    def slow_check(number: int) -> bool:
        checked.append(number)
        time.sleep(0.1)
        return True

    opened = [stream_of(chat, functools.partial(slow_check, number)) for number in range(4)]
    for number, stream in enumerate(opened):
        stream.check_at = time.monotonic() - 10 + number
    say(chat, "three")
    # All of them get the message, and those that wait longest are checked first.
    assert set(events._look(opened)) == set(opened)
    assert checked == [0]
    for _ in range(4):
        events._look(opened)
    assert checked[:4] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_server_that_is_asked_to_stop_ends_its_streams(
    chat: SessionHandle, anna: User, tmp_path: pathlib.Path
) -> None:
    """A process of its own gets the signal."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    command = ["uvicorn", "--factory", "django.core.asgi:get_asgi_application", "--port", str(port)]
    process = processes.start(tmp_path, *command, ALLOWED_HOSTS=["*"])

    def listens() -> bool:
        with socket.socket() as tried:
            return process.poll() is not None or tried.connect_ex(("127.0.0.1", port)) == 0

    try:
        processes.wait_until(listens, "the server listens")
        followers = [Follower(port, url_of(chat, "events/"), cookie=cookie_of(anna)) for _ in range(3)]
        for follower in followers:
            follower.until("reset")
        process.send_signal(signal.SIGTERM)
        assert [follower.is_complete() for follower in followers] == [True, True, True]
        for follower in followers:
            follower.close()
        process.wait(processes.PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (tmp_path / "output").read_text()
