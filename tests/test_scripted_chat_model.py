from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models import base
from django_convmemory.chat_models.scripted import ScriptedChatModel, ScriptExhausted
from django_convmemory.messages import ChatMessage

REQUEST = base.ChatRequest([ChatMessage.human("What is Rust?")])


def test_achat_does_as_chat_does() -> None:
    model = ScriptedChatModel(["One.", exceptions.BadModelOutput("cut")])

    assert asyncio.run(model.achat(REQUEST)).message.text == "One."
    with pytest.raises(exceptions.BadModelOutput):
        asyncio.run(model.achat(REQUEST))
    assert model.requests == [REQUEST, REQUEST]


def test_an_exhausted_script_fails_the_test_and_says_how_to_repair_it() -> None:
    model = ScriptedChatModel(["One."])
    model.chat(REQUEST)

    with pytest.raises(ScriptExhausted, match=r"no reply left for request 2.*add\(\)") as raised:
        model.chat(REQUEST)

    assert isinstance(raised.value, AssertionError)
    assert not isinstance(raised.value, exceptions.ConvMemoryError)


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
