"""Event streams from a real ASGI server, with clients that follow them."""

from __future__ import annotations

import functools
import itertools
import logging
import pathlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session as SiteSession
from django.db import OperationalError, connection
from django.db.backends.signals import connection_created

from django_convmemory import models
from django_convmemory.api.views import events
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from tests import processes
from tests.api.conftest import row_of, url_of
from tests.asgi_server import Follower, cookie_of, serving
from tests.settings import DATABASE
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


def test_a_follower_that_comes_back_misses_nothing(follow: Callable[..., Follower], chat: SessionHandle) -> None:
    first = follow()
    first.until("reset")
    say(chat, "three")
    last = first.until("message").id
    first.close()
    say(chat, "four")
    say(chat, "five")
    again = follow(last=last)
    assert [again.until("message").data["position"] for _ in range(2)] == [4, 5]
    chat.truncate(3)
    assert again.until("reset").data["last_position"] == 3


def test_messages_that_are_stored_at_the_same_time_come_in_order(
    follow: Callable[..., Follower], chat: SessionHandle
) -> None:
    tabs = follow(), follow()
    assert [tab.until("reset").data["last_position"] for tab in tabs] == [2, 2]

    def write() -> None:
        for number in range(15):
            say(chat, str(number))

    writers = [InThread(write) for _ in range(4)]
    for tab in tabs:
        assert [tab.until("message").data["position"] for _ in range(60)] == list(range(3, 63))
    for writer in writers:
        writer.result()


@pytest.mark.parametrize(
    "lose",
    [
        lambda chat, anna: row_of(chat).delete(),
        lambda chat, anna: models.Session.objects.update(owner=User.objects.create_user("berta")),
        lambda chat, anna: SiteSession.objects.all().delete(),
        lambda chat, anna: User.objects.update(is_active=False),
        lambda chat, anna: User.objects.update(password="another"),
    ],
    ids=["deleted", "moved", "logged out", "deactivated", "new password"],
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


def test_an_event_is_not_held_back_to_be_compressed(
    follow: Callable[..., Follower], settings: Any, chat: SessionHandle
) -> None:
    settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]
    with serving() as port:
        cookie = cookie_of(User.objects.get())
        with Follower(port, url_of(chat, "events/"), cookie=cookie, accept_encoding="gzip") as tab:
            tab.until("reset")
            say(chat, "three")
            tab.until("message")


class Statements:
    """Counts the statements of each thread, from its next connection on.

    A connection to MariaDB begins with settings, which do not count.
    """

    def __init__(self) -> None:
        self.by_thread: dict[str, list[str]] = {}

    def connect(self, *, connection: Any, **kwargs: Any) -> None:
        if self._count not in connection.execute_wrappers:
            connection.execute_wrappers.append(self._count)

    def _count(self, execute: Any, sql: str, *arguments: Any) -> Any:
        if not sql.startswith("SET SESSION "):
            self.by_thread.setdefault(threading.current_thread().name, []).append(sql)
        return execute(sql, *arguments)


def test_all_streams_share_a_statement_and_hold_no_connection(
    follow: Callable[..., Follower], anna: User, chat: SessionHandle, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "CHECK", 1000)
    statements = Statements()
    connection_created.connect(statements.connect)
    # The statements before each look at all streams.
    before: list[int] = []
    look = events._look

    def count(open_streams: Any, *rest: Any) -> Any:
        if len(open_streams) == 8:
            before.append(len(statements.by_thread.get(threading.current_thread().name, ())))
        return look(open_streams, *rest)

    monkeypatch.setattr(events, "_look", count)
    others = [memories["default"].session(f"s{number}", owner=anna) for number in range(4)]
    cookie = cookie_of(anna)
    followers = [follow() for _ in range(4)]
    try:
        for other in others:
            say(other, "hello")
            path = f"/api/memory/sessions/{models.Session.objects.get(key=other.key).public_id}/events/"
            followers.append(Follower(port, path, cookie=cookie))
        for follower in followers:
            follower.until("reset")
        first = len(before) + 1
        processes.wait_until(lambda: len(before) > first + 10, "ten more looks")
        assert [after - number for number, after in itertools.pairwise(before[first : first + 11])] == [1] * 10
        if DATABASE == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()")
                # This one, and perhaps the one of the look that is running.
                assert cursor.fetchone()[0] <= 2
    finally:
        connection_created.disconnect(statements.connect)
        for follower in followers:
            follower.close()


def test_streams_outlast_a_database_that_fails(
    follow: Callable[..., Follower],
    chat: SessionHandle,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tab = follow()
    tab.until("reset")
    real, failures = events._sessions, 0

    def failing(open_streams: Any) -> Any:
        nonlocal failures
        failures += 1
        raise OperationalError("the database is away")

    with caplog.at_level(logging.CRITICAL, events.__name__):
        monkeypatch.setattr(events, "_sessions", failing)
        say(chat, "three")
        processes.wait_until(lambda: failures >= 2, "two failed looks")
    monkeypatch.setattr(events, "_sessions", real)
    assert tab.until("message").data["position"] == 3


class BrokenLater:
    """A permission class of a site, with a defect that shows only when access is checked again."""

    asked: set[str] = set()

    def has_permission(self, request: Any, view: Any) -> bool:
        return True

    def has_object_permission(self, request: Any, view: Any, obj: Any) -> bool:
        if request.user.username == "berta" and request.user.username in self.asked:
            raise KeyError("a defect of the site")
        self.asked.add(request.user.username)
        return True


def test_a_defect_of_the_sites_own_classes_ends_one_stream(
    follow: Callable[..., Follower], chat: SessionHandle, anna: User, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    BrokenLater.asked.clear()
    settings.CONVMEMORY_API = {
        "SCOPE": "tests.api.test_scopes.TeamScope",
        "PERMISSION_CLASSES": [f"{__name__}.BrokenLater"],
    }
    berta = User.objects.create_user("berta")
    Group.objects.create(name="support").user_set.add(anna, berta)
    hers, tab = follow(cookie=cookie_of(berta)), follow()
    tab.until("reset")
    hers.until("reset")
    assert hers.rest() == []
    [record] = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    say(chat, "three")
    assert tab.until("message").data["position"] == 3


def test_when_many_sessions_change_the_first_streams_do_not_wait_for_the_last(anna: User, chat: SessionHandle) -> None:
    row = models.Session.objects.with_clock().get()
    opened = [events.Stream("anna", row, events.Seen.all_of(row), lambda: True) for _ in range(50)]
    say(chat, "three")
    sent: list[Any] = []
    rest = events._look(opened, sent.append)
    assert [len(answers) for answers in (*sent, rest)] == [20, 20, 10]
    assert {stream for answers in (*sent, rest) for stream in answers} == set(opened)
    assert events._look(opened, sent.append) == {}


def test_slow_checks_are_spread_over_several_looks(
    chat: SessionHandle, anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "CHECKING", 0.05)
    row = models.Session.objects.with_clock().get()
    seen = events.Seen.all_of(row)
    checked: list[int] = []

    def slow_check(number: int) -> bool:
        checked.append(number)
        time.sleep(0.1)
        return True

    opened = [events.Stream("anna", row, seen, functools.partial(slow_check, number)) for number in range(4)]
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
