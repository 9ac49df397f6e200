"""What the tests of embeddings share: a provider's server, a memory that asks it, and what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_convmemory import models
from django_convmemory.contrib.embeddings.models import Vector
from django_convmemory.contrib.embeddings.reranker import EmbeddingReranker
from django_convmemory.operations.handles import ConversationMemory
from tests.indexes import build
from tests.openai_server import Behaviour, OpenAIServer


@pytest.fixture
def provider() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        server.default = Behaviour("embed")
        yield server


@pytest.fixture
def reranker(provider: OpenAIServer) -> EmbeddingReranker:
    return ranker(provider)


@pytest.fixture
def memory(reranker: EmbeddingReranker) -> ConversationMemory:
    return build(reranker=reranker)


def ranker(provider: OpenAIServer, **options: Any) -> EmbeddingReranker:
    # A machine with much to do answers late.
    return EmbeddingReranker(
        **{"model": "small", "base_url": provider.base_url, "api_key": "key", "timeout": 20.0, **options}
    )


def id_of(key: str = "s") -> int:
    return models.Session.objects.get(key=key).pk


def embedded(key: str = "s") -> list[int]:
    """The positions of a session that have a vector, also an empty one."""
    rows = Vector.objects.filter(session__key=key).order_by("session_id", "position")
    return list(rows.values_list("position", flat=True))


def asked(provider: OpenAIServer) -> list[list[str]]:
    """The texts of each request, in the order of the requests."""
    return [exchange.body["input"] for exchange in provider.log]
