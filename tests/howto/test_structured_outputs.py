"""The code of docs/howto/structured-outputs.md stores what the model sent, and reads it again."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest
from django.contrib.auth.models import User

from django_convmemory.memory import memories
from tests.howto.test_pages import module_of
from tests.openai_server import Behaviour, OpenAIServer

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(
        tuple(map(int, openai.__version__.split(".")[:2])) < (1, 92), reason="needs openai 1.92 or newer"
    ),
]
TRIP = '{"city": "Bled", "days": 3}'


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def page() -> dict[str, Any]:
    return module_of("structured-outputs", "trips.py")


def stored(user: User) -> list[dict[str, Any]]:
    messages: list[Any] = memories["default"].session("trip", owner=user).load().to_openai()
    return messages


def test_an_object_comes_back_and_its_text_is_stored_and_sent(
    ann: User, page: dict[str, Any], model: OpenAIServer
) -> None:
    model.default = Behaviour(text=TRIP)

    trip = page["plan"](ann, "Three days in Bled.")

    assert trip == page["Trip"](city="Bled", days=3)
    assert model.log[0].body["response_format"]["json_schema"]["name"] == "Trip"
    reply = {"role": "assistant", "content": TRIP, "refusal": None}
    assert stored(ann) == [{"role": "user", "content": "Three days in Bled."}, reply]
    page["plan"](ann, "Again.")
    assert model.log[1].body["messages"][2] == reply
    assert page["planned"](ann) == [trip, trip]


def test_a_refusal_is_stored_and_sent_back(ann: User, page: dict[str, Any], model: OpenAIServer) -> None:
    model.queue(Behaviour("refusal"))
    model.default = Behaviour(text=TRIP)

    assert page["plan"](ann, "A trip to the moon.") is None

    refusal = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    assert stored(ann)[1] == refusal
    assert page["plan"](ann, "Then to Bled.") is not None
    assert model.log[1].body["messages"][2] == refusal
    assert len(page["planned"](ann)) == 1


ERRORS: dict[str, Any] = {
    "LengthFinishReasonError": Behaviour("cut_off", text=TRIP),
    "ContentFilterFinishReasonError": Behaviour("filtered", text=TRIP),
    "ValidationError": Behaviour(text=json.dumps({"city": 5})),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_stores_no_reply(ann: User, page: dict[str, Any], model: OpenAIServer, error: str) -> None:
    model.queue(ERRORS[error])

    with pytest.raises(pydantic.ValidationError if error == "ValidationError" else getattr(openai, error)):
        page["plan"](ann, "Three days in Bled.")

    assert stored(ann) == [{"role": "user", "content": "Three days in Bled."}]
