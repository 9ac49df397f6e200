"""Whose sessions a request reaches: every endpoint of the URL configuration, by every method, for everybody.

A new endpoint is among them by itself, and fails until it is said what it is sent.
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

# Whose a session is does not depend on the database.
pytestmark = pytest.mark.only_on("sqlite")

ROOT = "/api/memory/"
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
# What each endpoint is sent, so that its owner is not refused for it.
BODIES: dict[str, Any] = {
    "sessions": {},
    "session": {"title": "Mine now"},
    "session-status": {},
    "context": {},
    "messages": {"messages": [{"role": "user", "content": "hello"}]},
    "message": {},
    "redact": {},
    "summaries": {},
    "summary": {},
    "truncate": {"after": 1},
    "clear": {},
    "fork": {"at": 1},
    "compact": {},
    "rebuild": {},
    "export": {},
}
OF_A_SESSION = [pattern for pattern in urls.urlpatterns if "session_id" in str(pattern.pattern)]
EVERY = list(itertools.product(OF_A_SESSION, METHODS))


def named(value: Any) -> str:
    return str(value.name) if isinstance(value, URLPattern) else str(value)


def address(pattern: URLPattern, session: models.Session) -> str:
    path = str(pattern.pattern)
    for parameter, value in (("session_id", session.public_id), ("position", 1), ("version", 1)):
        path = path.replace(f"<str:{parameter}>", str(value))
    assert "<" not in path, f"{path} has a parameter that this suite does not know"
    return ROOT + path


def ask(client: APIClient, pattern: URLPattern, method: str, session: models.Session, body: Any = None) -> Any:
    body = BODIES[pattern.name or ""] if body is None else body
    headers = {"If-Match": "*"}
    return client.generic(
        method,
        address(pattern, session),
        json.dumps(body) if method not in ("GET", "HEAD", "OPTIONS") else "",
        content_type="application/json",
        headers=headers,
    )


def everything() -> str:
    tables = (models.Session, models.Message, models.Summary, models.Attempt)
    return "".join(serializers.serialize("json", table.objects.order_by("pk")) for table in tables)


@pytest.fixture
def mine(anna: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A conversation of anna's that is folded."""
    session = memories["default"].session("mine", owner=anna)
    convmemory.reply("a summary")
    session.append(*[ChatMessage.human("a secret " * 20) for _ in range(10)])
    convmemory.run()
    convmemory.allow_unused_replies = True
    return session


@pytest.fixture(params=["nobody", "a visitor", "another user", "staff", "a superuser", "a trusted service"])
def stranger(request: pytest.FixtureRequest, anna: User, settings: Any) -> APIClient:
    """Somebody else, with a conversation of their own."""
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


@pytest.mark.parametrize(("pattern", "method"), EVERY, ids=named)
def test_somebody_elses_session_does_not_exist(
    pattern: URLPattern, method: str, stranger: APIClient, mine: SessionHandle
) -> None:
    before = everything()
    answer = ask(stranger, pattern, method, row_of(mine))
    knows_nobody = not stranger.cookies
    assert answer.status_code == (403 if knows_nobody else 404), answer.content
    assert b"secret" not in answer.content
    if method != "HEAD":
        assert answer.json()["code"] == ("not_authenticated" if knows_nobody else "not_found")
    assert everything() == before
    # It is answered as if it were nowhere.
    nowhere = ask(stranger, pattern, method, models.Session(public_id="00000000-0000-0000-0000-000000000000"))
    assert (nowhere.status_code, nowhere.content) == (answer.status_code, answer.content)


@pytest.mark.django_db
@pytest.mark.parametrize(("pattern", "method"), EVERY, ids=named)
def test_the_owner_is_refused_nothing(pattern: URLPattern, method: str, anna: User, mine: SessionHandle) -> None:
    answer = ask(client_of(anna), pattern, method, row_of(mine))
    assert answer.status_code < 300 or answer.status_code == 405, answer.content
    allowed = answer["Allow"].split(", ")
    assert (answer.status_code != 405) == (("GET" if method == "HEAD" else method) in allowed)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "pattern", [pattern for pattern in OF_A_SESSION if "messages" in BODIES[pattern.name or ""]], ids=named
)
def test_no_role_opens_somebody_elses_session(
    pattern: URLPattern, role: str, stranger: APIClient, mine: SessionHandle
) -> None:
    before = everything()
    message = {"role": role, "content": "hello", **({"tool_call_id": "c"} if role == "tool" else {})}
    answer = ask(stranger, pattern, "POST", row_of(mine), {"messages": [message]})
    assert answer.status_code == (404 if stranger.cookies else 403)
    assert everything() == before


def test_lists_hold_what_is_ones_own(stranger: APIClient, mine: SessionHandle) -> None:
    listed = stranger.get(f"{ROOT}sessions/")
    if not stranger.cookies:
        assert listed.status_code == 403
        return
    assert [one["key"] for one in listed.json()["results"]] == ["theirs"]
    for query in ("search=", "alias=default", "state=idle", "ordering=created"):
        assert "mine" not in stranger.get(f"{ROOT}sessions/?{query}").content.decode()


@pytest.mark.parametrize("field", ["owner", "owner_id", "visitor", "public_id", "name_hash", "id"])
def test_whose_a_session_is_comes_from_the_request(field: str, anna: User) -> None:
    other = client_of(User.objects.create_user("other"))
    refused = other.post(f"{ROOT}sessions/", {field: anna.pk}, format="json")
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (400, "unknown_field")
    assert models.Session.objects.count() == 0


@pytest.mark.django_db
def test_sessions_of_nobody_are_reached_by_nobody(admin_user: User, settings: Any) -> None:
    settings.CONVMEMORY_API = {"SCOPE": "django_convmemory.api.scopes.UserOrVisitorScope"}
    memories["default"].append("nobodys", ChatMessage.human("hello"))
    row = models.Session.objects.get()
    for client in (client_of(admin_user), APIClient()):
        assert client.get(f"{ROOT}sessions/").json()["results"] == []
        assert client.get(f"{ROOT}sessions/{row.public_id}/").status_code == 404


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pattern", [one for one in urls.urlpatterns if one not in OF_A_SESSION], ids=named)
@pytest.mark.django_db
def test_nobody_is_let_in(pattern: URLPattern, method: str) -> None:
    answer = ask(APIClient(), pattern, method, models.Session())
    assert answer.status_code == 403
    assert models.Session.objects.count() == 0
