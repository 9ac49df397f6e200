"""The loop of docs/howto/tool-loop.md calls tools until the model is done, and survives what goes wrong."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_convmemory.exceptions import ToolResultRefused
from django_convmemory.memory import memories
from django_convmemory.rules.exchanges import NO_RESULT
from tests import processes
from tests.howto.test_pages import PAGES, code_of, module_of
from tests.openai_server import Behaviour, OpenAIServer, completion

pytestmark = pytest.mark.django_db
FAILED = "Error: the tool failed. Check its name and its arguments."


def calling(*calls: tuple[str, str]) -> Behaviour:
    """The model calls ``find_train`` with these ids and arguments."""
    tool_calls = [named(call_id, "find_train", arguments) for call_id, arguments in calls]
    return Behaviour("raw", body=completion(Behaviour(text=""), {}, content=None, tool_calls=tool_calls))


def named(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def stored(user: User) -> list[tuple[str, str]]:
    rows = memories["default"].session("main", owner=user).history()
    return [(row.message.role, row.message.text) for row in rows]


def sent(model: OpenAIServer, number: int) -> list[dict[str, Any]]:
    return list(model.log[number].body["messages"])


def test_the_model_calls_several_tools_until_it_is_done(ann: User, model: OpenAIServer) -> None:
    model.queue(calling(("a", '{"to": "Porto"}'), ("b", '{"to": "Faro"}')), calling(("c", '{"to": "Braga"}')))
    model.default = Behaviour(text="Take the train to Porto.")

    assert module_of("tool-loop", "tool_loop.py")["reply"](ann, "Where can I go?") == "Take the train to Porto."

    trains = {city: json.dumps({"to": city, "departs": "09:30"}) for city in ("Porto", "Faro", "Braga")}
    assert stored(ann) == [
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
    assert [message["role"] for message in last] == ["system", *(role for role, _ in stored(ann)[:-1])]
    assert [message.get("tool_call_id") for message in last[3:5]] == ["a", "b"]
    assert last[2] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [named("a", "find_train", '{"to": "Porto"}'), named("b", "find_train", '{"to": "Faro"}')],
    }
    assert model.log[0].body["tools"][0]["function"]["name"] == "find_train"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("find_train", "{}"), ("find_train", "no JSON"), ("find_train", "[1]"), ("delete_everything", "{}")],
)
def test_a_tool_that_fails_has_a_result(ann: User, model: OpenAIServer, name: str, arguments: str) -> None:
    call = named("a", name, arguments)
    model.queue(Behaviour("raw", body=completion(Behaviour(text=""), {}, content=None, tool_calls=[call])))
    model.default = Behaviour(text="Sorry.")

    assert module_of("tool-loop", "tool_loop.py")["reply"](ann, "Where can I go?") == "Sorry."

    assert sent(model, 1)[-1] == {"role": "tool", "content": FAILED, "tool_call_id": "a"}


def test_the_last_round_allows_no_call(ann: User, model: OpenAIServer) -> None:
    page = module_of("tool-loop", "tool_loop.py")
    rounds = page["MAX_ROUNDS"]
    model.queue(*[calling((f"call-{number}", '{"to": "Porto"}')) for number in range(rounds - 1)])
    model.default = Behaviour(text="I have found enough.")

    assert page["reply"](ann, "Where can I go?") == "I have found enough."
    assert [exchange.body["tool_choice"] for exchange in model.log] == ["auto"] * (rounds - 1) + ["none"]


def test_a_server_that_ignores_the_limit_does_not_loop_for_ever(ann: User, model: OpenAIServer) -> None:
    page = module_of("tool-loop", "tool_loop.py")
    model.default = calling(("a", '{"to": "Porto"}'))

    with pytest.raises(RuntimeError, match="8 rounds"):
        page["reply"](ann, "Where can I go?")

    assert len(model.log) == page["MAX_ROUNDS"] == 8
    assert stored(ann)[-1][0] == "tool"
    model.default = Behaviour(text="To Porto.")
    assert page["reply"](ann, "So?") == "To Porto."


DYING = """

import os

import django

django.setup()

{code}

FUNCTIONS["find_train"] = lambda to: os._exit(9)
reply(User.objects.get(), "Where can I go?")
"""


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("again", ["a new question", "the old question"])
def test_a_process_that_dies_in_a_tool_leaves_a_conversation_that_goes_on(
    model: OpenAIServer, tmp_path: pathlib.Path, again: str
) -> None:
    ann = User.objects.create_user("ann")
    (tmp_path / "dying.py").write_text(DYING.format(code=code_of("tool-loop", "tool_loop.py")), encoding="utf-8")
    model.queue(calling(("a", '{"to": "Porto"}'), ("b", '{"to": "Faro"}')))
    process = processes.start(tmp_path, "dying")
    assert process.wait(processes.PATIENCE) == 9, (tmp_path / "output").read_text()
    assert stored(ann) == [("user", "Where can I go?"), ("assistant", "")]

    model.default = Behaviour(text="To Porto.")
    page = module_of("tool-loop", "tool_loop.py")
    if again == "a new question":
        assert page["reply"](ann, "And now?") == "To Porto."
    else:
        assert page["answer"](memories["default"].session("main", owner=ann)) == "To Porto."

    results = [message for message in sent(model, 1) if message["role"] == "tool"]
    assert results == [{"role": "tool", "content": NO_RESULT, "tool_call_id": call_id} for call_id in ("a", "b")]
    assert stored(ann)[-1] == ("assistant", "To Porto.")
    assert f"`{NO_RESULT}`" in PAGES["tool-loop"]


def test_of_two_loops_at_a_time_one_is_refused(ann: User, model: OpenAIServer) -> None:
    page = module_of("tool-loop", "tool_loop.py")
    model.queue(calling(("a", '{"to": "Porto"}')))
    model.default = Behaviour(text="To Faro.")

    def another_request(to: str) -> str:
        return str(page["reply"](ann, "And Faro?"))

    page["FUNCTIONS"]["find_train"] = another_request
    with pytest.raises(ToolResultRefused):
        page["reply"](ann, "Where can I go?")
    assert stored(ann)[-1] == ("assistant", "To Faro.")
