"""The OpenAI chat model's configuration, and its use by many processes, threads and event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import sys
import weakref
from typing import Any

import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models import base
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.messages import ChatMessage
from tests import processes
from tests.chat_models.asking import KEY, REQUEST, Ask, chat, error_of, model_at
from tests.openai_server import Behaviour, OpenAIServer

# Configuration.


URLS = ["nonsense", "ftp://host/v1", "http://", "http://[::1/v1", "http://host:port/v1", "\x00"]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("model", None, "OPENAI_MODEL"),
        ("api_key", "", "OPENAI_API_KEY"),
        *(("api_key", key, "") for key in (f"{KEY}\n", f"Bearer {KEY}", f"{KEY}ä")),
        *(("base_url", url, "") for url in URLS),
    ],
)
def test_an_unusable_option_is_an_error_at_the_call_without_the_key(
    server: OpenAIServer, ask: Ask, option: str, value: str | None, says: str
) -> None:
    error = error_of(ask, model_at(server, **{option: value}))

    assert type(error) is exceptions.ModelMisconfigured
    assert says in str(error)
    assert KEY not in str(error)


def test_a_client_that_is_not_installed_is_an_error_at_the_call(
    server: OpenAIServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)

    assert type(error_of(ask, model_at(server))) is exceptions.ModelMisconfigured


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("model", 5, TypeError),
        ("api_key", b"key", TypeError),
        ("base_url", 5, TypeError),
        ("timeout", "60", TypeError),
        ("timeout", None, TypeError),
        ("timeout", True, TypeError),
        ("timeout", 0, ValueError),
        ("timeout", -1.0, ValueError),
        ("timeout", float("nan"), ValueError),
        ("timeout", float("inf"), ValueError),
        ("parameters", [("temperature", 0)], TypeError),
        ("parameters", {1: 0}, TypeError),
        ("parameters", {"stop": object()}, ValueError),
        ("parameters", {"temperature": float("nan")}, ValueError),
        ("parameters", {"model": "other"}, ValueError),
        ("parameters", {"messages": []}, ValueError),
        ("parameters", {"stream": True}, ValueError),
    ],
)
def test_the_error_of_a_wrong_option_names_it(option: str, value: Any, expected: type[Exception]) -> None:
    with pytest.raises(expected, match=f"^{option} "):
        OpenAIChatModel(**{option: value})


def test_the_parameters_are_a_copy(server: OpenAIServer) -> None:
    parameters = {"stop": ["END"]}
    model = model_at(server, parameters=parameters)
    parameters["stop"].append("MORE")

    chat(model)

    assert server.log[0].body["stop"] == ["END"]


# Processes, threads and event loops.


def test_importing_the_module_does_not_import_the_client() -> None:
    code = "import sys, django_convmemory.chat_models.openai; sys.exit('openai' in sys.modules)"

    processes.output_of([sys.executable, "-c", code])


def test_one_model_serves_many_threads(server: OpenAIServer) -> None:
    model = model_at(server)

    def answer_to(number: int) -> str:
        return model.chat(base.ChatRequest([ChatMessage.human(f"[[{number}]]")])).message.text

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(answer_to, range(100))) == [f"[[{number}]]" for number in range(100)]


def test_one_model_serves_several_event_loops_and_keeps_none(server: OpenAIServer) -> None:
    model = model_at(server)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def call() -> base.ChatResponse:
        response = await model.achat(REQUEST)
        loops.append(weakref.ref(asyncio.get_running_loop()))
        return response

    for _ in range(3):
        assert asyncio.run(call()).finish_reason == "stop"
    gc.collect()

    assert [loop() for loop in loops] == [None, None, None]
    assert not model._async_clients


def test_a_client_is_made_once_for_a_process_and_once_for_an_event_loop(server: OpenAIServer) -> None:
    model = model_at(server)

    async def twice() -> object:
        await model.achat(REQUEST)
        client = model._async_client()
        await model.achat(REQUEST)
        assert model._async_client() is client
        return client

    chat(model)
    client = model._client()
    chat(model)

    assert model._client() is client
    assert asyncio.run(twice()) is not asyncio.run(twice())


FORKED = """
import json, os, sys, threading, time, urllib.request, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: the point of the test
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.messages import ChatMessage

url = sys.argv[1]
model = OpenAIChatModel(model="tiny", api_key="key", base_url=url + "/v1")

def answered(marker):
    return model.chat(ChatRequest([ChatMessage.human(marker)])).message.text == marker

assert answered("[[parent]]")
parents_client = model._client()
waiting = threading.Thread(target=answered, args=["[[waiting]]"])
waiting.start()
while len(json.load(urllib.request.urlopen(url + "/_log"))) < 2:
    time.sleep(0.01)
children = []
for number in range(4):
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if answered(f"[[child-{number}]]") and model._client() is not parents_client else 2
        finally:
            os._exit(code)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
waiting.join()
assert answered("[[parent again]]")
sys.exit(str(codes) if any(codes) else 0)
"""


@pytest.mark.slow
def test_a_forked_child_has_a_client_of_its_own(server: OpenAIServer) -> None:
    """This holds also if a thread of the parent waits for an answer during the fork.

    It does not hold if a thread begins or ends a call at that moment, because a fork copies OpenSSL's locks.
    """
    server.queue(Behaviour(), Behaviour("drip", seconds=3))
    command = [sys.executable, "-c", FORKED, server.base_url.removesuffix("/v1")]

    assert processes.output_of(command) == ""
