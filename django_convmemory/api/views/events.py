"""Following a session by server-sent events.

The id of an event says what its reader has seen. A browser sends the last id back when it connects again, so nothing is
missed and nothing is sent twice. Four numbers of the session's row suffice for that, because messages are only added as
long as the epoch is the same.

A stream waits most of the time. If each polled by itself, 500 streams would take 500 statements a second, 500 threads
or 500 connections. So each process has one thread that polls once a second: with one statement for all sessions that
somebody follows, and further statements only for those that have changed.
"""

from __future__ import annotations

import asyncio
import collections
import copy
import logging
import random
import re
import signal
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import Error, close_old_connections, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from rest_framework.exceptions import APIException
from rest_framework.request import Request

from django_convmemory import models
from django_convmemory.api import conf, throttles
from django_convmemory.api.formats import EventStreamRenderer, UTF8JSONRenderer
from django_convmemory.api.problems import Problem
from django_convmemory.api.serializers.sessions import StatusSerializer, SummarySerializer
from django_convmemory.api.views.base import ScopedView
from django_convmemory.operations import events
from django_convmemory.store import columns

logger = logging.getLogger(__name__)

# In seconds.
POLL = 1.0
# A comment is sent after this long without an event, because proxies close connections that are silent for a minute.
HEARTBEAT = 15.0
# How often access is checked again, at the latest, and how much time of each look the checks may take. A check takes
# longer than anything else here, because it authenticates. In a process with too many streams, checks come later.
CHECK = 20.0
CHECKING = 0.2
# The longest life of a stream. Its client connects again, perhaps to another server.
LIFE = 300.0
# How long a client waits before it connects again.
RETRY = 1.0
# Seconds until a client of a server without ASGI asks again.
_ASK_AGAIN = 5.0
# The most messages that one look at a session reads. The next look reads on.
MAX_MESSAGES = 100
# So many streams are answered at once.
_PORTION = 20
# What news of a session need not be read for.
_UNUSED = ("title", "metadata", "key", "counter")


# With ATOMIC_REQUESTS, the transaction of the request would last as long as nothing else uses its connection.
@method_decorator(transaction.non_atomic_requests, name="dispatch")
class SessionEvents(ScopedView):
    """Follow the session: new messages, new summaries, and the state of compaction."""

    renderer_classes = [EventStreamRenderer, UTF8JSONRenderer]

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        # Before the framework writes the user into it whom it has authenticated.
        self.arrived = _copy(request)
        return super().dispatch(request, *args, **kwargs)

    def get(self, request: Request, session_id: str) -> HttpResponseBase:
        self.query()
        seen = Seen.from_id(request.headers.get("Last-Event-ID"))
        if isinstance(self.arrived, ASGIRequest) and request.method != "HEAD":
            return StreamingHttpResponse(self._stream(seen), content_type=events.MEDIA_TYPE, headers=events.HEADERS)
        # A stream would occupy a thread of a WSGI server. The client asks again, with the last id.
        text = retry(_ASK_AGAIN) + news(self.session, seen)[0]
        return HttpResponse(text, content_type=events.MEDIA_TYPE, headers=events.HEADERS)

    def _stream(self, seen: Seen | None) -> Stream:
        client = throttles.client_of(self.request, self.scope)
        stream = Stream(client, self.session, seen, self._admits)
        most = conf.limits().max_event_streams
        with _lock:
            if sum(other.client == client for other in _open) >= most:
                detail = f"You follow {most} conversations already. Close one, or poll its status."
                raise Problem(429, "too_many_streams", detail)
            _open.add(stream)
        return stream

    def _admits(self) -> bool:
        """Return whether the request would still reach the session if it came now."""
        view = copy.copy(self)
        vars(view).pop("scope", None)
        view.request = view.initialize_request(_anew(self.arrived))
        try:
            view.perform_authentication(view.request)
            view.check_permissions(view.request)
            view.check_object_permissions(view.request, view.find_session(self.kwargs["session_id"]))
        except (APIException, Http404, PermissionDenied):
            # The stream ends, and the client gets this answer when it connects again.
            return False
        return True


def _copy(request: HttpRequest) -> HttpRequest:
    copied = copy.copy(request)
    copied.resolver_match = request.resolver_match  # Django leaves it out of copies.
    return copied


def _anew(request: HttpRequest) -> HttpRequest:
    """Return the request with the site's session and the user who is logged in as they are now.

    If another middleware than Django's has found out the user, the user stays.
    """
    request = _copy(request)
    session = getattr(request, "session", None)
    if session is not None:
        request.session = type(session)(session.session_key)
        if hasattr(request, "auser"):
            vars(request).pop("_cached_user", None)
            AuthenticationMiddleware(lambda request: HttpResponse()).process_request(request)
    return request


# What happened in a session.

_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})-([a-z])", re.ASCII)


class Seen(NamedTuple):
    """What a reader has seen of a session. Its text is the id of an event."""

    position: int
    epoch: int
    version: int
    # The first letter of the state.
    state: str

    @classmethod
    def all_of(cls, session: models.Session) -> Seen:
        """Return what somebody has seen who has seen everything. ``session`` must have been read ``with_clock``."""
        return cls(session.last_position, session.epoch, session.current_version, session.state[0])

    @classmethod
    def from_id(cls, text: str | None) -> Seen | None:
        """Return what the id of an event says. None for an id that this release does not know, and without an id."""
        match = _ID.fullmatch(text or "")
        return match and cls(int(match[1]), int(match[2]), int(match[3]), match[4])

    def __str__(self) -> str:
        return f"{self.position}-{self.epoch}-{self.version}-{self.state}"


def news(session: models.Session, seen: Seen | None) -> tuple[str, Seen]:
    """Return the events since ``seen`` as text, and what has been seen after them.

    It reads the new messages and the new summary, if there are any, in one statement each. ``session`` must have been
    read ``with_clock``.
    """
    now = Seen.all_of(session)
    if seen == now:
        return "", now
    if seen is None or seen.epoch != now.epoch or seen.position > now.position:
        return _event("reset", StatusSerializer(session).data, now), now
    texts = []
    # The session may have changed since it was read. The epoch in the conditions excludes what belongs to a later one.
    if seen.position < now.position:
        messages = models.Message.objects.using(session._state.db).filter(
            session=session, session__epoch=session.epoch, position__gt=seen.position
        )
        for message in messages.order_by("position", "session_id")[:MAX_MESSAGES]:
            seen = seen._replace(position=message.position)
            texts.append(_event("message", columns.stored_of_row(message).to_json(), seen))
    if seen.version != now.version:
        summaries = models.Summary.objects.using(session._state.db).filter(session=session)
        for summary in summaries.filter(session__epoch=session.epoch, version=now.version):
            seen = seen._replace(version=summary.version)
            texts.append(_event("summary", SummarySerializer(summary).data, seen))
    if seen.state != now.state:
        seen = seen._replace(state=now.state)
        texts.append(_event("state", StatusSerializer(session).data, seen))
    return "".join(texts), seen


def retry(seconds: float) -> str:
    """Return the line that says how long a client waits before it connects again."""
    return f"retry: {round(seconds * 1000)}\n\n"


def _event(name: str, data: Any, seen: Seen) -> str:
    # JSON has no line break outside of its escapes, so it is one line.
    return f"id: {seen}\nevent: {name}\ndata: {UTF8JSONRenderer().render(data).decode()}\n\n"


# The open streams, and what looks for news of them.


class Stream:
    """The events of a session for one client: the content of a response.

    ``client`` is who it counts for. ``admits`` returns whether the client still reaches the session.
    """

    def __init__(self, client: str, session: models.Session, seen: Seen | None, admits: Callable[[], bool]) -> None:
        self.client = client
        self.session_id = session.pk
        self.using = session._state.db or "default"
        self._admits = admits
        self._owner = _owner(session)
        self._begin, self._seen = news(session, seen)
        began = time.monotonic()
        self._sent_at = began
        # At random, so that the streams that begin after a restart do not all end or check at the same time.
        self.check_at = began + CHECK * random.uniform(0.5, 1)  # noqa: S311
        self.ends_at = began + LIFE * random.uniform(0.8, 1)  # noqa: S311

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            # The thread of the request belongs to it until the response ends, and would keep its connections.
            await sync_to_async(_close_connections)()
            yield retry(RETRY) + self._begin
            # A server has one event loop in each process.
            poller = _pollers.setdefault(asyncio.get_running_loop(), _Poller())
            while (text := await poller.news(self)) is not None:
                yield text
        finally:
            self.close()

    def close(self) -> None:
        """Free the place of the stream. Django calls it at the end of the response, even if it was never sent."""
        with _lock:
            _open.discard(self)

    def look(self, session: models.Session | None, *, may_check: bool) -> str | None:
        """Return the text to send now, perhaps none, or None if the stream ends. ``session`` is None if it is gone.

        Without ``may_check``, access is checked only if the session has another owner now.
        """
        now = time.monotonic()
        if session is None or now >= self.ends_at:
            return None
        owner = _owner(session)
        if owner != self._owner or (may_check and now >= self.check_at):
            if not self._admits():
                return None
            self._owner, self.check_at = owner, now + CHECK * random.uniform(0.5, 1)  # noqa: S311
        text, self._seen = news(session, self._seen)
        if not text and now >= self._sent_at + HEARTBEAT:
            text = ": no news\n\n"
        if text:
            self._sent_at = now
        return text


_lock = threading.Lock()
# Those of this process. Weak, because a response may get lost before it is sent: the client has gone, or a middleware
# has raised an error.
_open: weakref.WeakSet[Stream] = weakref.WeakSet()


class _Poller:
    """Looks for news of the streams of an event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Stream, asyncio.Future[str | None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def news(self, stream: Stream) -> str | None:
        """Wait for a text to send to ``stream``. None: it ends."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str | None] = loop.create_future()
        self._waiting[stream] = future
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._poll())
        try:
            return await future
        finally:
            # A stream that is being sent does not wait: a slow client gets its news when it has taken the last ones.
            del self._waiting[stream]

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, "convmemory-events")

        def send(answers: dict[Stream, str | None]) -> None:
            loop.call_soon_threadsafe(self._answer, answers)

        try:
            while self._waiting:
                await asyncio.sleep(POLL)
                if _server_stops():
                    break
                self._answer(await loop.run_in_executor(executor, _look, list(self._waiting), send))
        finally:
            # None waits here, unless a look has failed or the server stops.
            self._answer(dict.fromkeys(self._waiting))
            executor.submit(connections.close_all)
            executor.shutdown(wait=False)

    def _answer(self, answers: dict[Stream, str | None]) -> None:
        for stream, answer in answers.items():
            future = self._waiting.get(stream)
            if future is not None and not future.done():
                future.set_result(answer)


_pollers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Poller] = weakref.WeakKeyDictionary()


def _look(
    streams: list[Stream], send: Callable[[dict[Stream, str | None]], object] | None = None
) -> dict[Stream, str | None]:
    """Look at the sessions of all streams. Return those that have something to send, and those that end, with None.

    If they are many, all but the last are passed to ``send``, so that the first do not wait for the others.
    """
    answers: dict[Stream, str | None] = {}
    try:
        sessions = _sessions(streams)
        checks_end = time.monotonic() + CHECKING
        for stream in sorted(streams, key=lambda stream: stream.check_at):
            session = sessions.get((stream.using, stream.session_id))
            try:
                answer = stream.look(session, may_check=time.monotonic() < checks_end)
            except Error:
                raise
            except Exception:
                # For example in a scope class of the site. The other streams go on. It is not raised in this stream,
                # because Django would not close a response that ends with an error.
                logger.exception("The stream of the session %s has ended with an error.", stream.session_id)
                answer = None
            if answer != "":
                answers[stream] = answer
            if send is not None and len(answers) == _PORTION:
                send(answers)
                answers = {}
    except Error:
        # The streams stay: if they ended, all clients would come back at once to a database that is in trouble.
        logger.exception("The events of %d streams could not be read. The next try is in %s s.", len(streams), POLL)
        now = time.monotonic()
        answers |= {stream: None for stream in streams if stream not in answers and now >= stream.ends_at}
    finally:
        # As at the end of a request: CONN_MAX_AGE decides.
        close_old_connections()
    return answers


def _sessions(streams: Iterable[Stream]) -> dict[tuple[str, int], models.Session]:
    """Return the sessions of the streams, by database and primary key."""
    ids: dict[str, set[int]] = collections.defaultdict(set)
    for stream in streams:
        ids[stream.using].add(stream.session_id)
    rows = {using: models.Session.objects.using(using).defer(*_UNUSED).with_clock() for using in ids}
    # in_bulk() takes as many statements as the database's limit of parameters requires.
    return {(using, pk): row for using, pks in ids.items() for pk, row in rows[using].in_bulk(pks).items()}


def _owner(session: models.Session) -> tuple[Any, str]:
    return session.owner_id, session.visitor


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _server_stops() -> bool:
    """Return whether uvicorn waits for its connections to end.

    ASGI has no message for that. Without this, uvicorn would wait until the last stream has lived its life. Other
    servers close the connections.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
