from __future__ import annotations

from collections.abc import Iterator

import agents
import pytest

from tests.openai_server import OpenAIServer

# Traces would be sent to OpenAI.
agents.set_tracing_disabled(True)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as started:
        yield started
