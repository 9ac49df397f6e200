"""Which sessions a request reaches: every endpoint of the URL configuration, by every method, for every kind of user.

A new endpoint is tested too. Its tests fail until ``BODIES`` has a body for it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core import serializers
from django.urls import URLPattern
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api import urls
from django_convmemory.conversation import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.messages import ROLES, ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.api.conftest import client_of, row_of

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
    "sessions-delete": {"ids": ["00000000-0000-0000-0000-000000000000"]},
    "replace": {"after": 1, "messages": [{"role": "user", "content": "hello"}]},
    "redact": {},
    "summaries": {},
    "summary": {},
    "search": {},
    "search-all": {},
    "truncate": {"after": 1},
    "clear": {},
    "fork": {"at": 1},
    "compact": {},
    "rebuild": {},
    "export": {},
    "unknown": {},
}
# What a query string has to have.
PARAMETERS = {"search": "?q=secret", "search-all": "?q=secret"}
OF_A_SESSION = [pattern for pattern in urls.urlpatterns if "session_id" in str(pattern.pattern)]
EVERY = list(itertools.product(OF_A_SESSION, METHODS))


def readable_id(value: Any) -> str:
    return str(value.name) if isinstance(value, URLPattern) else str(value)


def address(pattern: URLPattern, session: models.Session) -> str:
    path = str(pattern.pattern)
    for parameter, value in (("session_id", session.public_id), ("position", 1), ("version", 1)):
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


def dump_tables() -> str:
    tables = (models.Session, models.Message, models.Summary, models.Attempt)
    return "".join(serializers.serialize("json", table.objects.order_by("pk")) for table in tables)


@pytest.fixture
def mine(anna: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A folded conversation that anna owns."""
    session = memories["default"].session("mine", owner=anna)
    convmemory.reply("a summary")
    session.append(*[ChatMessage.human("a secret " * 20) for _ in range(10)])
    convmemory.run()
    convmemory.allow_unused_replies = True
    return session


@pytest.fixture(params=["nobody", "a visitor", "another user", "staff", "a superuser", "a trusted service"])
def stranger(request: pytest.FixtureRequest, anna: User, settings: Any) -> APIClient:
    """A client that is not anna. It has a conversation of its own unless nobody is logged in."""
    kind = request.param
    if kind == "nobody":
        return APIClient()
    if kind == "a visitor":
        settings.CONVMEMORY_API = {"SCOPE": "django_convmemory.api.scopes.UserOrVisitorScope"}
        client = APIClient()
    else:
        other = User.objects.create_user("other", is_staff=kind != "another user", is_superuser=kind == "a superuser")
        if kind == "a trusted service":
            other.user_permissions.add(*Permission.objects.filter(content_type__app_label="convmemory"))
        client = client_of(other)
    assert client.post(f"{ROOT}sessions/", {"key": "theirs"}, format="json").status_code == 201
    return client


@pytest.mark.parametrize(("pattern", "method"), EVERY, ids=readable_id)
def test_somebody_elses_session_does_not_exist(
    pattern: URLPattern, method: str, stranger: APIClient, mine: SessionHandle
) -> None:
    before = dump_tables()
    response = send(stranger, pattern, method, row_of(mine))
    knows_nobody = not stranger.cookies
    assert response.status_code == (403 if knows_nobody else 404), response.content
    assert b"secret" not in response.content
    if method != "HEAD":
        assert response.json()["code"] == ("not_authenticated" if knows_nobody else "not_found")
    assert dump_tables() == before
    # The response is the same as for a session that does not exist.
    nowhere = send(stranger, pattern, method, models.Session(public_id="00000000-0000-0000-0000-000000000000"))
    assert (nowhere.status_code, nowhere.content) == (response.status_code, response.content)


@pytest.mark.django_db
@pytest.mark.parametrize(("pattern", "method"), EVERY, ids=readable_id)
def test_the_owner_may_use_every_endpoint(pattern: URLPattern, method: str, anna: User, mine: SessionHandle) -> None:
    response = send(client_of(anna), pattern, method, row_of(mine))
    assert response.status_code < 300 or response.status_code == 405, response.content
    allowed = response["Allow"].split(", ")
    assert (response.status_code != 405) == (("GET" if method == "HEAD" else method) in allowed)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "pattern", [pattern for pattern in OF_A_SESSION if "messages" in BODIES[pattern.name or ""]], ids=readable_id
)
def test_no_role_opens_somebody_elses_session(
    pattern: URLPattern, role: str, stranger: APIClient, mine: SessionHandle
) -> None:
    before = dump_tables()
    message = {"role": role, "content": "hello", **({"tool_call_id": "c"} if role == "tool" else {})}
    response = send(stranger, pattern, "POST", row_of(mine), {"messages": [message]})
    assert response.status_code == (404 if stranger.cookies else 403)
    assert dump_tables() == before


def test_a_list_holds_only_the_users_own_sessions(stranger: APIClient, mine: SessionHandle) -> None:
    listed = stranger.get(f"{ROOT}sessions/")
    if not stranger.cookies:
        assert listed.status_code == 403
        return
    assert [session["key"] for session in listed.json()["results"]] == ["theirs"]
    for query in (
        "search=",
        "key=mine",
        "archived=any",
        "starred=any",
        "alias=default",
        "state=idle",
        "ordering=created",
    ):
        assert "mine" not in stranger.get(f"{ROOT}sessions/?{query}").content.decode()


def test_a_deletion_of_several_sessions_does_not_tell_whose_they_are(stranger: APIClient, mine: SessionHandle) -> None:
    before = dump_tables()
    address, nowhere = f"{ROOT}sessions/delete/", "00000000-0000-0000-0000-000000000000"
    ids = (str(row_of(mine).public_id), nowhere)
    answers = [stranger.post(address, {"ids": [public_id]}, format="json") for public_id in ids]
    assert {answer.status_code for answer in answers} == {200 if stranger.cookies else 403}
    assert answers[0].content == answers[1].content
    assert dump_tables() == before


def test_a_copy_does_not_name_a_session_that_the_request_does_not_reach(anna: User, mine: SessionHandle) -> None:
    other = User.objects.create_user("other")
    mine.fork(1, key="given", owner=other)
    mine.fork(1, key="kept", owner=anna)
    [given] = client_of(other).get(f"{ROOT}sessions/").json()["results"]
    assert (given["forked_from"], given["fork_position"]) == (None, 1)
    assert client_of(other).get(given["url"]).json()["forked_from"] is None
    [kept] = client_of(anna).get(f"{ROOT}sessions/?key=kept").json()["results"]
    assert kept["forked_from"] == str(row_of(mine).public_id)


def test_a_key_of_somebody_else_is_free(stranger: APIClient, anna: User, mine: SessionHandle) -> None:
    headers = {"Idempotency-Key": "k"}
    first = client_of(anna).post(f"{ROOT}sessions/", {"key": "new"}, format="json", headers=headers)
    answer = stranger.post(f"{ROOT}sessions/", {"key": "new", "title": "Mine"}, format="json", headers=headers)
    assert answer.status_code == (201 if stranger.cookies else 403)
    assert first.json()["id"] not in answer.content.decode()


def test_a_search_finds_only_what_is_in_the_users_own_sessions(
    stranger: APIClient, anna: User, mine: SessionHandle
) -> None:
    address = f"{ROOT}search/?q=secret&neighbours=10"
    found = stranger.get(address)
    if not stranger.cookies:
        assert found.status_code == 403
        return
    [theirs] = stranger.get(f"{ROOT}sessions/").json()["results"]
    assert found.json() == {"next": None, "previous": None, "complete": True, "results": []}
    row = models.Session.objects.get(public_id=theirs["id"])
    memories["default"].append(row, ChatMessage.human("No secret."))
    [hit] = stranger.get(address).json()["results"]
    assert (hit["session"]["id"], hit["neighbours"]) == (theirs["id"], [])
    assert len(client_of(anna).get(address).json()["results"]) > 1


@pytest.mark.parametrize("field", ["owner", "owner_id", "visitor", "public_id", "name_hash", "id"])
def test_a_body_cannot_name_the_owner(field: str, anna: User) -> None:
    other = client_of(User.objects.create_user("other"))
    refused = other.post(f"{ROOT}sessions/", {field: anna.pk}, format="json")
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (400, "unknown_field")
    assert models.Session.objects.count() == 0


@pytest.mark.django_db
def test_sessions_without_an_owner_are_out_of_reach(admin_user: User, settings: Any) -> None:
    settings.CONVMEMORY_API = {"SCOPE": "django_convmemory.api.scopes.UserOrVisitorScope"}
    memories["default"].append("nobodys", ChatMessage.human("hello"))
    row = models.Session.objects.get()
    for client in (client_of(admin_user), APIClient()):
        assert client.get(f"{ROOT}sessions/").json()["results"] == []
        assert client.get(f"{ROOT}sessions/{row.public_id}/").status_code == 404


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "pattern", [pattern for pattern in urls.urlpatterns if pattern not in OF_A_SESSION], ids=readable_id
)
@pytest.mark.django_db
def test_a_request_of_nobody_is_refused(pattern: URLPattern, method: str) -> None:
    response = send(APIClient(), pattern, method, models.Session())
    assert response.status_code == 403
    assert models.Session.objects.count() == 0
