"""Turns over HTTP: a client sends a question, and the site's function answers it."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.exceptions import PermissionDenied
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api.views.turns import TurnList
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.operations.turns import Turn
from tests.api.conftest import FIRST, client_of, messages_body, row_of, url_of
from tests.api.test_hard_input import assert_problem
from tests.test_changes_at_once import InThread

# A turn is answered outside a transaction.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendors]

EVENTS = {"Accept": "text/event-stream"}
# What the site's function does in a test.
answers: list[Callable[[Turn], Any]] = []


def ask(turn: Turn) -> Any:
    """The site's function."""
    return answers[-1](turn)


def options(request: Any) -> dict[str, Any]:
    return {"system": f"You speak with {request.user.username}."}


@pytest.fixture(autouse=True)
def responder(settings: Any) -> None:
    settings.CONVMEMORY_API = {"RESPONDER": f"{__name__}.ask"}
    answers[:] = [lambda turn: "Hello!"]


def says(*pieces: str) -> None:
    answers.append(lambda turn: iter(pieces))


def turns(api: APIClient, chat: SessionHandle, body: Any, **headers: str) -> Any:
    return api.post(url_of(chat, "turns/"), body, headers=headers)


def question(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"message": {"content": content, **fields}}


def events_of(response: Any) -> list[tuple[str, Any]]:
    assert response["Content-Type"] == "text/event-stream"
    found = []
    for block in b"".join(response).decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def texts(chat: SessionHandle) -> list[str]:
    return [stored.message.text for stored in chat.history()]


def test_a_question_is_answered(api: APIClient, chat: SessionHandle) -> None:
    answer = turns(api, chat, question(), **{"Idempotency-Key": "k"})
    assert answer.status_code == 201
    body = answer.json()
    assert (body["open"], body["replayed"], body["question"]["message"]) == (
        False,
        False,
        {"role": "user", "content": "Hi"},
    )
    assert body["reply"]["message"] == {"role": "assistant", "content": "Hello!"}
    assert body["messages"] == [body["question"], body["reply"]]
    assert body["messages"] == api.get(url_of(chat, "messages/?after=2")).json()["results"]

    answers.append(lambda turn: 1 / 0)
    again = turns(api, chat, question(), **{"Idempotency-Key": "k"})
    assert (again.status_code, again.json()) == (200, body | {"replayed": True})
    assert_problem(turns(api, chat, question("Bye"), **{"Idempotency-Key": "k"}), 422, "idempotency_conflict")
    # The tag is one of the state of the messages.
    tag = {"If-Match": answer["ETag"]}
    assert api.post(url_of(chat, "truncate/"), {"after": None}, headers=tag).status_code == 200


def test_the_function_gets_the_context_the_request_and_the_options(
    api: APIClient, chat: SessionHandle, settings: Any
) -> None:
    settings.CONVMEMORY_API |= {"RESPONDER_OPTIONS": f"{__name__}.options"}
    answers.append(lambda turn: f"{turn.context[0].text} {turn.request.user} {len(turn.context)}")
    assert turns(api, chat, question()).json()["reply"]["message"]["content"] == "You speak with anna. anna 4"
    settings.CONVMEMORY_API |= {"RESPONDER_OPTIONS": {"system": "Be kind."}}
    assert turns(api, chat, question()).json()["reply"]["message"]["content"] == "Be kind. anna 6"


def test_the_id_of_the_message_is_its_key(api: APIClient, chat: SessionHandle) -> None:
    own = str(uuid.uuid4())
    first = turns(api, chat, question(id=own)).json()
    assert first["question"]["id"] == own
    answers.append(lambda turn: 1 / 0)
    assert turns(api, chat, question(id=own)).json() == first | {"replayed": True}
    assert turns(api, chat, question("Bye", id=own)).status_code == 422
    # A message of a session has an id of its own, whatever the key.
    assert_problem(turns(api, chat, question("Bye", id=own), **{"Idempotency-Key": "k"}), 422, "idempotency_conflict")
    body = {"messages": [question(id=own)["message"] | {"role": "user"}]}
    assert api.post(url_of(chat, "messages/"), body).status_code == 422
    body["messages"] += [question(id=str(uuid.uuid4()))["message"] | {"role": "user"}] * 2
    del body["messages"][0]
    twice = api.post(url_of(chat, "messages/"), body)

    assert (twice.status_code, twice.json()["code"]) == (400, "invalid_message")
    assert len(texts(chat)) == 4


def test_a_message_that_is_stored_keeps_the_id_of_its_client(api: APIClient, chat: SessionHandle) -> None:
    own = str(uuid.uuid4())
    body = messages_body("Why?", "Really?")
    body["messages"][0]["id"] = own
    answer = api.post(url_of(chat, "messages/"), body)
    stored = answer.json()["messages"]
    assert (stored[0]["id"], answer.json()["ids"][0]) == (own, own)
    assert stored == api.get(url_of(chat, "messages/?after=2")).json()["results"]
    assert answer["ETag"] == api.get(url_of(chat, "messages/"))["ETag"]
    assert api.get(url_of(chat, f"messages/{own}/")).json() == stored[0]


def test_the_usage_is_null_if_the_provider_reports_none(api: APIClient, chat: SessionHandle) -> None:
    assert turns(api, chat, question()).json()["usage"] is None
    assert events_of(turns(api, chat, question("And?"), **EVENTS))[-1][1]["usage"] is None
    reply = {"choices": [{"message": {"role": "assistant", "content": "42"}}], "usage": {"prompt_tokens": 7}}
    answers.append(lambda turn: reply)
    usage = {"prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 0}
    assert turns(api, chat, question("So?")).json()["usage"] == usage


def test_events(api: APIClient, chat: SessionHandle) -> None:
    def search(turn: Turn) -> Iterator[Any]:
        if not turn.open_calls and len(turn.messages) == 1:
            turn.append(ChatMessage.ai("I look.", tool_calls=[{"id": "c", "type": "function", "function": {}}]))
        turn.append(turn.open_calls[0].result("found"))
        yield "He"
        yield "llo! \ud83d"
        yield "\ude00"

    answers.append(search)
    response = turns(api, chat, question(), **EVENTS)
    assert (response.status_code, response["Cache-Control"], response["X-Accel-Buffering"]) == (
        200,
        "no-store, no-transform, private, no-cache",
        "no",
    )
    found = events_of(response)
    assert [name for name, _ in found] == ["start", "message", "message", "delta", "delta", "delta", "done"]
    stored = api.get(url_of(chat, "messages/?after=2"))
    rows = stored.json()["results"]
    start, done = found[0][1], found[-1][1]
    assert (start["question"], start["reply"], start["replayed"]) == (rows[0]["id"], rows[-1]["id"], False)
    assert [data["message"] for name, data in found if name == "message"] == rows[1:3]
    assert "".join(data["text"] for name, data in found if name == "delta") == "Hello! 😀"
    assert (done["question"], done["reply"]) == (rows[0], rows[-1])
    assert done["etag"].split("-")[0] == stored["ETag"].split("-")[0]


def test_a_stored_reply_comes_as_one_piece(api: APIClient, chat: SessionHandle) -> None:
    says("Hel", "lo!")
    first = turns(api, chat, question(), **{"Idempotency-Key": "k"}).json()
    answers.append(lambda turn: 1 / 0)
    (_, start), (_, delta), (_, done) = events_of(turns(api, chat, question(), **EVENTS, **{"Idempotency-Key": "k"}))
    assert (start["replayed"], start["reply"], delta["text"]) == (True, first["reply"]["id"], "Hello!")
    assert done["reply"] == first["reply"]


def test_edit_puts_a_question_in_the_place_of_another(api: APIClient, chat: SessionHandle) -> None:
    stored = api.get(url_of(chat, "messages/"))
    old = stored.json()["results"][0]["id"]
    body = question("What is Go?") | {"edit": old}
    assert_problem(turns(api, chat, body), 428, "precondition_required")
    tag, key = {"If-Match": stored["ETag"]}, {"Idempotency-Key": "k"}
    edited = turns(api, chat, body, **tag, **key)
    assert edited.status_code == 201
    assert texts(chat) == ["What is Go?", "Hello!"]
    assert turns(api, chat, body, **tag, **key).json() == edited.json() | {"replayed": True}
    assert_problem(turns(api, chat, body, **tag), 412, "stale_revision")
    assert_problem(turns(api, chat, body, **{"If-Match": "*"}), 409, "unknown_message")
    assert texts(chat) == ["What is Go?", "Hello!"]


def test_a_stale_etag_refuses_any_question_but_not_its_retry(api: APIClient, chat: SessionHandle) -> None:
    tag = {"If-Match": api.get(url_of(chat, "messages/"))["ETag"]}
    body = question(id=str(uuid.uuid4())) | {"edit": FIRST}
    edited = turns(api, chat, body, **tag)
    assert turns(api, chat, body, **tag).json() == edited.json() | {"replayed": True}
    for stale in (question(), question(id=str(uuid.uuid4())), {"again": edited.json()["question"]["id"]}):
        for key in ({}, {"Idempotency-Key": str(uuid.uuid4())}):
            refused = turns(api, chat, stale, **tag, **key)
            assert (refused.status_code, refused.json()["code"]) == (412, "stale_revision")
            assert "Read the session again" in refused.json()["detail"]
    assert texts(chat) == ["Hi", "Hello!"]


def test_again_answers_a_question_anew(api: APIClient, chat: SessionHandle) -> None:
    stored = api.get(url_of(chat, "messages/"))
    body, tag = {"again": stored.json()["results"][0]["id"]}, {"If-Match": stored["ETag"]}
    anew = turns(api, chat, body, **tag, **{"Idempotency-Key": "k"})
    assert (anew.status_code, texts(chat)) == (201, ["What is Rust?", "Hello!"])
    answers.append(lambda turn: 1 / 0)
    assert turns(api, chat, body, **tag, **{"Idempotency-Key": "k"}).json() == anew.json() | {"replayed": True}
    assert turns(api, chat, body, **tag).status_code == 412


def test_a_question_that_is_gone_can_neither_be_edited_nor_answered_anew(api: APIClient, chat: SessionHandle) -> None:
    gone = str(uuid.uuid4())
    for body in ({"again": gone}, question() | {"edit": gone}):
        for accept in ("application/json", EVENTS["Accept"]):
            refused = turns(api, chat, body, Accept=accept, **{"If-Match": "*"})
            assert (refused.status_code, refused.json()["code"]) == (409, "unknown_message")
            assert "no question with this id" in refused.json()["detail"]
    assert len(texts(chat)) == 2


def test_a_question_that_is_stored_is_answered(api: APIClient, chat: SessionHandle) -> None:
    chat.append(ChatMessage.human("Why?"))
    assert turns(api, chat, {}).json()["question"]["message"]["content"] == "Why?"
    nothing = turns(api, chat, {})
    assert (nothing.status_code, nothing.json()["code"]) == (400, "nothing_to_answer")
    assert "pass" not in nothing.json()["detail"].lower()  # A client passes no arguments. It sends fields.


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (question("x" * 200_000), 413, "message_too_large"),
        (question(""), 400, "invalid"),
        (question(role="assistant"), 400, "invalid"),
        (question([{"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]), 400, "invalid"),
        ({"edit": str(uuid.uuid4())}, 400, "invalid"),
        ({"again": str(uuid.uuid4()), **question()}, 400, "invalid"),
        ({"again": "1"}, 400, "invalid"),
    ],
)
def test_what_is_no_question_is_refused(api: APIClient, chat: SessionHandle, body: Any, status: int, code: str) -> None:
    for accept in ("application/json", EVENTS["Accept"]):
        refused = turns(api, chat, body, Accept=accept)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        assert refused["Content-Type"] == "application/problem+json"
    assert len(texts(chat)) == 2


@pytest.mark.parametrize("said", [None, {"choices": [{"delta": "a secret"}]}, {"role": "user a secret"}])
def test_a_function_that_fails_or_a_model_that_sends_nonsense(
    api: APIClient, chat: SessionHandle, caplog: pytest.LogCaptureFixture, said: Any
) -> None:
    def breaks_off(turn: Turn) -> Iterator[Any]:
        yield "Hel"
        if said is None:
            raise ZeroDivisionError("a secret")
        yield said

    answers.append(breaks_off)
    key = {"Idempotency-Key": "k"}
    failed = turns(api, chat, question(), **key)
    assert (failed.status_code, failed.json()["code"]) == (502, "responder_failed")
    found = events_of(turns(api, chat, question(), **key, **EVENTS))
    assert [name for name, _ in found] == ["start", "delta", "error"]
    assert (found[-1][1]["code"], found[-1][1]["retryable"]) == ("responder_failed", True)
    assert "secret" not in str(found) + failed.content.decode()
    logged = [record for record in caplog.records if record.name.startswith("django_convmemory")]
    assert [(record.levelno, record.exc_info is not None) for record in logged] == [(logging.ERROR, True)] * 2
    says("Hello!")
    assert turns(api, chat, question(), **key).status_code == 201
    assert texts(chat)[2:] == ["Hi", "Hello!"]


def test_an_error_for_the_client_reaches_it(api: APIClient, chat: SessionHandle) -> None:
    def refuses(turn: Turn) -> Any:
        raise PermissionDenied("Not today.")

    answers.append(refuses)
    assert turns(api, chat, question()).status_code == 403
    says(" ")
    assert_problem(turns(api, chat, question()), 502, "empty_reply")


def test_a_page_that_is_loaded_again_reads_the_turn_and_stops_it(api: APIClient, chat: SessionHandle) -> None:
    speaks, goes_on = threading.Event(), threading.Event()

    def slowly(turn: Turn) -> Iterator[str]:
        yield "Hel"
        speaks.set()
        assert goes_on.wait(20)
        yield "lo"

    answers.append(slowly)
    own = str(uuid.uuid4())
    path = url_of(chat, f"turns/{own}/")
    assert api.get(path).status_code == 404
    first = InThread(lambda: events_of(turns(api, chat, question(id=own), **EVENTS)))
    assert speaks.wait(20)
    state = api.get(path).json()
    assert (state["open"], state["reply"]) == (True, None)
    stopped = api.post(f"{path}stop/", {})
    assert (stopped.status_code, stopped.json()["open"]) == (202, True)
    goes_on.set()
    assert first.result()[-1][0] == "done"
    state = api.get(path).json()
    assert (state["open"], state["reply"]["message"]["content"]) == (False, "Hello")
    assert_problem(api.post(f"{path}stop/", {}), 409, "nothing_to_do")


def test_a_request_that_waited_too_long_is_told_when_to_come_again(
    api: APIClient, chat: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnList, "wait", 0.1)
    models.Session.objects.filter(pk=row_of(chat).pk).update(turn_token="t" * 32, turn_question=1)
    soon = row_of(chat).updated_at.replace(year=2100)
    models.Session.objects.update(turn_expires_at=soon)
    answers.append(lambda turn: 1 / 0)
    busy = turns(api, chat, question())
    assert (busy.status_code, busy.json()["code"]) == (409, "turn_in_progress")
    assert busy["Retry-After"] == "5"


def test_without_a_responder_the_addresses_do_not_exist(api: APIClient, chat: SessionHandle, settings: Any) -> None:
    settings.CONVMEMORY_API = {}
    own = chat.history()[0].id
    for answer in (
        turns(api, chat, question()),
        api.get(url_of(chat, f"turns/{own}/")),
        api.post(url_of(chat, f"turns/{own}/stop/"), {}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert "RESPONDER" in answer.json()["detail"]


def test_turns_of_somebody_else_do_not_exist(chat: SessionHandle) -> None:
    other = client_of(User.objects.create_user("other"))
    memories["default"].session("main", owner=User.objects.get(username="other")).append(ChatMessage.human("mine"))
    assert turns(other, chat, question()).status_code == 404
    # Nor does a message of another session.
    theirs = memories["default"].session("main", owner=User.objects.get(username="other"))
    own = chat.history()[0].id
    assert other.get(url_of(theirs, f"turns/{own}/")).status_code == 404
    assert turns(other, theirs, {"again": str(own)}).json()["code"] == "unknown_message"
