from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models import base
from django_convmemory.chat_models.scripted import ScriptedChatModel, ScriptExhausted
from django_convmemory.messages import ChatMessage

REQUEST = base.ChatRequest([ChatMessage.human("What is Rust?")])


def test_is_a_chat_model() -> None:
    model = ScriptedChatModel(name="tiny", deadline=2.5)

    assert isinstance(model, base.ChatModel)
    assert (model.name, model.deadline) == ("tiny", 2.5)


def test_gives_texts_messages_and_responses_in_order() -> None:
    message = ChatMessage.ai("A message.")
    response = base.ChatResponse(ChatMessage.ai("A resp"), finish_reason="length")
    model = ScriptedChatModel(["A text.", message, response])

    assert model.chat(REQUEST) == base.ChatResponse(ChatMessage.ai("A text."))
    assert model.chat(REQUEST) == base.ChatResponse(message)
    assert model.chat(REQUEST) is response


def test_exceptions_of_the_script_are_raised() -> None:
    busy = exceptions.ModelUnavailable("busy", retry_after=3)
    model = ScriptedChatModel([busy, exceptions.ContentRefused, KeyboardInterrupt])

    with pytest.raises(exceptions.ModelUnavailable) as raised:
        model.chat(REQUEST)
    assert raised.value is busy
    with pytest.raises(exceptions.ContentRefused):
        model.chat(REQUEST)
    with pytest.raises(KeyboardInterrupt):
        model.chat(REQUEST)


def test_achat_does_as_chat_does() -> None:
    model = ScriptedChatModel(["One.", exceptions.BadModelOutput("cut")])

    assert asyncio.run(model.achat(REQUEST)).message.text == "One."
    with pytest.raises(exceptions.BadModelOutput):
        asyncio.run(model.achat(REQUEST))
    assert model.requests == [REQUEST, REQUEST]


def test_every_request_is_recorded_also_a_failed_one() -> None:
    other = base.ChatRequest([ChatMessage.human("And ownership?")])
    model = ScriptedChatModel([exceptions.ModelUnavailable("busy"), "One."])

    with pytest.raises(exceptions.ModelUnavailable):
        model.chat(REQUEST)
    model.chat(other)

    assert model.requests == [REQUEST, other]


def test_an_exhausted_script_fails_the_test_and_says_how_to_repair_it() -> None:
    model = ScriptedChatModel(["One."])
    model.chat(REQUEST)

    with pytest.raises(ScriptExhausted, match=r"no reply left for request 2.*add\(\)") as raised:
        model.chat(REQUEST)

    assert isinstance(raised.value, AssertionError)
    assert not isinstance(raised.value, exceptions.ConvMemoryError)


def test_replies_can_be_added_later() -> None:
    model = ScriptedChatModel(["One."])
    model.add("Two.", ChatMessage.ai("Three."))

    assert [model.chat(REQUEST).message.text for _ in range(3)] == ["One.", "Two.", "Three."]


def test_each_reply_is_given_once_to_many_threads() -> None:
    texts = [str(number) for number in range(500)]
    model = ScriptedChatModel(texts)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: model.chat(REQUEST).message.text, texts))

    assert sorted(replies, key=int) == texts
    assert len(model.requests) == 500


def test_one_reply_in_place_of_a_list_is_refused() -> None:
    for reply in ("text", ChatMessage.ai("text"), base.ChatResponse(ChatMessage.ai("text"))):
        with pytest.raises(TypeError, match="Put it in a list"):
            ScriptedChatModel(reply)  # type: ignore[arg-type]


def test_a_reply_of_another_type_is_refused_and_nothing_is_queued() -> None:
    model = ScriptedChatModel()

    with pytest.raises(TypeError, match="not dict"):
        model.add("One.", {"role": "assistant"})  # type: ignore[arg-type]
    with pytest.raises(ScriptExhausted):
        model.chat(REQUEST)
