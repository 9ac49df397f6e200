from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.openai_server import Behaviour, OpenAIServer


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        server.default = Behaviour(text="Ownership says who frees the memory.", pace=0.01)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield server
