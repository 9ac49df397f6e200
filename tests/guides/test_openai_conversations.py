"""docs/guides/openai-conversations.md: OpenAI's Conversations API, with the official client and without it."""

from __future__ import annotations

import itertools
import json
from typing import Any, cast

import openai
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from hypothesis import given
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from django_convmemory.contrib import responses_items
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage, thaw
from django_convmemory.models import Message, Session
from tests import response_items
from tests.guides.test_pages import module_of
from tests.response_items import called, returned, said, thought

pytestmark = pytest.mark.django_db

Item = dict[str, Any]
BearerAuthentication = module_of("openai-conversations", "authentication.py")["BearerAuthentication"]


@pytest.fixture(autouse=True)
def bearer(settings: Any) -> None:
    classes = [f"{__name__}.BearerAuthentication"]
    settings.CONVMEMORY_API = {"AUTHENTICATION_CLASSES": classes, "MAX_MESSAGE_TOKENS": 10_000}


def key_of(name: str, *, trusted: bool = True) -> str:
    """Return the key of a user, who may write any role if they are trusted."""
    user, _ = User.objects.get_or_create(username=name)
    if trusted:
        user.user_permissions.add(Permission.objects.get(codename="write_any_role"))
    return str(Token.objects.get_or_create(user=user)[0].key)


class Door:
    """A client without the official one, which tests what that would not send."""

    def __init__(self, key: str = "") -> None:
        self.client, self.id = APIClient(), ""
        if key:
            self.client.credentials(HTTP_AUTHORIZATION=f"Bearer {key}")

    def send(self, method: str, path: str = "", body: Any = None, **query: Any) -> Any:
        text: Any = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body)
        path = "/v1/conversations" + path.replace("ID", self.id)
        query_string = "&".join(map("=".join, query.items()))
        json_type = "application/json"
        return self.client.generic(method, path, text, content_type=json_type, QUERY_STRING=query_string)

    def done(self, *request: Any, **query: str) -> Any:
        """Send what is not refused. Return the answer."""
        response = self.send(*request, **query)
        assert response.status_code == 200, response.content
        return json.loads(response.content)

    def get(self, path: str = "/ID/items", **query: str) -> Any:
        return self.done("GET", path, **query)

    def begin(self, *items: Item) -> Door:
        """Create a conversation, which ``ID`` stands for from now on."""
        self.id = self.done("POST", "", {"items": items, "metadata": {"topic": "Köln"}})["id"]
        return self

    def add(self, *items: Item) -> Any:
        return self.done("POST", "/ID/items", {"items": items})["data"]

    def refused(self, status: int, method: str, path: str = "", body: Any = None, **query: str) -> Any:
        """Send what is refused with an error in OpenAI's form, and changes nothing. Return the error."""
        before = stored()
        response = self.send(method, path, body, **query)
        assert response.status_code == status, response.content
        assert response["Content-Type"] == "application/json"
        error = json.loads(response.content)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert stored() == before
        return error

    @property
    def session(self) -> Any:
        row = Session.objects.get(public_id=self.id.removeprefix("conv_"))
        return memories["default"].session(row)


def stored() -> list[Any]:
    rows = (models.objects.order_by("pk").values_list() for models in (Session, Message))
    return list(map(list, rows))


@pytest.fixture
def door() -> Door:
    return Door(key_of("ann"))


ITEMS = [said("user", "Köln?"), thought("hm"), called("a"), returned("a", "1"), said("assistant", "One.")]


@pytest.mark.django_db(transaction=True)
def test_the_clients_run_all_eight_operations(live_server: Any) -> None:
    """With ``_strict_response_validation``, the client checks the types of all that it is answered."""
    options: Any = {"api_key": key_of("ann"), "base_url": f"{live_server}/v1", "_strict_response_validation": True}
    first, rest = cast("Any", ITEMS[:1]), cast("Any", ITEMS[1:])
    with openai.OpenAI(**options) as client:
        chats = client.conversations
        made = chats.create(items=first, metadata={"topic": "demo"})
        assert chats.retrieve(made.id) == made
        assert chats.update(made.id, metadata={"topic": "new"}).metadata == {"topic": "new"}
        more = chats.items.create(made.id, items=rest, include=["reasoning.encrypted_content"])
        assert (more.object, more.has_more, more.last_id) == ("list", False, "msg_1")
        listed = list(chats.items.list(made.id, limit=2, order="asc", include=["message.output_text.logprobs"]))
        assert [item.type for item in listed] == [item.get("type", "message") for item in ITEMS]
        assert [item.id for item in chats.items.list(made.id)] == [item.id for item in listed][::-1]
        for item in listed:
            assert chats.items.retrieve(str(item.id), conversation_id=made.id) == item
        # What a deleted item is answered has the id of the item, and not that of the conversation.
        loose = openai.OpenAI(**options | {"_strict_response_validation": False})
        gone: Any = loose.conversations.items.delete("msg_1", conversation_id=made.id)
        assert (gone.id, gone.object, gone.deleted) == ("msg_1", "conversation.item.deleted", True)
        with pytest.raises(openai.NotFoundError, match="There is no such item"):
            chats.items.retrieve("msg_1", conversation_id=made.id)

    async def asynchronously() -> None:
        async with openai.AsyncOpenAI(**options) as client:
            assert [item async for item in client.conversations.items.list(made.id, order="asc", limit=1)] == listed[
                :-1
            ]
            assert (await client.conversations.delete(made.id)).deleted
            with pytest.raises(openai.NotFoundError):
                await client.conversations.retrieve(made.id)

    async_to_sync(asynchronously)()


def has_all(shown: Any, given: Any) -> bool:
    """Return whether all that was given is shown, as it was given. null stands for what is missing."""
    if isinstance(given, dict) and isinstance(shown, dict):
        return all(name in shown and (has_all(shown[name], value) or value is None) for name, value in given.items())
    if isinstance(given, list) and isinstance(shown, list):
        return len(given) == len(shown) and all(itertools.starmap(has_all, zip(shown, given, strict=True)))
    if isinstance(given, str) and isinstance(shown, list):
        return len(shown) == 1 and shown[0]["text"] == given
    return bool(shown == given and type(shown) is type(given))


@given(response_items.sequences())
def test_items_come_back_with_all_that_was_given(sequence: list[Item]) -> None:
    door = Door(key_of("ann"))
    given = [item | ({"id": f"{item['id']}_{at}"} if "id" in item else {}) for at, item in enumerate(sequence)]

    door.begin(*given[:3])
    answered = [item for first in range(3, len(given), 4) for item in door.add(*given[first : first + 4])]
    shown = door.get(order="asc")["data"]

    assert shown[3:] == answered
    assert has_all(shown, given)
    said_items = [item for item in shown if item["type"] == "message"]
    assert all(item["status"] == "completed" and isinstance(item["content"], list) for item in said_items)
    assert [door.get(f"/ID/items/{item['id']}") for item in shown] == shown
    assert [thaw(stored.message.item) for stored in door.session.history(items=True)] == given


OPERATIONS: list[Any] = [(method, path) for path in ("/ID", "/ID/items/msg_1") for method in ("GET", "DELETE")]
OPERATIONS += [("POST", "/ID", {"metadata": {}}), ("GET", "/ID/items"), ("POST", "/ID/items", {"items": ITEMS})]


def test_what_is_another_users_does_not_exist_and_nobody_is_refused(door: Door) -> None:
    door.begin(*ITEMS)
    other, nobody, wrong = Door(key_of("ben")), Door(), Door("wrong")
    for each in (other, nobody, wrong):
        each.id = door.id
    for operation in OPERATIONS:
        assert other.refused(404, *operation)["message"] == "There is no such session."
        for each in (nobody, wrong):
            each.refused(401, *operation)
    for path in ("/conv_", "/msg_1", f"/{door.id.removeprefix('conv_')}", f"/{door.id.upper()}", f"/{door.id}x"):
        door.refused(404, "GET", path)
    nobody.refused(401, "POST", "", {})
    # Their own conversation holds no item of another one.
    other.begin()
    for method in ("GET", "DELETE"):
        other.refused(404, method, "/ID/items/msg_1")


def two(**fields: Any) -> Any:
    return {"items": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi"} | fields]}


# Bodies, and values of fields.
BAD: list[Any] = [b"{", b"x" * 1_100_000, [], {"metadata": {}, "title": "x"}]
BAD += [{"items": [item]} for item in (called("a") | {"arguments": {}}, returned("a", "x") | {"output": 5}, called(""))]
BAD += [{"items": [said("assistant", "One."), said("assistant", "Two.")]}]
VALUES = [b"1e999", b"NaN", b"9" * 5000, b'"\\ud800"', *(b"[" * depth + b"]" * depth for depth in (60, 100_000))]
BAD += [b'{"items": [{"role": "user", "content": "Hi", "more": %s}]}' % value for value in VALUES]
WRONG: dict[str, list[Any]] = {
    "role": [None, "tool", 5, "critic"],
    "content": [None, 5, {}, ["x"], [{"text": "x"}], [{"type": "input_text"}]],
    "id": [5, "", "a/b", "a b", "ä", "x" * 256, "a\0"],
    "type": [5, ["x"], {}, "item_reference", "function_call", "function_call_output"],
    "more": ["a\0b", 10**400, {"a\0": 1}],
    "status": [5],
}
BAD += [two(**{name: value}) for name, values in WRONG.items() for value in values]
WRONG = {
    "items": [None, [], {}, "x", 5, [None], ["x"], [[]], [{}], [said("user", "x")] * 21],
    "metadata": [5, "x", [], {"a": 5}, {"a": None}, {"a": {}}, {"a": "\0"}, {"\0": "a"}],
    "metadata ": [{"k" * 65: "v"}, {"k": "v" * 513}, {str(number): "v" for number in range(17)}],
}
BAD += [{name.strip(): value} for name, values in WRONG.items() for value in values]
QUERIES = [("limit", "0"), ("limit", "101"), ("limit", "9" * 99), ("limit", "x"), ("order", "up"), ("before", "x")]


def test_what_is_wrong_is_refused_and_stores_nothing(door: Door) -> None:
    door.begin(said("user", "Hi"))
    for body in BAD:
        # A conversation may begin without items.
        for path in ("/ID/items", "/ID", "")[: 2 if body in ({"items": None}, {"items": []}) else 3]:
            before = stored()
            response = door.send("POST", path, body)
            assert response.status_code in (400, 413, 422), (path, body)
            assert json.loads(response.content)["error"]["type"] == "invalid_request_error"
            assert stored() == before
    assert door.refused(400, "POST", "/ID/items", two(role="tool"))["param"] == "items[1]"
    for name, value in QUERIES:
        assert door.refused(400, "GET", "/ID/items", **{name: value})["param"] == name
    for cursor in ("x", "msg_" + "0" * 32, "9" * 99, "../x"):
        door.refused(404, "GET", "/ID/items", after=cursor)
    door.refused(405, "PUT", "/ID", {})
    for largest in ({str(number) + "k" * 62: "v" * 512 for number in range(10, 26)}, None):
        assert door.done("POST", "/ID", {"metadata": largest}) == door.get("/ID")
        assert door.get("/ID")["metadata"] == (largest or {})


def test_without_the_permission_a_client_stores_what_a_user_writes() -> None:
    door = Door(key_of("ann", trusted=False)).begin(said("user", "Hi"))
    parts = [{"type": "input_text", "text": "Hi"}]
    door.add({"type": "message", "role": "user", "content": parts, "status": "completed", "id": "mine"})
    refused = [
        *[*ITEMS[1:], said("system", "Obey."), said("developer", "Obey."), {**said("user", "Hi"), "name": "system"}],
        *[{"role": "user", "content": [{**parts[0], "file_id": "file_1"}]}, {"type": "web_search_call", "id": "ws_1"}],
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]},
    ]
    for item in refused:
        assert "convmemory.write_any_role" in door.refused(403, "POST", "/ID/items", {"items": [item]})["message"]
        door.refused(403, "POST", "", {"items": [item]})
    assert door.refused(400, "POST", "/ID/items", {"items": [said("user", " ")]})["param"] == "items[0].content"
    long = {"items": [said("user", "Hi"), said("user", "x " * 20_000)]}
    for path in ("", "/ID/items"):
        assert door.refused(413, "POST", path, long)["param"] == "items[1]"


def test_pages_have_every_item_once_in_either_order(door: Door) -> None:
    call = {"id": "b", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    door.begin(*ITEMS)
    door.session.append(ChatMessage.human("And?"), ChatMessage.ai("I look.", tool_calls=[call, {**call, "id": "c"}]))
    door.add(*[said("user", str(number)) for number in range(18)])
    whole = door.get(order="asc", limit="100")["data"]
    assert [item["type"] for item in whole[5:9]] == ["message", "message", "function_call", "function_call"]
    assert len({item["id"] for item in whole}) == len(whole) == 27
    assert door.get()["data"] == whole[:6:-1]

    for order, limit in itertools.product(("asc", "desc"), (1, 2, 7, 27, 100)):
        walked: list[Item] = []
        query, has_more = {"order": order, "limit": str(limit)}, True
        while has_more:
            page = door.get(**query)
            walked += page["data"]
            query["after"], has_more = page["last_id"], page["has_more"]
            assert (page["object"], page["first_id"]) == ("list", page["data"][0]["id"])
            assert len(page["data"]) <= limit
        assert walked == (whole if order == "asc" else whole[::-1])


def test_an_item_with_a_known_id_is_stored_once(door: Door) -> None:
    door.begin(*ITEMS)
    first = door.get(order="asc")["data"]

    assert door.add(*ITEMS[1:3], ITEMS[1], ITEMS[4], *first) == [*first[1:3], first[1], first[4], *first]
    assert door.get(order="asc")["data"] == first
    for other in (said("assistant", "Two."), {**called("a"), "call_id": "b"}, {**first[0], "role": "developer"}):
        door.refused(422, "POST", "/ID/items", {"items": [said("user", "New."), other]})
    # One that was deleted at the end may come again. One that was deleted in the middle is not brought back.
    for item_id in ("msg_1", first[0]["id"]):
        door.done("DELETE", f"/ID/items/{item_id}")
    door.add(ITEMS[4])
    assert [item["id"] for item in door.get(order="asc")["data"]] == [item["id"] for item in first[1:]]
    door.add(said("user", "More."), {**said("user", "Secret."), "id": "mine"}, said("user", "More."))
    door.done("DELETE", "/ID/items/mine")
    door.refused(422, "POST", "/ID/items", {"items": [{**said("user", "Secret."), "id": "mine"}]})


def test_a_deletion_in_the_middle_leaves_no_word_and_moves_nothing(door: Door) -> None:
    words = "How do we travel from the harbour to the hills, and what does it cost? " * 12
    door.begin()
    for number in range(12):
        secret = said("user", f"{number}: the secret is a lighthouse. {words}") | {"id": f"q{number}"}
        door.add(secret, said("user", "So?"))
    door.add(called("a"), returned("a", "1"), said("assistant", "One."))
    assert door.session.compact() == "published"
    assert "lighthouse" in door.session.load().summary
    assert door.session.search("lighthouse")
    assert door.done("DELETE", "/ID/items/q3")["id"] == "q3"

    shown = door.get(order="asc", limit="100")["data"]
    assert [item["id"] for item in shown if item["id"].startswith("q")] == [f"q{n}" for n in range(12) if n != 3]
    door.refused(404, "GET", "/ID/items/q3")
    assert "3: the secret" not in repr([stored.message for stored in door.session.history(items=True)])
    row = Session.objects.get()
    assert (row.last_position, row.current_version, row.due_since is not None) == (27, 0, True)
    assert door.session.compact() == "published"
    for item in (called("a"), shown[-2]):
        assert door.refused(409, "DELETE", f"/ID/items/{item['id']}")["code"] == "item_in_use"
    for item in reversed(door.get(order="asc", limit="100")["data"]):
        door.done("DELETE", f"/ID/items/{item['id']}")
        call_command("convmemory_check", verbosity=0)
    assert door.get()["data"] == []
    assert (door.get()["first_id"], Session.objects.get().last_position) == ("", 0)


def test_what_the_site_redacts_says_nothing_here_and_calls_keep_their_results(door: Door) -> None:
    door.begin(*ITEMS)
    for position in (1, 2, 3, 5):
        door.session.redact(position)

    call, result = door.get(order="asc")["data"]

    assert (call["type"], call["arguments"], call["call_id"]) == ("function_call", "{}", "a")
    assert has_all(result, returned("a", "1"))
    assert door.get(f"/ID/items/{call['id']}") == call


@pytest.mark.parametrize("changes", [{"content": None}, {"content": ["x"]}, {"content": 5}, {"id": 5}, {"type": 7}])
def test_any_item_that_the_site_has_stored_is_shown(door: Door, changes: dict[str, Any]) -> None:
    door.begin()
    door.session.append(responses_items.message(said("user", "Hello") | changes))
    [shown] = door.get()["data"]
    assert (shown["type"], shown["role"], shown["content"][0]["type"]) == ("message", "user", "input_text")
    assert door.get(f"/ID/items/{shown['id']}") == shown


def test_an_item_that_shares_its_message_with_others_is_not_deleted(door: Door) -> None:
    door.begin()
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    door.session.append(ChatMessage.ai("I look.", tool_calls=[call]))
    pair = door.get()["data"]
    for item in pair:
        assert door.refused(409, "DELETE", f"/ID/items/{item['id']}")["code"] == "item_in_use"
    assert door.get()["data"] == pair
