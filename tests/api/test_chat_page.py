"""What a chat page needs of the API: lists with previews, an archive, stars, feedback, other answers."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api.serializers import sessions
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from tests.api.conftest import FIRST, NO_MESSAGE, ROOT, SECOND, messages_body, url_of
from tests.api.test_hard_input import assert_problem

pytestmark = pytest.mark.vendors

PARTS = [{"type": "text", "text": "Look:"}, {"type": "text", "text": "a cat"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"secret": 1}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 30_000}}


def keys(api: APIClient, query: str = "") -> list[str]:
    return [session["key"] for session in api.get(f"{ROOT}?{query}").json()["results"]]


def listed(api: APIClient, chat: SessionHandle) -> Any:
    [session] = [row for row in api.get(ROOT).json()["results"] if row["key"] == chat.key]
    return session


# Previews.


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (ChatMessage.ai("ä" * 500), "ä" * sessions.MAX_TEXT),
        (ChatMessage.human(PARTS), "Look:\na cat"),
        (ChatMessage.human([*PARTS, IMAGE]), ""),
        (ChatMessage.ai(tool_calls=[CALL]), ""),
    ],
)
def test_a_list_shows_the_last_message(api: APIClient, chat: SessionHandle, message: ChatMessage, text: str) -> None:
    chat.append(message)
    stored = api.get(url_of(chat, f"messages/{chat.history()[-1].id}/")).json()
    same = {field: stored[field] for field in ("position", "created_at", "redacted")}
    assert listed(api, chat)["last_message"] == {"role": message.role, "text": text, **same}


def test_a_preview_shows_nothing_of_a_redacted_message(api: APIClient, chat: SessionHandle) -> None:
    chat.redact(2)
    preview = listed(api, chat)["last_message"]
    assert (preview["role"], preview["text"], preview["redacted"]) == ("assistant", "", True)
    api.post(ROOT, {})
    assert api.get(ROOT).json()["results"][0]["last_message"] is None


# The archive and the stars.


def test_a_list_leaves_out_what_is_archived(api: APIClient, chat: SessionHandle) -> None:
    api.post(ROOT, {"key": "other"})
    before = api.get(url_of(chat)).json()
    archived = api.patch(url_of(chat), {"archived": True})
    assert (archived.json()["archived"], archived.json()["updated_at"]) == (True, before["updated_at"])
    assert archived.json()["revision"] == before["revision"]
    assert (keys(api), keys(api, "archived=true"), keys(api, "archived=any")) == (
        ["other"],
        ["main"],
        ["other", "main"],
    )
    assert api.get(url_of(chat)).json()["archived"] is True
    found = api.get("/api/memory/search/?q=Rust").json()["results"]
    assert {hit["session"]["archived"] for hit in found} == {True}
    api.patch(url_of(chat), {"archived": False})
    assert keys(api) == ["other", "main"]
    assert (keys(api, "key=main"), keys(api, "key=Main"), keys(api, "key=mai")) == (["main"], [], [])


def test_starred_sessions_are_listed_by_themselves_in_pages(api: APIClient, anna: User) -> None:
    for number in range(6):
        memories["default"].session(f"s{number}", owner=anna).create()
    for key in ("s1", "s4", "s2"):
        url = f"{ROOT}{models.Session.objects.get(key=key).public_id}/"
        assert api.patch(url, {"starred": True}).json()["starred"] is True
    assert api.patch(url, {"starred": True}).status_code == 200  # It keeps its place.
    assert keys(api, "starred=true") == ["s4", "s2", "s1"]
    assert keys(api, "starred=false") == ["s5", "s3", "s0"]
    in_order, address = [], f"{ROOT}?ordering=-starred&limit=1"
    while address:
        page = api.get(address).json()
        in_order += [session["key"] for session in page["results"]]
        address = page["next"]
    assert in_order == ["s2", "s4", "s1"]
    assert keys(api, "ordering=starred") == ["s1", "s4", "s2"]
    assert keys(api, "ordering=starred&starred=false") == ["s1", "s4", "s2"]


# Feedback.


def test_a_user_rates_a_reply(api: APIClient, chat: SessionHandle) -> None:
    before = api.get(url_of(chat))
    headers = {"If-Match": before["ETag"]}
    rated = api.patch(url_of(chat, f"messages/{SECOND}/"), {"metadata": {"thumb": "up"}}, headers=headers)
    assert (rated.status_code, rated.json()["metadata"]) == (200, {"thumb": "up"})
    assert rated.json() == api.get(url_of(chat, f"messages/{SECOND}/")).json()
    after = api.get(url_of(chat))
    assert (rated["ETag"], after.json()["updated_at"]) == (after["ETag"], before.json()["updated_at"])
    again = api.patch(url_of(chat, f"messages/{SECOND}/"), {"metadata": {}}, headers=headers)
    assert again.json()["metadata"] == {}
    chat.append(ChatMessage.human("What is Go?"))
    stale = api.patch(url_of(chat, f"messages/{SECOND}/"), {"metadata": {}}, headers=headers)
    assert stale.json()["code"] == "stale_revision"


def test_a_patch_without_fields_changes_nothing(api: APIClient, chat: SessionHandle) -> None:
    tag = api.get(url_of(chat))["ETag"]
    assert api.patch(url_of(chat, f"messages/{SECOND}/"), {})["ETag"] == tag


def test_feedback_that_is_refused(api: APIClient, chat: SessionHandle) -> None:
    for message_id in (NO_MESSAGE, "1", "x"):
        assert_problem(api.patch(url_of(chat, f"messages/{message_id}/"), {"metadata": {}}), 404, "unknown_message")
    chat.redact(2)
    assert_problem(
        api.patch(url_of(chat, f"messages/{SECOND}/"), {"metadata": {"thumb": "up"}}), 409, "message_redacted"
    )
    bodies: list[Any] = [{"content": "x"}, {"metadata": []}, {"metadata": None}]
    for body in bodies:
        assert api.patch(url_of(chat, f"messages/{FIRST}/"), body).status_code == 400


# Ids.


# Other answers.


def test_the_last_turn_is_replaced(api: APIClient, chat: SessionHandle) -> None:
    url, body = url_of(chat, "replace/"), {"after": None, **messages_body("What is Go?")}
    assert api.post(url, body).json()["code"] == "precondition_required"
    # The tag of the list of messages names the state, too.
    tag = api.get(url_of(chat, "messages/"))["ETag"]
    replaced = api.post(url, body, headers={"If-Match": tag})
    assert (replaced.status_code, replaced.json()["first_position"]) == (201, 1)
    assert [message.message.text for message in chat.history()] == ["What is Go?"]
    assert_problem(api.post(url, body, headers={"If-Match": tag}), 412, "stale_revision")
    assert_problem(api.post(url, body | {"after": NO_MESSAGE}, headers={"If-Match": "*"}), 409, "unknown_message")


def test_a_copy_has_a_title_and_names_its_parent(api: APIClient, chat: SessionHandle) -> None:
    chat.update(title="Rust")
    parent = api.get(url_of(chat)).json()
    plain = api.post(url_of(chat, "fork/"), {"at": FIRST}).json()
    titled = api.post(url_of(chat, "fork/"), {"at": FIRST, "title": "What if"}).json()
    assert (plain["title"], titled["title"]) == ("Rust", "What if")
    assert (plain["forked_from"], parent["forked_from"]) == (parent["id"], None)
    tag = api.get(titled["url"])["ETag"]
    copy = api.post(f"{titled['url']}fork/", {"at": FIRST}).json()
    assert copy["forked_from"] == titled["id"]
    # The copy of a deleted copy is a copy of the original.
    api.delete(titled["url"])
    assert api.get(copy["url"]).json()["forked_from"] == parent["id"]
    api.delete(parent["url"])
    changed = api.get(copy["url"], headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["forked_from"]) == (200, None)


# Entity tags of lists.


def test_a_list_of_sessions_has_a_tag_of_what_it_shows(api: APIClient, chat: SessionHandle) -> None:
    tag = {"If-None-Match": api.get(ROOT)["ETag"]}
    same = api.get(ROOT, headers=tag)
    assert (same.status_code, same.content, same["ETag"]) == (304, b"", tag["If-None-Match"])
    assert api.get(f"{ROOT}?limit=1&archived=any", headers=tag).status_code == 304
    for change in (
        lambda: chat.append(ChatMessage.human("more")),
        lambda: chat.update(starred=True),
        lambda: models.Session.objects.update(title="by hand"),
        lambda: api.post(ROOT, {}),
    ):
        tag = {"If-None-Match": api.get(ROOT)["ETag"]}
        change()
        assert api.get(ROOT, headers=tag).status_code == 200
