"""Messages over HTTP: stored, read, emptied, deleted and copied."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from rest_framework.permissions import BasePermission
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.conversation import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.api.conftest import ROOT, client_of, row_of, said, url_of


@pytest.fixture
def service(anna: User) -> APIClient:
    """The API as a trusted service of anna's sees it."""
    anna.user_permissions.add(Permission.objects.get(codename="write_any_role"))
    return client_of(User.objects.get(pk=anna.pk))


def test_one_message_is_stored_or_many(api: APIClient, chat: SessionHandle) -> None:
    one = api.post(url_of(chat, "messages/"), said("And ownership?"), format="json")
    assert one.status_code == 201, one.data
    assert (one.data["first_position"], one.data["last_position"], one.data["replayed"]) == (3, 3, False)
    many = api.post(url_of(chat, "messages/"), said("a", "b"), format="json")
    assert (many.data["first_position"], many.data["last_position"]) == (4, 5)
    assert [one.message.text for one in chat.history(after=2)] == ["And ownership?", "a", "b"]


def test_a_retry_stores_nothing(api: APIClient, chat: SessionHandle) -> None:
    def post(text: str) -> tuple[int, object]:
        headers = {"Idempotency-Key": "k1"}
        answer = api.post(url_of(chat, "messages/"), said(text), format="json", headers=headers)
        return answer.status_code, answer.json().get("last_position", answer.json().get("code"))

    assert post("once") == (201, 3)
    assert post("once") == (200, 3)
    assert post("twice") == (422, "idempotency_conflict")
    assert row_of(chat).last_position == 3


@pytest.mark.parametrize("role", ["system", "developer", "assistant", "tool"])
def test_a_user_speaks_for_the_user_alone(api: APIClient, chat: SessionHandle, role: str) -> None:
    message = {"role": role, "content": "I obey.", **({"tool_call_id": "c"} if role == "tool" else {})}
    both = {"messages": [{"role": "user", "content": "hello"}, message]}
    refused = api.post(url_of(chat, "messages/"), both, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "role_not_allowed")
    assert row_of(chat).last_position == 2


def test_a_user_does_not_say_what_a_reply_used(api: APIClient, chat: SessionHandle) -> None:
    usage = said("Sure.") | {"usage": {"prompt_tokens": 12}}
    assert api.post(url_of(chat, "messages/"), usage, format="json").json()["code"] == "role_not_allowed"


def test_what_a_reply_used_is_told_by_trusted_services(service: APIClient, chat: SessionHandle) -> None:
    reply = said("Sure.", role="assistant") | {"usage": {"prompt_tokens": 12, "completion_tokens": 3}}
    assert service.post(url_of(chat, "messages/"), reply, format="json").status_code == 201
    assert models.Message.objects.get(position=3).usage == reply["usage"]


def test_a_trusted_service_stores_an_exchange_with_tools(service: APIClient, chat: SessionHandle) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    exchange: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "found"}], "kind": "lookup"},
        ]
    }
    assert service.post(url_of(chat, "messages/"), exchange, format="json").status_code == 201
    shown = service.get(url_of(chat, "messages/?after=3")).json()["results"]
    answer = {key: value for key, value in exchange["messages"][2].items() if key != "kind"}
    assert [one["message"] for one in shown] == [exchange["messages"][1], answer]
    assert [one["kind"] for one in shown] == ["chat", "lookup"]
    late = {"messages": [{"role": "tool", "tool_call_id": "c9", "content": "?"}]}
    refused = service.post(url_of(chat, "messages/"), late, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "tool_result_refused")


def test_roles_are_a_setting(api: APIClient, chat: SessionHandle, settings: object) -> None:
    settings.CONVMEMORY_API = {"WRITABLE_ROLES": ["user", "assistant"]}  # type: ignore[attr-defined]
    assert api.post(url_of(chat, "messages/"), said("Sure.", role="assistant"), format="json").status_code == 201


def test_messages_are_read_from_both_ends(api: APIClient, chat: SessionHandle) -> None:
    chat.append(*[ChatMessage.human(f"m{position}") for position in range(3, 11)])

    def positions(url: str) -> tuple[list[int], dict[str, str]]:
        page = api.get(url).json()
        return [one["position"] for one in page["results"]], page

    first, page = positions(url_of(chat, "messages/?limit=4"))
    second, page = positions(page["next"])
    assert (first, second) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert positions(page["previous"])[0] == first
    last, page = positions(url_of(chat, "messages/?limit=3&ordering=-position"))
    assert (last, positions(page["next"])[0]) == ([10, 9, 8], [7, 6, 5])
    assert positions(url_of(chat, "messages/?after=2&before=6"))[0] == [3, 4, 5]
    assert positions(url_of(chat, "messages/?after=9007199254740991"))[0] == []


def test_one_message(api: APIClient, chat: SessionHandle) -> None:
    shown = api.get(url_of(chat, "messages/1/")).json()
    assert shown["message"] == {"role": "user", "content": "What is Rust?"}
    assert (shown["position"], shown["kind"], shown["metadata"], shown["redacted"]) == (1, "chat", {}, False)
    for position in ("3", "0", "-1", "x", "9" * 30):
        missing = api.get(url_of(chat, f"messages/{position}/"))
        assert (missing.status_code, missing.json()["code"]) == (404, "unknown_message")


def test_a_message_is_emptied(api: APIClient, chat: SessionHandle) -> None:
    assert api.post(url_of(chat, "messages/1/redact/"), {}, format="json").json() == {"sessions": 1}
    shown = api.get(url_of(chat, "messages/1/")).json()
    assert (shown["message"]["content"], shown["redacted"]) == ("", True)
    assert api.post(url_of(chat, "messages/9/redact/"), {}, format="json").json()["code"] == "unknown_message"


def test_truncating_takes_the_state_that_is_meant(api: APIClient, chat: SessionHandle) -> None:
    url, body = url_of(chat, "truncate/"), {"after": 1}
    assert api.post(url, body, format="json").json()["code"] == "precondition_required"
    tag = api.get(url_of(chat, "context/"))["ETag"]
    assert api.post(url, body, format="json", headers={"If-Match": tag}).json() == {"removed": 1}
    chat.append(ChatMessage.ai("Another answer."))
    again = api.post(url, body, format="json", headers={"If-Match": f"W/{tag}"})
    assert (again.status_code, again.json()["code"]) == (412, "stale_revision")
    assert row_of(chat).last_position == 2
    for header in ('"x-1"', '"99999999999999999999-a"'):
        assert api.post(url, body, format="json", headers={"If-Match": header}).status_code == 412
    for header in ("x", tag.strip('"')):
        refused = api.post(url, body, format="json", headers={"If-Match": header})
        assert (refused.status_code, refused.json()["code"]) == (412, "invalid_etag")
    assert api.post(url, body, format="json", headers={"If-Match": "*"}).json() == {"removed": 1}


def test_clearing(api: APIClient, chat: SessionHandle) -> None:
    assert api.post(url_of(chat, "clear/"), {}, format="json").status_code == 204
    assert api.get(url_of(chat)).data["messages"] == 0


def test_a_copy_belongs_to_who_asks(api: APIClient, chat: SessionHandle, anna: User) -> None:
    copy = api.post(url_of(chat, "fork/"), {"at": 1, "key": "what if"}, format="json")
    assert (copy.status_code, copy.data["messages"], copy.data["fork_position"]) == (201, 1, 1)
    assert models.Session.objects.get(key="what if").owner == anna
    assert api.get(copy["Location"]).data == copy.data
    assert api.post(url_of(chat, "fork/"), {"at": 1, "key": "main"}, format="json").json()["code"] == "session_exists"
    beyond = api.post(url_of(chat, "fork/"), {"at": 7}, format="json")
    assert (beyond.status_code, beyond.json()["code"]) == (409, "unknown_message")
    assert api.post(url_of(chat, "fork/"), {"at": 0}, format="json").data["messages"] == 0


def test_an_export_is_a_record(api: APIClient, chat: SessionHandle) -> None:
    answer = api.get(url_of(chat, "export/"))
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/jsonl")
    record = json.loads(b"".join(answer.streaming_content))  # type: ignore[attr-defined]
    assert (record["key"], len(record["messages"]), record["owner"]) == ("main", 2, "anna")
    empty = api.post(ROOT, {}, format="json")
    assert b"".join(api.get(f"{empty['Location']}export/").streaming_content) == b""  # type: ignore[attr-defined]


def test_what_is_wrong_is_said_with_where_it_is(api: APIClient, chat: SessionHandle) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user"}]
    [error] = api.post(url_of(chat, "messages/"), {"messages": messages}, format="json").json()["errors"]
    assert (error["pointer"], error["code"]) == ("/messages/1", "invalid_message")
    [error] = api.get(f"{ROOT}?ordering=-updated_at").json()["errors"]
    assert "-created, created, -updated, updated" in error["detail"]
    [error] = api.get(f"{ROOT}?key=main").json()["errors"]
    assert "cursor" in error["detail"]
    [error] = api.get(f"{ROOT}?created_after=2026-01-01T00:00:00").json()["errors"]
    assert "%2B" in error["detail"]
    used = api.post(url_of(chat, "messages/"), said("a") | {"usage": {"total_tokens": 3}}, format="json")
    assert (used.status_code, "Leave usage out" in used.json()["detail"]) == (403, True)


class WhileSomebodyElseWrites(BasePermission):
    """Has somebody else say something after the session was found, and before anything is done to it."""

    def has_object_permission(self, request: Any, view: Any, obj: models.Session) -> bool:
        memories[obj.alias].append(obj, ChatMessage.human("from another window"))
        return True


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("delete", "", None),
        ("patch", "", {"title": "x"}),
        ("post", "clear/", {}),
        ("post", "truncate/", {"after": 1}),
        ("post", "messages/", said("a")),
        ("post", "messages/1/redact/", {}),
        ("post", "fork/", {"at": 1}),
    ],
)
def test_what_is_guarded_is_not_done_to_what_has_changed_meanwhile(
    api: APIClient, chat: SessionHandle, settings: Any, method: str, path: str, body: Any
) -> None:
    tag = api.get(url_of(chat))["ETag"]
    settings.CONVMEMORY_API = {"PERMISSION_CLASSES": ["tests.api.test_messages.WhileSomebodyElseWrites"]}
    before = row_of(chat).last_position
    answer = getattr(api, method)(url_of(chat, path), body, format="json", headers={"If-Match": tag})
    assert (answer.status_code, answer.json()["code"]) == (412, "stale_revision")
    assert (row_of(chat).last_position, models.Session.objects.count()) == (before + 1, 1)
    assert not models.Message.objects.exclude(redacted_at=None).exists()
