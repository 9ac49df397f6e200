"""Sessions over HTTP: how they are created, read, listed, changed, polled and deleted."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from django_convmemory import exceptions, models
from django_convmemory.api import problems
from django_convmemory.api.views import base
from django_convmemory.clock import Clock
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.search import indexing
from tests.api.conftest import FIRST, ROOT, messages_body, row_of, url_of
from tests.api.test_hard_input import assert_problem

pytestmark = pytest.mark.vendors


def test_a_session_is_created_and_read(api: APIClient, anna: User) -> None:
    created = api.post(ROOT, {"key": "trip", "title": "São Paulo", "metadata": {"plan": ["a"]}})
    assert created.status_code == 201, created.data
    assert '"key":"trip","title":"São Paulo","metadata":{"plan":["a"]}'.encode() in created.content
    assert (created.data["messages"], created.data["tokens"], created.data["state"]) == (0, 0, "idle")
    row = models.Session.objects.get()
    assert (row.owner, row.alias, str(row.public_id)) == (anna, "default", created.data["id"])

    read = api.get(created["Location"])
    assert (read.status_code, read.data) == (200, created.data)
    assert read["ETag"] == created["ETag"]
    # It is the session that the memory has under this name.
    memories["default"].session("trip", owner=anna).append({"role": "user", "content": "hello"})
    assert api.get(created["Location"]).data["messages"] == 1


def test_every_field_of_a_new_session_is_optional(api: APIClient) -> None:
    first, second = (api.post(ROOT, {}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert uuid.UUID(first.data["key"]) != uuid.UUID(second.data["key"])


def test_a_key_that_exists_is_refused(api: APIClient, chat: SessionHandle) -> None:
    assert_problem(api.post(ROOT, {"key": "main"}), 409, "session_exists")


def test_the_setting_aliases_limits_the_api(api: APIClient, chat: SessionHandle, settings: Any) -> None:
    settings.CONVMEMORY_API = {"ALIASES": []}
    assert api.get(url_of(chat)).status_code == 404
    assert api.get(ROOT).json()["results"] == []
    for body in ({"alias": "default"}, {}):
        refused = api.post(ROOT, body).json()["errors"][0]
        assert (refused["pointer"], refused["code"]) == ("/alias", "unknown_alias")
    assert models.Session.objects.count() == 1
    # Sessions of a removed alias are out of reach.
    settings.CONVMEMORY_API = {}
    models.Session.objects.update(alias="gone")
    assert api.get(url_of(chat)).status_code == 404


@pytest.mark.parametrize(
    ("allowed", "alias"),
    [(None, "default"), (["wide", "default"], "default"), (["wide"], "wide"), (["narrow", "wide"], "wide")],
)
def test_a_session_without_an_alias_goes_to_the_first_that_the_api_offers(
    api: APIClient, settings: Any, allowed: list[str] | None, alias: str
) -> None:
    settings.CONVMEMORY = dict.fromkeys(("wide", "default", "narrow"), settings.CONVMEMORY["default"])
    settings.CONVMEMORY_API = {"ALIASES": allowed}
    created = api.post(ROOT, {"key": "trip"})
    assert (created.status_code, created.data["alias"]) == (201, alias)
    assert api.get(created["Location"]).status_code == 200


def test_sessions_are_listed_page_by_page_in_both_directions(api: APIClient, anna: User) -> None:
    for number in range(5):
        api.post(ROOT, {"key": f"k{number}"})

    def keys(url: str) -> tuple[list[str], dict[str, Any]]:
        page = api.get(url).json()
        return [session["key"] for session in page["results"]], page

    first, page = keys(f"{ROOT}?limit=2")
    second, page = keys(page["next"])
    third, page = keys(page["next"])
    assert [*first, *second, *third] == ["k4", "k3", "k2", "k1", "k0"]
    assert page["next"] is None
    assert keys(page["previous"])[0] == second
    assert keys(f"{ROOT}?ordering=created")[0] == ["k0", "k1", "k2", "k3", "k4"]


def test_sessions_are_listed_by_their_last_change(api: APIClient, anna: User) -> None:
    moment = timezone.now()
    for key, seconds in (("a", 0), ("b", 5), ("c", 5), ("d", 2)):
        memories["default"].session(key, owner=anna).append({"role": "user", "content": key})
        models.Session.objects.filter(key=key).update(updated_at=moment - dt.timedelta(seconds=seconds))
    keys, url = [], f"{ROOT}?ordering=-updated&limit=1"
    while url:
        page = api.get(url).json()
        keys += [session["key"] for session in page["results"]]
        url = page["next"]
    assert keys == ["a", "d", "c", "b"]


def test_a_time_is_read_as_it_was_stored(chat: SessionHandle) -> None:
    for _ in range(5):
        models.Session.objects.update(updated_at=Clock())
        for digits in ("", ".000", ".100"):
            moment = row_of(chat).updated_at
            if digits:
                moment = moment.replace(microsecond=int(digits[1:]) * 1000)
                models.Session.objects.update(updated_at=moment)
            assert models.Session.objects.filter(updated_at=moment).exists()
            assert not models.Session.objects.filter(updated_at__lt=moment).exists()


def test_sessions_are_filtered(api: APIClient, anna: User) -> None:
    for key, title in (("a", "Trip to Lisbon"), ("b", "The boiler"), ("c", "lisbon again")):
        api.post(ROOT, {"key": key, "title": title})
    sessions = models.Session.objects
    sessions.filter(key="a").update(due_since=Clock(-60))
    sessions.filter(key="b").update(
        due_since=Clock(-60), last_error="ModelUnavailable: it is tired", created_at=Clock(-900)
    )
    sessions.filter(key="c").update(lease_expires_at=Clock(60), updated_at=Clock(-900))

    def keys(query: str) -> list[str]:
        response = api.get(f"{ROOT}?{query}")
        assert response.status_code == 200, response.data
        sessions_found = response.json()["results"]
        assert "state=" not in query or all(f"state={session['state']}" in query for session in sessions_found)
        return sorted(session["key"] for session in sessions_found)

    assert keys("search=LISBON") == ["a", "c"]
    assert keys("search=%25") == []
    assert [keys(f"state={state}") for state in ("due", "failing", "compacting", "idle")] == [["a"], ["b"], ["c"], []]
    middle = sessions.get(key="a").created_at.isoformat().replace("+", "%2B")
    assert keys(f"created_before={middle}") == ["b"]
    assert keys(f"created_after={middle}") == ["a", "c"]
    assert keys("created_after=0001-01-01T00:00:00Z&created_before=9999-12-31T23:59:59Z") == ["a", "b", "c"]
    assert keys("updated_after=2000-01-01T00:00:00Z&alias=default&ordering=-updated") == ["a", "b", "c"]
    assert keys(f"updated_before={middle}") == ["c"]
    assert api.get(f"{ROOT}?alias=other").status_code == 400


def test_the_owner_changes_title_and_metadata(api: APIClient, chat: SessionHandle) -> None:
    before = api.get(url_of(chat))
    changed = api.patch(url_of(chat), {"title": "Rust"}, headers={"If-Match": before["ETag"]})
    assert (changed.status_code, changed.data["title"], changed.data["metadata"]) == (200, "Rust", {})
    assert changed["ETag"] != before["ETag"]
    for metadata in ({"a": 1, "b": 2}, {"b": 3}, {}):
        changed = api.patch(url_of(chat), {"metadata": metadata})
        assert (changed.data["title"], changed.data["metadata"]) == ("Rust", metadata)
    assert_problem(api.patch(url_of(chat), {"title": "C"}, headers={"If-Match": before["ETag"]}), 412, "stale_revision")
    assert row_of(chat).title == "Rust"


def test_an_empty_patch_changes_nothing(api: APIClient, chat: SessionHandle) -> None:
    before, row = api.get(url_of(chat)), row_of(chat)
    same = api.patch(url_of(chat), {}, headers={"If-Match": before["ETag"]})
    assert (same.status_code, same.data, same["ETag"]) == (200, before.data, before["ETag"])
    assert (row_of(chat).revision, row_of(chat).updated_at) == (row.revision, row.updated_at)
    assert_problem(api.patch(url_of(chat), {}, headers={"If-Match": '"9-i"'}), 412, "stale_revision")


def test_a_session_is_deleted_with_its_messages(api: APIClient, chat: SessionHandle) -> None:
    url = url_of(chat)
    assert api.delete(url).status_code == 204
    assert (models.Session.objects.count(), models.Message.objects.count()) == (0, 0)
    assert api.delete(url).status_code == 404


@pytest.mark.parametrize("path", ["", "status/", "context/", "messages/?limit=1"])
def test_polling_with_an_etag_takes_one_statement(
    api: APIClient, chat: SessionHandle, django_assert_num_queries: DjangoAssertNumQueries, path: str
) -> None:
    url = url_of(chat, path)
    first = api.get(url)
    # The site's authentication takes two more.
    with django_assert_num_queries(2 + 1):
        same = api.get(url, headers={"If-None-Match": f'"other", W/{first["ETag"]}'})
    assert (same.status_code, same.content, same["ETag"]) == (304, b"", first["ETag"])
    assert "private" in same["Cache-Control"]
    chat.append({"role": "user", "content": "more"})
    changed = api.get(url, headers={"If-None-Match": first["ETag"]})
    assert (changed.status_code, changed["ETag"] == first["ETag"]) == (200, False)
    chat.update_message(1, metadata={"thumb": "up"})
    assert api.get(url, headers={"If-None-Match": changed["ETag"]}).status_code == 200


def test_what_else_changes_the_etag(api: APIClient, chat: SessionHandle, settings: Any) -> None:
    models.Session.objects.update(lease_expires_at=Clock(60))
    leased = api.get(url_of(chat, "status/"))
    assert leased.data["state"] == "compacting"
    models.Session.objects.update(lease_expires_at=Clock(-1))
    ended = api.get(url_of(chat, "status/"), headers={"If-None-Match": leased["ETag"]})
    assert (ended.status_code, ended.data["state"]) == (200, "idle")
    # A title that the site changes itself.
    models.Session.objects.update(title="another")
    assert api.get(url_of(chat, "status/"), headers={"If-None-Match": ended["ETag"]}).status_code == 200
    # Other options.
    before = api.get(url_of(chat, "context/"))
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"] | {"OPTIONS": {"max_token_limit": 100}}}
    assert api.get(url_of(chat, "context/"), headers={"If-None-Match": before["ETag"]}).status_code == 200


def test_a_context_that_may_quote_more_has_another_etag(api: APIClient, chat: SessionHandle, settings: object) -> None:
    window = {"MEMORY": "django_convmemory.memory.ConversationWindowMemory", "OPTIONS": {"window_size": 4}}
    settings.CONVMEMORY = {"default": window}  # type: ignore[attr-defined]
    chat.append(ChatMessage.human("The heron has landed."), *[ChatMessage.human("Remark")] * 600)
    url = url_of(chat, "context/?recall=heron")
    before = api.get(url)
    assert before.json()["recalled"] == []
    assert api.get(url, headers={"If-None-Match": before["ETag"]}).status_code == 304
    indexing.index(chat.memory.store, row_of(chat).pk)
    after = api.get(url, headers={"If-None-Match": before["ETag"]})
    assert after.status_code == 200
    assert after.json()["recalled"][0]["position"] == 1
    assert after.json()["revision"] == before.json()["revision"]


def delete_and_create_again(chat: SessionHandle) -> None:
    row_of(chat).delete()
    chat.append({"role": "user", "content": "another conversation of that name"})


@pytest.mark.parametrize("meanwhile", [lambda chat: row_of(chat).delete(), delete_and_create_again])
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("post", "messages/", messages_body("late"), 404),
        ("post", "truncate/", {"after": None}, 404),
        ("post", "clear/", {}, 404),
        ("post", "fork/", {"at": FIRST}, 404),
        ("post", f"messages/{FIRST}/redact/", {}, 404),
        ("patch", "", {"title": "x"}, 404),
        ("delete", "", None, 204),
        ("get", "export/", None, 404),
    ],
)
def test_a_session_that_is_deleted_in_the_meantime_is_not_found(
    api: APIClient,
    chat: SessionHandle,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Any,
    method: str,
    path: str,
    body: Any,
    status: int,
) -> None:
    """Nothing of the session comes back, and a new session with the same name is left alone."""
    find_session = base.ScopedView.find_session

    def find_and_change(view: base.ScopedView, session_id: str) -> models.Session:
        session = find_session(view, session_id)
        meanwhile(chat)
        return session

    url = url_of(chat, path)
    monkeypatch.setattr(base.ScopedView, "find_session", find_and_change)
    response = getattr(api, method)(url, body, headers={"If-Match": "*"})
    assert response.status_code == status, response.content
    assert [row.content for row in models.Message.objects.all()] == ["another conversation of that name"] * (
        meanwhile is delete_and_create_again
    )


def deadlock() -> OperationalError:
    error = OperationalError()
    error.__cause__ = Exception(1213, "Deadlock found")
    return error


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after", "logged"),
    [
        (deadlock(), 503, "session_contended", "1", False),
        (exceptions.ConnectionLost("lost 3 times"), 503, "database_unavailable", "1", True),
        # A client that repeats it by itself could store a message twice.
        (exceptions.OutcomeUnknown("lost at the COMMIT"), 500, "outcome_unknown", None, True),
    ],
)
def test_an_error_of_the_database_is_answered_with_what_the_client_may_do(
    api: APIClient,
    chat: SessionHandle,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: OperationalError,
    status: int,
    code: str,
    retry_after: str | None,
    logged: bool,
) -> None:
    monkeypatch.setattr(SessionHandle, "append", mock.Mock(side_effect=error))

    response = api.post(url_of(chat, "messages/"), messages_body("hello"))

    assert_problem(response, status, code)
    assert response.get("Retry-After") == retry_after
    assert (str(error) in caplog.messages) == logged


def test_any_other_error_of_the_database_is_left_to_the_site() -> None:
    assert problems.exception_handler(OperationalError("the server is gone"), {}) is None
