from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from django.contrib.auth.models import User

from tests.openai_server import Behaviour, OpenAIServer


@pytest.fixture
def ann(db: None) -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def model(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    server.default = Behaviour(text="Ownership says who frees the memory.", pace=0.01)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr(openai, "_client", None)  # It reads the variables when it is first used.
    with openai.DefaultHttpxClient() as client:
        monkeypatch.setattr(openai, "http_client", client)
        yield server
