from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from tests.chat_models.asking import Ask, achat, chat, ended


@pytest.fixture(params=[chat, achat])
def ask(request: pytest.FixtureRequest) -> Ask:
    function: Ask = request.param
    return function


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
