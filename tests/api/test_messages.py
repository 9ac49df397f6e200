"""Messages over HTTP: how they are stored, read, redacted, deleted and copied."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from rest_framework.permissions import BasePermission
from rest_framework.test import APIClient

from django_convmemory import clock, models
from django_convmemory.contrib import responses_items
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from tests.api.conftest import FIRST, NO_MESSAGE, ROOT, messages_body, row_of, url_of
from tests.api.test_hard_input import assert_problem

pytestmark = pytest.mark.vendors


def test_one_message_or_several_are_stored(api: APIClient, chat: SessionHandle) -> None:
    single = api.post(url_of(chat, "messages/"), messages_body("And ownership?"))
    assert single.status_code == 201, single.data
    assert (single.data["first_position"], single.data["last_position"], single.data["replayed"]) == (3, 3, False)
    many = api.post(url_of(chat, "messages/"), messages_body("a", "b"))
    assert (many.data["first_position"], many.data["last_position"]) == (4, 5)
    assert [row.message.text for row in chat.history(after=2)] == ["And ownership?", "a", "b"]


@pytest.mark.parametrize("role", ["system", "developer", "assistant", "tool"])
def test_a_user_may_store_only_user_messages(api: APIClient, chat: SessionHandle, role: str) -> None:
    message = {"role": role, "content": "I obey.", **({"tool_call_id": "c"} if role == "tool" else {})}
    both = {"messages": [{"role": "user", "content": "hello"}, message]}
    for path, body in (("messages/", both), ("replace/", {"after": None, **both})):
        refused = api.post(url_of(chat, path), body, headers={"If-Match": "*"})
        assert_problem(refused, 403, "role_not_allowed")
    assert row_of(chat).last_position == 2


def test_a_trusted_service_sends_the_usage_of_a_reply(service: APIClient, chat: SessionHandle) -> None:
    reply = messages_body("Sure.", role="assistant") | {"usage": {"prompt_tokens": 12, "completion_tokens": 3}}
    assert service.post(url_of(chat, "messages/"), reply).status_code == 201
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
    assert service.post(url_of(chat, "messages/"), exchange).status_code == 201
    stored = service.get(url_of(chat, "messages/?after=3")).json()["results"]
    result = {key: value for key, value in exchange["messages"][2].items() if key != "kind"}
    assert [message["message"] for message in stored] == [exchange["messages"][1], result]
    assert [message["kind"] for message in stored] == ["chat", "lookup"]
    late = {"messages": [{"role": "tool", "tool_call_id": "c9", "content": "?"}]}
    assert_problem(service.post(url_of(chat, "messages/"), late), 409, "tool_result_refused")


def test_messages_are_listed_in_both_orders(api: APIClient, chat: SessionHandle) -> None:
    chat.append(*[ChatMessage.human(f"m{position}") for position in range(3, 11)])

    def positions(url: str) -> tuple[list[int], dict[str, str]]:
        page = api.get(url).json()
        return [message["position"] for message in page["results"]], page

    first, page = positions(url_of(chat, "messages/?limit=4"))
    second, page = positions(page["next"])
    assert (first, second) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert positions(page["previous"])[0] == first
    last, page = positions(url_of(chat, "messages/?limit=3&ordering=-position"))
    assert (last, positions(page["next"])[0]) == ([10, 9, 8], [7, 6, 5])
    assert positions(url_of(chat, "messages/?after=2&before=6"))[0] == [3, 4, 5]
    assert positions(url_of(chat, "messages/?after=9007199254740991"))[0] == []


def test_a_message_is_read_by_its_id(api: APIClient, chat: SessionHandle) -> None:
    stored = api.get(url_of(chat, f"messages/{FIRST}/")).json()
    assert stored["message"] == {"role": "user", "content": "What is Rust?"}
    assert (stored["position"], stored["kind"], stored["metadata"], stored["redacted"]) == (1, "chat", {}, False)
    for message_id in (NO_MESSAGE, "1", "-1", "x", "9" * 30):
        assert_problem(api.get(url_of(chat, f"messages/{message_id}/")), 404, "unknown_message")
    # A redacted one is empty.
    assert api.post(url_of(chat, f"messages/{FIRST}/redact/"), {}).json() == {
        "sessions": 1,
        "in_flight": False,
    }
    stored = api.get(url_of(chat, f"messages/{FIRST}/")).json()
    assert (stored["message"]["content"], stored["redacted"]) == ("", True)
    assert api.post(url_of(chat, f"messages/{NO_MESSAGE}/redact/"), {}).json()["code"] == "unknown_message"


def test_the_answer_to_a_redaction_says_that_a_request_may_be_on_its_way(api: APIClient, chat: SessionHandle) -> None:
    models.Session.objects.update(lease_expires_at=clock.Clock() + dt.timedelta(minutes=5))
    answer = api.post(url_of(chat, f"messages/{FIRST}/redact/"), {}).json()
    assert answer == {"sessions": 1, "in_flight": True}


def test_truncating_requires_the_current_etag(api: APIClient, chat: SessionHandle) -> None:
    url, body = url_of(chat, "truncate/"), {"after": FIRST}
    assert api.post(url, body).json()["code"] == "precondition_required"
    tag = api.get(url_of(chat, "context/"))["ETag"]
    assert api.post(url, body, headers={"If-Match": tag}).json() == {"removed": 1}
    chat.append(ChatMessage.ai("Another answer."))
    assert_problem(api.post(url, body, headers={"If-Match": f"W/{tag}"}), 412, "stale_revision")
    assert row_of(chat).last_position == 2
    for header in ('"x-1"', '"99999999999999999999-a"'):
        assert api.post(url, body, headers={"If-Match": header}).status_code == 412
    for header in ("x", tag.strip('"'), tag[:-1], f"{tag} {tag}", f"{tag}, x", f"*, {tag}", f"w/{tag}", '"'):
        refused = api.post(url, body, headers={"If-Match": header})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_etag"), header
    tags = f'"7-x", {api.get(url_of(chat))["ETag"]}'
    assert api.post(url, body, headers={"If-Match": tags}).json() == {"removed": 1}
    assert api.post(url, body, headers={"If-Match": "*"}).json() == {"removed": 0}


def test_if_match_compares_what_the_request_changes(api: APIClient, chat: SessionHandle) -> None:
    def status(method: str, path: str, body: Any, tag: str) -> int:
        url = url_of(chat, path)
        return int(getattr(api, method)(url, body, headers={"If-Match": tag}).status_code)

    tag = api.get(url_of(chat))["ETag"]
    # A fold changes what a response shows, and neither messages nor the title.
    models.Session.objects.update(current_version=F("current_version") + 1, covered_position=1)
    assert api.get(url_of(chat))["ETag"] != tag
    assert status("patch", "", {"title": "Rust"}, tag) == 200
    assert status("patch", "", {"title": "Go"}, tag) == 412
    assert status("delete", "", None, tag) == 412
    models.Session.objects.update(current_version=0, covered_position=0)
    assert status("post", "truncate/", {"after": FIRST}, tag) == 200
    assert status("post", "truncate/", {"after": None}, tag) == 412
    assert status("patch", "", {"title": "Go"}, api.get(url_of(chat))["ETag"]) == 200


def test_a_copy_belongs_to_the_user_who_makes_it(api: APIClient, chat: SessionHandle, anna: User) -> None:
    copy = api.post(url_of(chat, "fork/"), {"at": FIRST, "key": "what if"})
    assert (copy.status_code, copy.data["messages"], copy.data["fork_position"]) == (201, 1, 1)
    assert models.Session.objects.get(key="what if").owner == anna
    assert api.get(copy["Location"]).data == copy.data
    assert api.post(url_of(chat, "fork/"), {"at": FIRST, "key": "main"}).json()["code"] == "session_exists"
    assert_problem(api.post(url_of(chat, "fork/"), {"at": NO_MESSAGE}), 409, "unknown_message")


def test_an_export_is_one_record(api: APIClient, chat: SessionHandle) -> None:
    response = api.get(url_of(chat, "export/"))
    assert (response.status_code, response["Content-Type"]) == (200, "application/jsonl")
    record = json.loads(b"".join(response.streaming_content))  # type: ignore[attr-defined]
    assert (record["key"], len(record["messages"]), record["owner"]) == ("main", 2, "anna")
    empty = api.post(ROOT, {})
    assert b"".join(api.get(f"{empty['Location']}export/").streaming_content) == b""  # type: ignore[attr-defined]


def test_errors_name_their_place_and_the_repair(api: APIClient, chat: SessionHandle) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user"}]
    [error] = api.post(url_of(chat, "messages/"), {"messages": messages}).json()["errors"]
    assert (error["pointer"], error["code"]) == ("/messages/1", "invalid_message")
    [error] = api.get(f"{ROOT}?ordering=-updated_at").json()["errors"]
    assert "-created, created, -updated, updated" in error["detail"]
    [error] = api.get(f"{ROOT}?kee=main").json()["errors"]
    assert "cursor" in error["detail"]
    [error] = api.get(f"{ROOT}?created_after=2026-01-01T00:00:00").json()["errors"]
    assert "%2B" in error["detail"]
    used = api.post(url_of(chat, "messages/"), messages_body("a") | {"usage": {"total_tokens": 3}})
    assert (used.status_code, "Leave usage out" in used.json()["detail"]) == (403, True)


class AnotherRequestMeanwhile(BasePermission):
    """Appends a message as another request would, between the reading of the session and the change."""

    def has_object_permission(self, request: Any, view: Any, obj: models.Session) -> bool:
        memories[obj.alias].append(obj, ChatMessage.human("from another window"))
        return True


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("delete", "", None),
        ("patch", "", {"title": "x"}),
        ("post", "clear/", {}),
        ("post", "truncate/", {"after": FIRST}),
        ("post", "messages/", messages_body("a")),
        ("post", "replace/", {"after": FIRST, **messages_body("a")}),
        ("patch", f"messages/{FIRST}/", {"metadata": {"thumb": "up"}}),
        ("post", f"messages/{FIRST}/redact/", {}),
        ("post", "fork/", {"at": FIRST}),
    ],
)
def test_if_match_holds_until_the_change_is_made(
    api: APIClient, chat: SessionHandle, settings: Any, method: str, path: str, body: Any
) -> None:
    tag = api.get(url_of(chat))["ETag"]
    settings.CONVMEMORY_API = {"PERMISSION_CLASSES": ["tests.api.test_messages.AnotherRequestMeanwhile"]}
    before = row_of(chat).last_position
    assert_problem(getattr(api, method)(url_of(chat, path), body, headers={"If-Match": tag}), 412, "stale_revision")
    assert (row_of(chat).last_position, models.Session.objects.count()) == (before + 1, 1)
    assert not models.Message.objects.exclude(redacted_at=None).exists()


def test_the_item_for_which_a_message_stands_is_shown_until_it_is_redacted(api: APIClient, chat: SessionHandle) -> None:
    item = {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": '{"secret": 1}', "id": "fc_1"}
    chat.append(responses_items.message(item))

    def shown() -> tuple[Any, ...]:
        *_, last = api.get(url_of(chat, "messages/")).data["results"]
        [called] = last["message"]["tool_calls"]
        return last["format"], last["item"], called["function"]["arguments"]

    assert shown() == ("responses", item, '{"secret": 1}')
    assert {row["format"] for row in api.get(url_of(chat, "messages/")).data["results"][:2]} == {"chat"}
    chat.redact(3)
    assert shown() == ("responses", None, "{}")
