from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from django.contrib.auth.models import User

from django_convmemory.memory import SessionHandle, memories
from tests.openai_server import Behaviour, OpenAIServer

ANSWER = "Ownership says who frees the memory."


@pytest.fixture
def ann(db: None) -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def session(ann: User) -> SessionHandle:
    """The session of the pages' views."""
    return memories["default"].session("main", owner=ann)


def stored(session: SessionHandle) -> list[tuple[str, str, str | None]]:
    """Return who said what, and how it was cut off."""
    return [(row.message.role, row.message.text, row.cut_off) for row in session.history()]


@pytest.fixture
def model(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    server.default = Behaviour(text=ANSWER, pace=0.01)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr(openai, "_client", None)  # It reads the variables when it is first used.
    with openai.DefaultHttpxClient() as client:
        monkeypatch.setattr(openai, "http_client", client)
        yield server
