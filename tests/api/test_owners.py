"""Which sessions a request reaches: every endpoint of the URL configuration, by every method, for every kind of user.

A new endpoint is tested too. Its tests fail until ``BODIES`` has a body for it.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core import serializers
from django.db import transaction
from django.urls import URLPattern
from django.utils import timezone
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api import urls
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.testing import ScriptedMemories
from tests.api.conftest import FIRST, client_of, row_of

# The owner of a session does not depend on the database.
pytestmark = pytest.mark.only_on("sqlite")

ROOT = "/api/memory/"
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
# A valid body for each endpoint.
BODIES: dict[str, Any] = {
    "sessions": {},
    "session": {"title": "Mine now"},
    "session-status": {},
    "events": {},
    "context": {},
    "messages": {"messages": [{"role": "user", "content": "hello"}]},
    "message": {"metadata": {"thumb": "up"}},
    "replace": {"after": FIRST, "messages": [{"role": "user", "content": "hello"}]},
    "redact": {},
    "turns": {"message": {"content": "hello"}},
    "turn": {},
    "stop": {},
    "summaries": {},
    "summary": {},
    "search": {},
    "search-all": {},
    "truncate": {"after": FIRST},
    "clear": {},
    "fork": {"at": FIRST},
    "compact": {},
    "rebuild": {},
    "export": {},
}
# What a query string has to have.
PARAMETERS = dict.fromkeys(("search", "search-all"), "?q=secret&limit=5&neighbours=2")
OF_A_SESSION = [pattern for pattern in urls.urlpatterns if "session_id" in str(pattern.pattern)]


def ask(turn: Any) -> str:
    return "hello"


@pytest.fixture(autouse=True)
def responder(settings: Any) -> None:
    settings.CONVMEMORY_API = {"RESPONDER": f"{__name__}.ask"}


def readable_id(value: Any) -> str:
    return str(value.name) if isinstance(value, URLPattern) else str(value)


def address(pattern: URLPattern, session: models.Session) -> str:
    path = str(pattern.pattern)
    for parameter, value in (("session_id", session.public_id), ("message_id", FIRST), ("version", 1)):
        path = path.replace(f"<str:{parameter}>", str(value))
    assert "<" not in path, f"{path} has a parameter that this suite does not know"
    return ROOT + path + PARAMETERS.get(pattern.name or "", "")


def send(client: APIClient, pattern: URLPattern, method: str, session: models.Session, body: Any = None) -> Any:
    body = BODIES[pattern.name or ""] if body is None else body
    headers = {"If-Match": "*"}
    return client.generic(
        method,
        address(pattern, session),
        json.dumps(body) if method not in ("GET", "HEAD", "OPTIONS") else "",
        content_type="application/json",
        headers=headers,
    )


def send_and_undo(client: APIClient, pattern: URLPattern, method: str, session: models.Session) -> Any:
    """Send a request, and undo what it changes. A question is not answered inside a transaction: its turn stays."""
    if pattern.name == "turns":
        return send(client, pattern, method, session)
    with transaction.atomic():
        response = send(client, pattern, method, session)
        transaction.set_rollback(True)
    return response


def open_turn() -> None:
    """Have a model answer the first message of each session."""
    open_until = timezone.now() + dt.timedelta(minutes=1)
    models.Session.objects.update(turn_token="t" * 32, turn_question=1, turn_expires_at=open_until)


def dump_tables() -> str:
    tables = (models.Session, models.Message, models.Summary, models.Attempt)
    return "".join(serializers.serialize("json", table.objects.order_by("pk")) for table in tables)


@pytest.fixture
def mine(anna: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A folded conversation that anna owns."""
    session = memories["default"].session("mine", owner=anna)
    convmemory.reply("a secret summary")
    session.append(ChatMessage.human("a secret " * 20, id=uuid.UUID(FIRST)))
    session.append(*[ChatMessage.human("a secret " * 20) for _ in range(9)])
    convmemory.run()
    convmemory.allow_unused_replies = True
    return session


def strangers(settings: Any) -> Iterator[tuple[str, APIClient]]:
    """Yield what a client is that is not anna, and the client. Each has a conversation, unless nobody is logged in."""
    yield "nobody", APIClient()
    for kind in ("another user", "staff", "a superuser", "a trusted service"):
        other = User.objects.create_user(kind, is_staff=kind != "another user", is_superuser=kind == "a superuser")
        if kind == "a trusted service":
            other.user_permissions.add(*Permission.objects.filter(content_type__app_label="convmemory"))
        yield kind, with_a_conversation(client_of(other))
    settings.CONVMEMORY_API |= {"SCOPE": "django_convmemory.api.scopes.UserOrVisitorScope"}
    yield "a visitor", with_a_conversation(APIClient())


def with_a_conversation(client: APIClient) -> APIClient:
    created = client.post(f"{ROOT}sessions/", {"key": "theirs"})
    message = {"role": "user", "content": "Their secret."}
    client.post(f"{created['Location']}messages/", {"messages": [message]})
    return client


@pytest.mark.parametrize("pattern", OF_A_SESSION, ids=readable_id)
def test_somebody_elses_session_does_not_exist(pattern: URLPattern, mine: SessionHandle, settings: Any) -> None:
    for kind, stranger in strangers(settings):
        before = dump_tables()
        status, code = (403, "not_authenticated") if kind == "nobody" else (404, "not_found")
        for method in METHODS:
            response = send(stranger, pattern, method, row_of(mine))
            assert response.status_code == status, (kind, method, response.content)
            assert b"secret" not in response.content, (kind, method)
            assert method == "HEAD" or response.json()["code"] == code, (kind, method)
            assert dump_tables() == before, (kind, method)
            # The response is the same as for a session that does not exist.
            nowhere = send(stranger, pattern, method, models.Session(public_id="00000000-0000-0000-0000-000000000000"))
            same = (nowhere.status_code, nowhere.content) == (response.status_code, response.content)
            assert same, (kind, method, nowhere.content)


@pytest.mark.parametrize("pattern", OF_A_SESSION, ids=readable_id)
def test_the_owner_may_use_every_endpoint(pattern: URLPattern, anna: User, mine: SessionHandle) -> None:
    if pattern.name == "stop":
        open_turn()
    for method in METHODS:
        response = send_and_undo(client_of(anna), pattern, method, row_of(mine))
        assert response.status_code < 300 or response.status_code == 405, (method, response.content)
        allowed = response["Allow"].split(", ")
        assert (response.status_code != 405) == (("GET" if method == "HEAD" else method) in allowed), method
        # No shared cache may keep a response.
        assert {"private", "no-cache"} <= set(response["Cache-Control"].split(", ")), method
        assert {"Accept", "Authorization", "Cookie"} <= set(response["Vary"].split(", ")), method


def test_a_list_holds_only_the_users_own_sessions(mine: SessionHandle, settings: Any) -> None:
    filters = ("search=", "key=mine", "archived=any", "starred=any", "alias=default", "state=idle", "ordering=created")
    for kind, stranger in strangers(settings):
        listed = stranger.get(f"{ROOT}sessions/")
        if kind == "nobody":
            assert listed.status_code == 403
            continue
        [hit] = stranger.get(f"{ROOT}search/?q=secret").json()["results"]
        assert "".join(piece["text"] for piece in hit["excerpt"]) == "Their secret.", kind
        assert [session["key"] for session in listed.json()["results"]] == ["theirs"], kind
        for query in filters:
            assert "mine" not in stranger.get(f"{ROOT}sessions/?{query}").content.decode(), (kind, query)


def test_a_copy_does_not_name_a_session_that_the_request_does_not_reach(anna: User, mine: SessionHandle) -> None:
    other = User.objects.create_user("other")
    mine.fork(1, key="given", owner=other)
    mine.fork(1, key="kept", owner=anna)
    [given] = client_of(other).get(f"{ROOT}sessions/").json()["results"]
    assert (given["forked_from"], given["fork_position"]) == (None, 1)
    assert client_of(other).get(given["url"]).json()["forked_from"] is None
    [kept] = client_of(anna).get(f"{ROOT}sessions/?key=kept").json()["results"]
    assert kept["forked_from"] == str(row_of(mine).public_id)


def test_a_key_of_somebody_else_is_free(anna: User, mine: SessionHandle, settings: Any) -> None:
    headers = {"Idempotency-Key": "k"}
    first = client_of(anna).post(f"{ROOT}sessions/", {"key": "new"}, headers=headers)
    for kind, stranger in strangers(settings):
        answer = stranger.post(f"{ROOT}sessions/", {"key": "new", "title": "Mine"}, headers=headers)
        assert answer.status_code == (403 if kind == "nobody" else 201), kind
        assert first.json()["id"] not in answer.content.decode(), kind


@pytest.mark.django_db
def test_sessions_without_an_owner_are_out_of_reach(admin_user: User, settings: Any) -> None:
    settings.CONVMEMORY_API |= {"SCOPE": "django_convmemory.api.scopes.UserOrVisitorScope"}
    memories["default"].append("nobodys", ChatMessage.human("hello"))
    row = models.Session.objects.get()
    for client in (client_of(admin_user), APIClient()):
        for path in ("sessions/", "search/?q=hello"):
            assert client.get(ROOT + path).json()["results"] == []
        assert client.get(f"{ROOT}sessions/{row.public_id}/").status_code == 404


@pytest.mark.parametrize(
    "pattern", [pattern for pattern in urls.urlpatterns if pattern not in OF_A_SESSION], ids=readable_id
)
@pytest.mark.django_db
def test_a_request_of_nobody_is_refused(pattern: URLPattern) -> None:
    for method in METHODS:
        assert send(APIClient(), pattern, method, models.Session()).status_code == 403, method
    assert models.Session.objects.count() == 0
