"""A summarizer's "too long" in any words: half of the chunk is tried once, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from django_convmemory import exceptions, models
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests.chunks import covered_position
from tests.folding import build, covered, outcomes
from tests.openai_server import Behaviour, Exchange, OpenAIServer, prompt

pytestmark = pytest.mark.django_db

# In no table of ours.
WORDINGS: dict[str, Any] = {
    "nothing": "",
    "HTML": "<html><head><title>400 Bad Request</title></head></html>",
    "English": {"error": {"message": "Sorry, that is more text than I can read."}},
    "pydantic": {"detail": [{"type": "string_too_long", "msg": "String should have at most 8000 characters"}]},
    "Chinese": {"error": {"code": "1261", "message": "Prompt 超长"}},
}
OTHER_REASONS: dict[str, tuple[int, Any]] = {
    "key": (400, {"error": {"message": "Incorrect API key provided.", "code": "invalid_api_key"}}),
    "key, in words": (400, {"error": {"message": "Authentication failed."}}),
    "model": (400, {"error": {"message": "The model `tiny` does not exist."}}),
    "parameter": (400, {"error": {"message": "Unsupported parameter: 'top_k'.", "code": "unsupported_parameter"}}),
    "content": (400, {"error": {"message": "Blocked by our usage policies."}}),
    "conflict": (409, {"error": {"message": "Try again."}}),
    "outage": (503, {"error": {"message": "Overloaded."}}),
}


def long_talk(store: Store, server: OpenAIServer, count: int = 40, **options: Any) -> ConversationMemory:
    """A memory with a session of marked messages, all but the last of which are due and fit into one chunk."""
    model = OpenAIChatModel(model="tiny", api_key="sk-1", base_url=server.base_url, timeout=20)
    memory = build(model, store=store, max_summary_tokens=400, **options)
    for number in range(1, count + 1):
        memory.append("s", ChatMessage.human(f"[[{number}]] " + "word " * 20))
    return memory


def marks(exchange: Exchange) -> list[int]:
    return covered(prompt(exchange.body).partition("Turns that follow")[2])


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("wording", WORDINGS)
def test_half_of_the_chunk_is_sent_whatever_the_refusal_says(server: OpenAIServer, wording: str, status: int) -> None:
    memory = long_talk(InMemoryStore(), server)
    server.longest, server.too_long = 5000, Behaviour("raw", status=status, body=WORDINGS[wording])

    assert memory.compact("s") == "published"

    whole, half, *others = map(marks, server.log)
    assert 0.4 * len(whole) < len(half) < 0.6 * len(whole)
    # The fold went on with this window, and each message is folded once.
    assert sum(others, half) == whole
    assert all(len(other) <= len(half) + 1 for other in others)


def test_a_long_message_is_divided_into_smaller_parts(server: OpenAIServer) -> None:
    memory = long_talk(InMemoryStore(), server, count=0)
    memory.append("s", ChatMessage.human("".join(f"[[{number}]] " + "word " * 20 for number in range(1, 60))))
    memory.append("s", ChatMessage.human("word " * 40))
    server.longest, server.too_long = 5000, Behaviour("raw", status=400, body="?")

    assert memory.compact("s") == "published"

    whole, *parts = map(marks, server.log)
    assert [mark for part in parts for mark in part] == whole == list(range(1, 60))


@pytest.mark.parametrize("reason", OTHER_REASONS)
def test_another_reason_is_no_reason_to_send_half(server: OpenAIServer, reason: str) -> None:
    memory = long_talk(InMemoryStore(), server)
    status, body = OTHER_REASONS[reason]
    server.default = Behaviour("raw", status=status, body=body)

    assert memory.compact("s") == "stalled"

    assert len(server.log) == 1


def test_a_refusal_of_the_half_too_is_a_failure_as_before(server: OpenAIServer) -> None:
    memory = long_talk(InMemoryStore(), server)
    server.default = Behaviour("raw", status=400, body="?")

    assert [memory.compact("s") for _ in range(3)] == ["stalled"] * 3

    whole, half = map(marks, server.log[:2])
    assert 0.4 * len(whole) < len(half) < 0.6 * len(whole)
    assert [marks(exchange) for exchange in server.log] == [whole, half] * 3


def test_only_one_half_is_tried_in_a_run(server: OpenAIServer) -> None:
    memory = long_talk(InMemoryStore(), server)
    refusal = Behaviour("raw", status=400, body="?")
    server.queue(refusal, Behaviour(), refusal)

    assert memory.compact("s") == "stalled"

    _whole, half, _refused = map(marks, server.log)
    assert covered_position(memory) == half[-1]


def test_the_fallback_gets_the_whole_chunk_that_was_refused(server: OpenAIServer) -> None:
    memory = long_talk(ORMStore(), server, max_attempts=1, fallback_after=0, fallback=ExtractiveChatModel())
    server.default = Behaviour("raw", status=400, body="?")

    assert memory.compact("s") == "published"

    (version,) = models.Summary.objects.all()
    assert (version.fallback, version.last_position) == (True, marks(server.log[0])[-1])
    assert outcomes() == ["unavailable", "unavailable", "published"]


def test_known_words_for_the_half_halve_it_further(server: OpenAIServer) -> None:
    memory = long_talk(InMemoryStore(), server)
    server.queue(Behaviour("raw", status=400, body="?"), Behaviour("context_length"))

    assert memory.compact("s") == "published"

    whole, half, quarter, *_ = (len(marks(exchange)) for exchange in server.log)
    assert whole > half > quarter


def test_a_chunk_that_is_too_small_is_not_halved(server: OpenAIServer) -> None:
    memory = long_talk(InMemoryStore(), server, count=1)
    memory.append("s", ChatMessage.ai("word " * 30))
    server.default = Behaviour("raw", status=400, body="?")

    assert memory.compact("s") == "stalled"

    assert len(server.log) == 1


def test_a_site_s_own_model_can_say_that_it_may_be_the_length() -> None:
    assert exceptions.RequestRejected("?").may_be_too_long is False
    assert exceptions.RequestRejected("?", may_be_too_long=True).may_be_too_long is True
