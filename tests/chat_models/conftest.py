from __future__ import annotations

import gc
import pathlib
import threading
from collections.abc import Iterator

import openai as _client_library  # noqa: F401  Its import takes longer than the deadlines of these tests.
import pytest

from tests.chat_models.asking import Ask, achat, chat, ended
from tests.openai_server import OpenAIServer

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(params=[chat, achat])
def ask(request: pytest.FixtureRequest) -> Ask:
    function: Ask = request.param
    return function


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture(autouse=True, scope="module")
def no_socket_is_left_behind() -> Iterator[None]:
    """The collection of an unclosed socket gives a warning, and a warning is a failure."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def no_thread_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment variables of the machine are hidden too."""
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(variable, raising=False)
    yield
    assert ended(*(thread for thread in threading.enumerate() if thread.name == "convmemory-chat-model"))
