"""Searches with embeddings: the meaning orders what the words have found, and nothing waits long for it."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from hypothesis import given, strategies

from django_convmemory.contrib.embeddings.embedder import Embedder, _stored, cosines
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from tests.embeddings.conftest import asked, id_of, ranker
from tests.openai_server import Behaviour, OpenAIServer

pytestmark = pytest.mark.django_db

TEXTS = (
    "The physician for the appointment is Doctor Stork.",
    *("The appointment is about something else." for _ in range(4)),
    "The appointment is about the boat.",
)
QUERY = "an appointment with the physician and the ship"


def talk(memory: ConversationMemory, key: Any = "s") -> None:
    memory.append(key, *map(ChatMessage.human, TEXTS))


def found(memory: ConversationMemory, query: str = "appointment ship", **options: Any) -> list[int]:
    return [hit.position for hit in memory.search(query, **{"session": "s", **options})]


def test_a_search_prefers_what_means_the_same(memory: ConversationMemory, provider: OpenAIServer) -> None:
    talk(memory)
    talk(memory, "other")
    before = found(memory)
    memory.compact_id(id_of())
    provider.forget()
    assert found(memory, "an appointment on the ship")[0] == 6
    assert asked(provider) == [["an appointment on the ship"]]
    assert sorted(found(memory)) == sorted(before)


def test_a_session_without_vectors_answers_and_asks_no_model(
    memory: ConversationMemory, provider: OpenAIServer
) -> None:
    talk(memory)
    memory.reranker, reranker = None, memory.reranker
    words = found(memory)
    memory.reranker = reranker
    assert found(memory) == words
    assert asked(provider) == []


def test_several_sessions_of_a_user_are_read_in_one_query(
    memory: ConversationMemory, django_assert_num_queries: Any
) -> None:
    user = get_user_model().objects.create(username="ines")
    for key in ("a", "b", "c"):
        talk(memory, memory.session(key, owner=user))
        memory.compact_id(id_of(key))
    talk(memory, "of nobody")
    reranker, memory.reranker = memory.reranker, None
    with django_assert_num_queries(3):
        memory.search("appointment", owner=user)
    memory.reranker = reranker
    with django_assert_num_queries(4):
        hits = memory.search("appointment ship", owner=user)
    assert {hit.session.key for hit in hits[:3]} == {"a", "b", "c"}
    assert {hit.position for hit in hits[:3]} == {6}


@pytest.mark.parametrize("behaviour", [Behaviour("hang"), Behaviour("server_error"), Behaviour("malformed")])
def test_a_late_or_failing_model_leaves_the_order_of_the_words(
    memory: ConversationMemory, provider: OpenAIServer, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    talk(memory)
    memory.compact_id(id_of())
    memory.reranker = None
    words = found(memory)
    memory.reranker = ranker(provider, timeout=2.0 if behaviour.kind == "hang" else 20.0)
    provider.forget()
    provider.default = behaviour
    assert found(memory) == words
    assert "order of the words" in caplog.text
    # The next search does not wait for it.
    assert found(memory) == words
    assert len(asked(provider)) == 1


def test_the_first_call_of_a_process_makes_the_client_before_its_time_begins(
    memory: ConversationMemory, provider: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(memory)
    memory.compact_id(id_of())
    memory.reranker = ranker(provider)
    makers: list[threading.Thread] = []
    made = Embedder._made

    def noted(self: Embedder, *args: Any) -> Any:
        makers.append(threading.current_thread())
        return made(self, *args)

    monkeypatch.setattr(Embedder, "_made", noted)
    assert found(memory, "an appointment on the ship")[0] == 6
    # The time limit is that of the thread of a call.
    assert makers == [threading.current_thread()]


def test_a_query_that_is_long_or_no_valid_text_is_embedded_by_its_beginning(
    memory: ConversationMemory, provider: OpenAIServer
) -> None:
    talk(memory)
    memory.compact_id(id_of())
    provider.forget()
    assert found(memory, "\ud83d appointment ship" + " boat" * 9_000)
    assert asked(provider) == [[("? appointment ship" + " boat" * 9_000)[:2_000]]]


numbers = strategies.lists(strategies.floats(-1, 1).filter(lambda number: abs(number) > 1e-3), min_size=8, max_size=8)


@given(numbers, numbers)
def test_a_stored_vector_has_nearly_the_cosine_of_the_numbers(one: list[float], other: list[float]) -> None:
    product = sum(map(lambda a, b: a * b, one, other))
    exact = product / math.hypot(*one) / math.hypot(*other)
    assert cosines(_stored(one), [_stored(other)]) == [pytest.approx(exact, abs=0.02)]


def test_vectors_of_two_sizes_and_empty_ones_are_not_alike() -> None:
    assert cosines(_stored([1.0, 2.0]), [_stored([1.0]), b"", _stored([2.0, -1.0])]) == [0.0, 0.0, 0.0]
