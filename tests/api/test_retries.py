"""Requests with an ``Idempotency-Key``: a retry gets the answer of the first try, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from tests.api.conftest import FIRST, ROOT, SECOND, messages_body, row_of, url_of
from tests.api.test_hard_input import assert_problem

pytestmark = pytest.mark.vendors

KEY = {"Idempotency-Key": "k"}


def post(api: APIClient, url: str, body: Any, **headers: str) -> Any:
    return api.post(url, body, headers=KEY | headers)


def test_a_retry_of_a_new_session_gets_the_session(api: APIClient) -> None:
    first, again = (post(api, ROOT, {"title": "Lisbon"}) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert (again.json(), again["Location"], again["ETag"]) == (first.json(), first["Location"], first["ETag"])
    assert models.Session.objects.count() == 1
    for body in ({"title": "Porto"}, {"title": "Lisbon", "key": "trip"}, {}):
        assert_problem(post(api, ROOT, body), 422, "idempotency_conflict")


def test_a_retry_of_a_copy_gets_the_copy(api: APIClient, chat: SessionHandle) -> None:
    tag = api.get(url_of(chat))["ETag"]
    first = post(api, url_of(chat, "fork/"), {"at": SECOND, "title": "Another way"}, **{"If-Match": tag})
    chat.append(ChatMessage.human("meanwhile"))
    again = post(api, url_of(chat, "fork/"), {"at": SECOND, "title": "Another way"}, **{"If-Match": tag})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert models.Session.objects.count() == 2
    assert_problem(post(api, url_of(chat, "fork/"), {"at": FIRST}, **{"If-Match": tag}), 422, "idempotency_conflict")
    assert post(api, ROOT, {}).json()["code"] == "idempotency_conflict"


@pytest.mark.parametrize("operation", ["messages/", "replace/"])
def test_a_retry_is_answered_before_its_etag_is_compared(api: APIClient, chat: SessionHandle, operation: str) -> None:
    body = messages_body("Why?") | ({"after": FIRST} if operation == "replace/" else {})
    tag = {"If-Match": api.get(url_of(chat))["ETag"]}
    first = post(api, url_of(chat, operation), body, **tag)
    again = post(api, url_of(chat, operation), body, **tag)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json() | {"replayed": True}
    assert_problem(post(api, url_of(chat, operation), body | messages_body("How?"), **tag), 422, "idempotency_conflict")
    # Another key is a new request, which the client has made for another state.
    assert_problem(
        api.post(url_of(chat, operation), body, headers=tag | {"Idempotency-Key": "another"}), 412, "stale_revision"
    )
    assert row_of(chat).last_position == first.json()["last_position"]


def test_a_retry_after_a_clear_stores_nothing_and_says_so(api: APIClient, chat: SessionHandle) -> None:
    post(api, url_of(chat, "messages/"), messages_body("Why?"))
    assert api.post(url_of(chat, "clear/"), {}).status_code == 204
    again = post(api, url_of(chat, "messages/"), messages_body("Why?"))
    assert (again.status_code, again.json()["code"]) == (422, "idempotency_conflict")
    assert "were removed since" in again.json()["detail"]
    assert models.Message.objects.count() == 0
