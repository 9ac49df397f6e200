"""What a redaction removes, and that a redacted text does not leave for a model.

Beside this file: ``test_changes_at_once`` (copies that change meanwhile), ``test_index_of_changes`` (the search index),
``test_long_messages`` (parts of a summary) and ``test_dumps`` (dumps of the database).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core import serializers

from django_convmemory import exceptions, models
from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.edit import Redacted
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.store import Store
from django_convmemory.store.orm import ORMStore
from tests.chunks import assert_sound, before_each_call, covered_position
from tests.folding import MarkerModel, build, covered, session, talk

pytestmark = [pytest.mark.django_db, pytest.mark.vendors]

SECRET = "hunter2 um Mitternacht"


def dump() -> str:
    """Return the contents of all tables of the app as text."""
    return "\n".join(
        serializers.serialize("json", model.objects.all(), ensure_ascii=False)
        if model is not models.Message
        else json.dumps(list(model.objects.values()), default=str, ensure_ascii=False)
        for model in (models.Session, models.Message, models.Summary, models.Attempt)
    )


class Parrot(MarkerModel):
    """Repeats the secret if it is shown it, so that the summary has it too."""

    def chat(self, request: ChatRequest) -> Any:
        response = super().chat(request)
        addition = SECRET if SECRET in request.messages[-1].text else "nothing special"
        return type(response)(ChatMessage.ai(f"{response.message.text} {addition}"))


def secretive(store: Store) -> ConversationMemory:
    """Return a memory whose session ``s`` has the secret in every field at position 5, and in its summary."""
    memory = build(Parrot(), store=store, fallback=None)
    talk(memory, 4)
    message = ChatMessage.ai(
        SECRET,
        tool_calls=[{"id": "c1", "type": "function", "function": {"name": "cook", "arguments": json.dumps([SECRET])}}],
        metadata={"note": SECRET},
        extra={"reasoning_content": SECRET},
    )
    memory.append("s", message, ChatMessage.tool("done", "c1"), idempotency_key="k")
    talk(memory, 10)
    assert memory.compact("s") == "published"
    assert SECRET in memory.load("s").to_text()
    return memory


# What goes, and what stays.


def test_nothing_of_a_redacted_message_is_left_in_the_database() -> None:
    memory = secretive(ORMStore())
    payload = models.UsedKey.objects.get().content
    assert payload
    memory.fork("s", 12, key="copy")
    memory.fork("copy", 8, key="copy of the copy")
    models.Session.objects.update(last_error=f"ValueError: {SECRET}")
    tokens = session().unpinned_tokens

    assert memory.redact("s", 5).sessions == 3

    assert SECRET not in dump()
    assert payload not in dump()
    assert hashlib.sha256(SECRET.encode()).hexdigest() not in dump()
    assert session().unpinned_tokens == tokens
    assert_sound(memory)


def test_a_redacted_message_keeps_its_place_and_a_provider_accepts_it(store: Store) -> None:
    memory = secretive(store)
    memory.redact("s", 5)
    [kept] = memory.history("s", after=4, limit=1)
    assert kept.redacted
    assert kept.message.to_openai() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "cook", "arguments": "{}"}}],
    }
    messages = memory.load("s", max_tokens=10**6).to_openai()
    assert {
        "role": "assistant",
        "content": "[This message was removed.]",
        "tool_calls": kept.message.to_openai()["tool_calls"],
    } in messages
    assert memory.append("s", ChatMessage.human("Go on.")).first_position == 17


def test_what_came_after_a_redacted_message_is_folded_again_without_it(store: Store) -> None:
    memory = secretive(store)
    memory.fork("s", 16, key="copy")
    memory.fork("copy", 16, key="copy of the copy")
    assert memory.redact("s", 5).sessions == 3
    for key in ("s", "copy", "copy of the copy"):
        assert memory.load(key).summary is None
        assert SECRET not in str(memory.history(key))
        assert memory.compact(key) == "published"
        text = memory.load(key).to_text()
        assert SECRET not in text
        assert covered(text) == [1, 2, 3, 4, *range(7, 17)]
    assert_sound(memory)


def test_a_redaction_is_of_the_batch_that_it_is_in(store: Store) -> None:
    memory = build(MarkerModel(), 10**6, store=store)
    memory.append("s", *[ChatMessage.human("one")] * 2, idempotency_key="k")
    memory.append("s", ChatMessage.human(SECRET))
    memory.redact("s", 3)
    with pytest.raises(exceptions.IdempotencyConflict):
        memory.append("s", *[ChatMessage.human("other")] * 2, idempotency_key="k")
    memory.redact("s", 2)
    # A retry does not bring back what was redacted.
    retried = memory.append("s", *[ChatMessage.human("one")] * 2, idempotency_key="k")
    assert (retried[:2], retried.replayed) == ((1, 2), True)
    assert memory.history("s")[1].message.text == ""
    with pytest.raises(exceptions.IdempotencyConflict):
        memory.append("s", *[ChatMessage.human("one")] * 3, idempotency_key="k")


def test_a_copy_that_went_another_way_is_left_alone(store: Store) -> None:
    memory = build(MarkerModel(), store=store)
    talk(memory, 6)
    memory.fork("s", 6, key="copy")
    memory.truncate("copy", 3)
    memory.append("copy", ChatMessage.human("something else"))
    assert memory.redact("s", 4).sessions == 1
    assert memory.history("copy", after=3)[0].message.text == "something else"
    assert memory.redact("s", 3).sessions == 2


def test_copies_of_a_deleted_copy_stay_within_reach(store: Store) -> None:
    memory = build(MarkerModel(), store=store)
    talk(memory, 6)
    memory.fork("s", 6, key="1")
    memory.fork("1", 5, key="2")
    memory.fork("2", 4, key="3")
    memory.delete("1")
    if isinstance(store, ORMStore):
        models.Session.objects.get(key="2").delete()
    else:
        memory.delete("2")
    assert memory.redact("s", 4).sessions == 2
    assert memory.redact("s", 5).sessions == 1
    assert memory.history("3")[3].redacted


def test_redacting_what_is_not_there_says_so(store: Store) -> None:
    memory = build(MarkerModel(), store=store)
    talk(memory, 2)
    for key, position in (("s", 3), ("nobody", 1)):
        with pytest.raises(exceptions.UnknownMessage, match="no message at position"):
            memory.redact(key, position)


# A text that was redacted before the worker's last check does not leave for a model.


def with_secret(store: Store, model: Any, *, words: int = 8, **options: Any) -> ConversationMemory:
    memory = build(model, store=store, **options)
    memory.append("s", ChatMessage.human(f"[[1]] {SECRET}. " + "word " * words))
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


def assert_folded_without_the_secret(memory: ConversationMemory, requests: list[ChatRequest]) -> None:
    requests.clear()
    assert memory.compact("s") == "published"
    assert requests
    assert "hunter2" not in "\n".join(message.text for request in requests for message in request.messages)
    assert "hunter2" not in memory.load("s").to_text()
    assert_sound(memory)


def refusing_once() -> MarkerModel:
    errors = [exceptions.ContextLengthExceeded("too long")]

    def refuse(request: ChatRequest) -> None:
        if errors:
            raise errors.pop()

    return MarkerModel(refuse)


def too_wordy() -> ScriptedChatModel:
    return ScriptedChatModel([f"{SECRET}. " * 100, "They talked about order 4711."])


@pytest.mark.parametrize(
    ("make", "options", "call"),
    [
        pytest.param(MarkerModel, {}, 1, id="a fold"),
        *[
            pytest.param(MarkerModel, {"words": 8000, "max_chunk_tokens": 2000}, call, id=f"part {call}")
            for call in (1, 2, 3)
        ],
        pytest.param(too_wordy, {"max_summary_tokens": 50}, 2, id="a text to be shortened"),
        pytest.param(refusing_once, {"words": 400}, 2, id="a smaller chunk"),
    ],
)
def test_a_redacted_text_is_not_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], options: dict[str, Any], call: int
) -> None:
    model = make()
    memory = with_secret(store, model, **options)
    before_each_call(store, monkeypatch, RedactBefore(memory, call))
    assert memory.compact("s") == "not_due"
    assert len(model.requests) == call - 1
    assert covered_position(memory) == 0
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
    model = ScriptedChatModel([f"{SECRET}.", "They talked about order 4711."])
    memory = with_secret(store, model)
    assert memory.compact("s") == "published"
    talk(memory, 10)
    before_each_call(store, monkeypatch, RedactBefore(memory, 1))
    assert memory.compact("s") == "not_due"
    assert len(model.requests) == 1
    assert_folded_without_the_secret(memory, model.requests)


def test_an_answer_that_comes_after_the_redaction_is_not_stored(store: Store) -> None:
    redacted: list[Redacted] = []
    model = Parrot(lambda request: redacted.append(memory.redact("s", 1)) if not redacted else None)
    memory = with_secret(store, model)
    assert memory.compact("s") == "not_due"
    assert redacted == [(1, True)]
    assert covered_position(memory) == 0
    assert SECRET not in dump()
    assert_folded_without_the_secret(memory, model.requests)
    assert memory.redact("s", 2) == (1, False)


@pytest.mark.parametrize("how", ["truncate", "clear"])
def test_removed_messages_are_not_sent(store: Store, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    model = MarkerModel()
    memory = with_secret(store, model)
    before_each_call(store, monkeypatch, lambda: memory.truncate("s", 0) if how == "truncate" else memory.clear("s"))
    assert memory.compact("s") == "not_due"
    assert model.requests == []
