"""The functions of docs/start/turns.md answer, call tools until the model is done, and survive what goes wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pydantic
import pytest
from django.contrib.auth.models import User

from django_convmemory import exceptions
from django_convmemory.clock import Clock
from django_convmemory.memory import SessionHandle, memories
from django_convmemory.models import Session
from django_convmemory.rules.exchanges import NO_RESULT
from tests.guides.test_pages import PAGES, install, module_of
from tests.openai_server import Behaviour, OpenAIServer, completion

pytestmark = pytest.mark.django_db
FAILED = "Error: the tool failed. Check its name and its arguments."
TRIP = '{"city": "Bled", "days": 3}'


def calling(*calls: tuple[str, str], name: str = "find_train") -> Behaviour:
    """The model calls a tool with these ids and arguments."""
    tool_calls = [named(call_id, name, arguments) for call_id, arguments in calls]
    return Behaviour("raw", body=completion(Behaviour(text=""), {}, content=None, tool_calls=tool_calls))


def named(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def stored(session: SessionHandle) -> list[tuple[str, str]]:
    return [(row.message.role, row.message.text) for row in session.history()]


def sent(model: OpenAIServer, number: int) -> list[dict[str, Any]]:
    return list(model.log[number].body["messages"])


def test_the_table_of_errors_has_their_statuses() -> None:
    section = PAGES["turns"].partition("## Errors")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) +\| (\d+) ", section, re.MULTILINE)
    statuses = {name: int(status) for names, status in rows for name in re.findall(r"`(\w+)`", names)}
    assert {name: getattr(exceptions, name).status for name in statuses} == statuses
    turn_errors = {error.__name__ for error in exceptions.TurnError.__subclasses__()}
    assert statuses.keys() >= turn_errors | {"MessageTooLong", "IdempotencyConflict", "InvalidMessage"}


def test_a_stored_question_is_answered_later(
    ann: User, session: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "mysite.views", {"ask": lambda turn: f"You asked: {turn.context[-1].text}"})
    page = module_of("turns", "stored_questions.py")
    assert page["answer_later"](ann) is None

    page["store"](ann, "Is there a bus?")

    assert [page["answer_later"](ann) for _ in range(2)] == ["You asked: Is there a bus?", None]
    assert len(stored(session)) == 2


def test_an_asynchronous_function_streams(session: SessionHandle, model: OpenAIServer) -> None:
    stream = session.stream_answer("What is ownership?", module_of("turns", "async_ask.py")["ask"])

    assert len(list(stream)) > 1
    assert stored(session)[1] == ("assistant", "Ownership says who frees the memory.")
    assert stream.turn.usage is not None
    assert stream.turn.usage.completion_tokens > 0


# Tools.


def test_the_model_calls_several_tools_until_it_is_done(session: SessionHandle, model: OpenAIServer) -> None:
    model.queue(calling(("a", '{"to": "Porto"}'), ("b", '{"to": "Faro"}')), calling(("c", '{"to": "Braga"}')))
    model.default = Behaviour(text="Take the train to Porto.")

    turn = session.answer("Where can I go?", module_of("turns", "tool_loop.py")["ask"])

    trains = {city: json.dumps({"to": city, "departs": "09:30"}) for city in ("Porto", "Faro", "Braga")}
    assert turn.text == "Take the train to Porto."
    assert stored(session) == [
        ("user", "Where can I go?"),
        ("assistant", ""),
        ("tool", trains["Porto"]),
        ("tool", trains["Faro"]),
        ("assistant", ""),
        ("tool", trains["Braga"]),
        ("assistant", "Take the train to Porto."),
    ]
    assert len(model.log) == 3
    last = sent(model, 2)
    assert [message["role"] for message in last] == [role for role, _ in stored(session)[:-1]]
    assert [message.get("tool_call_id") for message in last[2:4]] == ["a", "b"]
    assert last[1]["tool_calls"] == [
        named("a", "find_train", '{"to": "Porto"}'),
        named("b", "find_train", '{"to": "Faro"}'),
    ]
    assert model.log[0].body["tools"][0]["function"]["name"] == "find_train"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("find_train", "{}"), ("find_train", "no JSON"), ("find_train", "[1]"), ("delete_everything", "{}")],
)
def test_a_tool_that_fails_has_a_result(session: SessionHandle, model: OpenAIServer, name: str, arguments: str) -> None:
    model.queue(calling(("a", arguments), name=name))
    model.default = Behaviour(text="Sorry.")

    assert session.answer("Where can I go?", module_of("turns", "tool_loop.py")["ask"]).text == "Sorry."

    assert sent(model, 1)[-1] == {"role": "tool", "content": FAILED, "tool_call_id": "a"}


def test_the_last_round_allows_no_call(session: SessionHandle, model: OpenAIServer) -> None:
    page = module_of("turns", "tool_loop.py")
    rounds = page["MAX_ROUNDS"]
    model.queue(*[calling((f"call-{number}", '{"to": "Porto"}')) for number in range(rounds - 1)])
    model.default = Behaviour(text="I have found enough.")

    assert session.answer("Where can I go?", page["ask"]).text == "I have found enough."
    assert [exchange.body["tool_choice"] for exchange in model.log] == ["auto"] * (rounds - 1) + ["none"]


def test_a_server_that_ignores_the_limit_does_not_loop_for_ever(session: SessionHandle, model: OpenAIServer) -> None:
    page = module_of("turns", "tool_loop.py")
    model.queue(*[calling((f"call-{number}", '{"to": "Porto"}')) for number in range(8)])

    with pytest.raises(RuntimeError, match="8 rounds"):
        session.answer("Where can I go?", page["ask"])

    assert len(model.log) == page["MAX_ROUNDS"] == 8
    model.default = Behaviour(text="To Porto.")
    assert session.answer("So?", page["ask"]).text == "To Porto."


@pytest.mark.parametrize("again", ["a new question", "the old question"])
def test_a_process_that_dies_in_a_tool_leaves_a_conversation_that_goes_on(
    session: SessionHandle, model: OpenAIServer, again: str
) -> None:
    """The process is stopped in the tool "b" until its turn has ended, and another process asks."""
    page, other, ran = module_of("turns", "tool_loop.py"), module_of("turns", "tool_loop.py"), []
    model.queue(calling(("a", '{"to": "Porto"}'), ("b", '{"to": "Faro"}')))
    model.default = Behaviour(text="To Porto.")
    other["FUNCTIONS"]["find_train"] = lambda to: ran.append(to) or "10:30"
    left: list[Any] = []

    def find_train(to: str) -> str:
        if to == "Faro":
            left.append(stored(session))
            Session.objects.update(turn_expires_at=Clock(-1))
            question, key = ("And now?", None) if again == "a new question" else ("Where can I go?", "k")
            left.append(session.answer(question, other["ask"], key=key).text)
        return "09:30"

    page["FUNCTIONS"]["find_train"] = find_train
    with pytest.raises(exceptions.TurnLost):
        session.answer("Where can I go?", page["ask"], key="k")

    assert left == [[("user", "Where can I go?"), ("assistant", ""), ("tool", "09:30")], "To Porto."]
    results = [(message["tool_call_id"], message["content"]) for message in sent(model, 1) if message["role"] == "tool"]
    assert results == [("a", "09:30"), ("b", NO_RESULT if again == "a new question" else "10:30")]
    assert ran == ([] if again == "a new question" else ["Faro"])
    assert re.sub(r"\s+", " ", PAGES["turns"]).count(f"`{NO_RESULT}`") == 1
    assert stored(session)[-1] == ("assistant", "To Porto.")


def test_of_two_loops_at_a_time_one_waits(session: SessionHandle, model: OpenAIServer) -> None:
    page = module_of("turns", "tool_loop.py")
    model.queue(calling(("a", '{"to": "Porto"}')))
    model.default = Behaviour(text="To Porto.")
    refused: list[Exception] = []

    def another_request(to: str) -> str:
        with pytest.raises(exceptions.TurnInProgress) as caught:  # In a test's transaction, nobody waits.
            session.answer("And Faro?", page["ask"])
        refused.append(caught.value)
        return "09:30"

    page["FUNCTIONS"]["find_train"] = another_request
    assert session.answer("Where can I go?", page["ask"]).text == "To Porto."
    assert len(refused) == 1
    assert [role for role, _ in stored(session)] == ["user", "assistant", "tool", "assistant"]


# Data instead of prose.


@pytest.mark.skipif(tuple(map(int, openai.__version__.split(".")[:2])) < (1, 92), reason="needs openai 1.92 or newer")
def test_a_reply_is_an_object(ann: User, model: OpenAIServer) -> None:
    page = module_of("turns", "trips.py")
    model.default = Behaviour(text=TRIP)

    def context() -> list[Any]:
        return list(memories["default"].session("trip", owner=ann).load().to_openai())

    trip = page["plan"](ann, "Three days in Bled.", "1")
    assert trip == page["Trip"](city="Bled", days=3)
    assert model.log[0].body["response_format"]["json_schema"]["name"] == "Trip"
    model.queue(Behaviour("refusal"))
    assert page["plan"](ann, "A trip to the moon.", "2") is None
    for error, behaviour in {
        openai.LengthFinishReasonError: Behaviour("cut_off", text=TRIP),
        openai.ContentFilterFinishReasonError: Behaviour("filtered", text=TRIP),
        pydantic.ValidationError: Behaviour(text=json.dumps({"city": 5})),
    }.items():
        model.queue(behaviour)
        with pytest.raises(error):
            page["plan"](ann, "Then to Bled.", "3")
    assert page["plan"](ann, "Then to Bled.", "3") == trip
    assert [page["plan"](ann, "Three days in Bled.", "1"), page["plan"](ann, "A trip to the moon.", "2")] == [
        trip,
        None,
    ]
    # What the model said was stored and sent again, and an error stored no reply.
    reply = {"role": "assistant", "content": TRIP, "refusal": None}
    refusal = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    replies = [message for message in context() if message["role"] == "assistant"]
    assert replies == [reply, refusal, reply]
    assert model.log[-1].body["messages"][1:] == context()[:-1]
    assert len(model.log) == 6
