"""A text that was redacted before the worker's last check does not leave for a model."""

from __future__ import annotations

from typing import Any

import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.conversation import ConversationMemory
from django_convmemory.core.store import Store
from django_convmemory.messages import ChatMessage
from tests.chunks import assert_sound, before_each_call, covered_position, spoken_in
from tests.folding import MarkerModel, build, covered, talk

pytestmark = pytest.mark.django_db

SECRET = "[[1]] The password is hunter2. "


def with_secret(store: Store, model: Any, *, words: int = 8, **options: Any) -> ConversationMemory:
    memory = build(model, store=store, **options)
    memory.append("s", ChatMessage.human(SECRET + "word " * words))
    talk(memory, 9)
    return memory


class RedactBefore:
    """Redacts the first message after the prompt of one call was made, before the check that comes last."""

    def __init__(self, memory: ConversationMemory, call: int) -> None:
        self.memory = memory
        self.call = call
        self.checks = 0

    def __call__(self) -> None:
        self.checks += 1
        if self.checks == self.call:
            self.memory.redact("s", 1)


def sent(requests: list[ChatRequest]) -> str:
    return "\n".join(message.text for request in requests for message in request.messages)


def assert_folded_without_the_secret(memory: ConversationMemory, requests: list[ChatRequest]) -> None:
    requests.clear()
    assert memory.compact("s") == "published"
    assert requests
    assert "hunter2" not in sent(requests)
    assert "hunter2" not in memory.load("s").to_text()
    assert_sound(memory)


def test_a_fold_is_not_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MarkerModel()
    memory = with_secret(store, model)
    before_each_call(store, monkeypatch, RedactBefore(memory, 1))
    assert memory.compact("s") == "not_due"
    assert model.requests == []
    assert covered_position(memory) == 0
    assert_folded_without_the_secret(memory, model.requests)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_part_is_not_sent(store: Store, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    model = MarkerModel()
    memory = with_secret(store, model, words=8000, max_chunk_tokens=2000)
    before_each_call(store, monkeypatch, RedactBefore(memory, call))
    assert memory.compact("s") == "not_due"
    assert len(model.requests) == call - 1
    assert covered_position(memory) == 0
    assert_folded_without_the_secret(memory, model.requests)


def test_a_text_is_not_sent_to_be_shortened(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedChatModel(["The password is hunter2. " * 100, "They talked about order 4711."])
    memory = with_secret(store, model, max_summary_tokens=50)
    before_each_call(store, monkeypatch, RedactBefore(memory, 2))
    assert memory.compact("s") == "not_due"
    assert len(model.requests) == 1
    assert_folded_without_the_secret(memory, model.requests)


def test_a_smaller_chunk_is_not_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_the_first(request: ChatRequest) -> None:
        if len(model.requests) == 1:
            raise exceptions.ContextLengthExceeded("too long")

    model = MarkerModel(refuse_the_first)
    memory = with_secret(store, model, words=400)
    before_each_call(store, monkeypatch, RedactBefore(memory, 2))
    assert memory.compact("s") == "not_due"
    assert len(model.requests) == 1
    model.meanwhile = lambda request: None
    assert_folded_without_the_secret(memory, model.requests)


def test_the_fallback_is_not_sent_what_the_model_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: ChatRequest) -> None:
        raise exceptions.ContentRefused("no")

    model, fallback = MarkerModel(refuse), MarkerModel(name="fallback")
    memory = with_secret(store, model, fallback=fallback)
    before_each_call(store, monkeypatch, RedactBefore(memory, 2))
    assert memory.compact("s") == "not_due"
    assert (len(model.requests), fallback.requests) == (1, [])
    assert_folded_without_the_secret(memory, fallback.requests)


def test_a_rebuild_is_not_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MarkerModel()
    memory = with_secret(store, model)
    memory.compact("s")
    model.requests.clear()
    before_each_call(store, monkeypatch, RedactBefore(memory, 1))
    memory.rebuild("s")
    assert model.requests == []
    assert memory.load("s").summary is None
    assert_folded_without_the_secret(memory, model.requests)


def test_a_summary_that_has_the_secret_is_not_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedChatModel(["The password is hunter2.", "They talked about order 4711."])
    memory = with_secret(store, model)
    assert memory.compact("s") == "published"
    talk(memory, 10)
    before_each_call(store, monkeypatch, RedactBefore(memory, 1))
    assert memory.compact("s") == "not_due"
    assert len(model.requests) == 1
    assert_folded_without_the_secret(memory, model.requests)


def test_an_answer_that_comes_after_the_redaction_is_not_stored(store: Store) -> None:
    model = MarkerModel(lambda request: memory.redact("s", 1))
    memory = with_secret(store, model)
    assert memory.compact("s") == "not_due"
    assert covered_position(memory) == 0
    model.meanwhile = lambda request: None
    assert_folded_without_the_secret(memory, model.requests)


@pytest.mark.parametrize("how", ["truncate", "clear"])
def test_removed_messages_are_not_sent(store: Store, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    model = MarkerModel()
    memory = with_secret(store, model)
    before_each_call(store, monkeypatch, lambda: memory.truncate("s", 0) if how == "truncate" else memory.clear("s"))
    assert memory.compact("s") == "not_due"
    assert model.requests == []


def test_the_redaction_of_a_message_that_is_not_folded_now_keeps_it_from_the_next_fold(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MarkerModel()
    memory = with_secret(store, model)
    memory.redact("s", 10)
    assert memory.compact("s") == "published"
    talk(memory, 10)
    assert memory.compact("s") == "published"
    assert 10 not in covered("".join(map(spoken_in, model.requests)))
