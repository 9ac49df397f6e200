"""The spans, as OpenTelemetry's SDK exports them."""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from django_convmemory import models, observers
from django_convmemory.chat_models.base import ChatResponse, Usage
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.exceptions import ModelUnavailable
from django_convmemory.messages import ChatMessage
from django_convmemory.store.in_memory import InMemoryStore
from tests.chat_models.asking import model_at
from tests.folding import build, session, talk
from tests.openai_server import OpenAIServer
from tests.telemetry import conventions
from tests.telemetry.conftest import Reported, Reporting

pytestmark = pytest.mark.django_db

SECRET = "the-secret-word"
ANSWER = ChatResponse(
    ChatMessage.ai("They talked."),
    usage=Usage(prompt_tokens=1000, completion_tokens=50, cached_tokens=800),
    model="m-1",
)


def check(span: ReadableSpan, allowed: Mapping[str, type], required: set[str]) -> None:
    """Compare the attributes of a span with the conventions. Those of this project may be there, too."""
    attributes = dict(span.attributes or {})
    assert required <= attributes.keys()
    for name, value in attributes.items():
        if not name.startswith("convmemory."):
            assert name in allowed, name
            assert type(value) is allowed[name], name


def test_a_fold_has_a_span_with_the_call_of_the_model_in_it(reported: Reported, server: OpenAIServer) -> None:
    memory = build(model_at(server))
    talk(memory, 10)

    assert memory.compact("s") == "published"

    call, fold = reported.spans()
    assert (fold.name, fold.kind, fold.status.status_code) == (
        "convmemory.compact",
        SpanKind.INTERNAL,
        StatusCode.UNSET,
    )
    assert {type(value) for value in (fold.attributes or {}).values()} == {str}
    assert fold.attributes == {
        "gen_ai.conversation.id": str(session().public_id),
        "convmemory.alias": "default",
        "convmemory.work": "compact",
        "convmemory.outcome": "published",
    }
    assert (call.name, call.kind, call.status.status_code) == ("chat tiny", SpanKind.CLIENT, StatusCode.UNSET)
    assert call.parent is not None
    assert fold.context is not None
    assert call.parent.span_id == fold.context.span_id
    check(call, conventions.CHAT, conventions.CHAT_REQUIRED)
    attributes = dict(call.attributes or {})
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "openai"
    assert attributes["gen_ai.request.model"] == "tiny"
    assert attributes["gen_ai.conversation.id"] == str(session().public_id)
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert f"http://{attributes['server.address']}:{attributes['server.port']}/v1" == server.base_url
    attempt = models.Attempt.objects.get()
    assert attributes["gen_ai.usage.input_tokens"] == attempt.prompt_tokens
    assert attributes["gen_ai.usage.output_tokens"] == attempt.completion_tokens


def test_an_asynchronous_fold_has_the_same_spans_with_what_the_provider_reported(reported: Reported) -> None:
    memory = build(ScriptedChatModel([ANSWER], name="asked"), store=InMemoryStore())
    talk(memory, 10)

    assert asyncio.run(memory.acompact("s")) == "published"

    call, fold = reported.spans()
    assert fold.name == "convmemory.compact"
    assert call.parent is not None
    assert fold.context is not None
    assert call.parent.span_id == fold.context.span_id
    attributes = dict(call.attributes or {})
    check(call, conventions.CHAT, conventions.CHAT_REQUIRED)
    assert (call.name, call.kind) == ("chat asked", SpanKind.INTERNAL)
    assert attributes["gen_ai.provider.name"] == "django_convmemory"
    assert attributes["gen_ai.response.model"] == "m-1"
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 800


def test_a_failed_call_says_the_class_of_its_error_and_no_text(reported: Reported) -> None:
    memory = build(ScriptedChatModel([ModelUnavailable(SECRET)]))
    talk(memory, 10)

    assert memory.compact("s") == "stalled"

    call, fold = reported.spans()
    check(call, conventions.CHAT, conventions.CHAT_REQUIRED)
    assert call.status.status_code == StatusCode.ERROR
    assert call.status.description is None
    assert dict(call.attributes or {})["error.type"] == "ModelUnavailable"
    assert dict(fold.attributes or {})["convmemory.outcome"] == "stalled"
    assert SECRET not in call.to_json() + fold.to_json()


def test_a_defect_ends_both_spans(reported: Reported) -> None:
    memory = build(ScriptedChatModel([KeyboardInterrupt]))
    talk(memory, 10)

    with pytest.raises(KeyboardInterrupt):
        memory.compact("s")

    call, fold = reported.spans()
    assert {call.status.status_code, fold.status.status_code} == {StatusCode.ERROR}
    assert dict(fold.attributes or {})["error.type"] == "KeyboardInterrupt"
    assert dict(fold.attributes or {})["convmemory.outcome"] == "error"


def test_a_rebuild_is_a_fold_of_its_own_kind(reported: Reported) -> None:
    memory = build(ScriptedChatModel(["one", "two"]))
    talk(memory, 10)
    memory.compact("s")
    memory.rebuild("s")

    works = [dict(span.attributes or {})["convmemory.work"] for span in reported.spans("convmemory.compact")]
    assert works == ["compact", "rebuild"]


def test_a_search_has_a_span_without_what_was_searched(reported: Reported) -> None:
    memory = build(ScriptedChatModel())
    memory.append("s", ChatMessage.human(f"I like {SECRET}."))

    assert len(memory.search(SECRET, session="s")) == 1

    [search] = reported.spans("search_memory")
    check(search, conventions.SEARCH_MEMORY, conventions.SEARCH_MEMORY_REQUIRED)
    assert search.attributes == {
        "gen_ai.operation.name": "search_memory",
        "gen_ai.memory.store.id": "default",
        "gen_ai.memory.record.count": 1,
    }
    assert SECRET not in search.to_json()


def test_a_recall_has_a_span_and_a_load_without_one_has_none(reported: Reported) -> None:
    memory = build(ScriptedChatModel(["They talked."]))
    memory.append("s", ChatMessage.human("My parrot is called Coco."))
    talk(memory, 10)
    memory.compact("s")

    memory.load("s")
    assert reported.spans("search_memory") == []
    recalled = memory.load("s", recall="parrot Coco").recalled

    assert recalled
    [search] = reported.spans("search_memory")
    assert dict(search.attributes or {})["gen_ai.memory.record.count"] == len(recalled)


def test_content_is_there_only_if_it_is_asked_for(reporting: Reporting) -> None:
    with reporting(content=True) as reported:
        memory = build(ScriptedChatModel([f"They talked of {SECRET}."]))
        memory.append("s", ChatMessage.human(f"I like {SECRET}."))
        talk(memory, 10)
        memory.compact("s")
        memory.search(SECRET, session="s")

    call, search = reported.spans("chat")[0], reported.spans("search_memory")[0]
    check(call, conventions.CHAT | conventions.CHAT_CONTENT, set(conventions.CHAT_CONTENT))
    check(search, conventions.SEARCH_MEMORY | conventions.SEARCH_MEMORY_CONTENT, set(conventions.SEARCH_MEMORY_CONTENT))
    attributes = dict(call.attributes or {}) | dict(search.attributes or {})
    sent = json.loads(str(attributes["gen_ai.input.messages"]))
    assert {part["type"] for message in sent for part in message["parts"]} == {"text"}
    assert SECRET in sent[-1]["parts"][0]["content"]
    assert json.loads(str(attributes["gen_ai.output.messages"])) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": f"They talked of {SECRET}."}],
            "finish_reason": "stop",
        }
    ]
    assert attributes["gen_ai.memory.query.text"] == SECRET
    assert SECRET in json.loads(str(attributes["gen_ai.memory.records"]))[0]["content"]


def test_a_fold_is_linked_to_the_span_that_made_the_session_due(reported: Reported) -> None:
    memory = build(ScriptedChatModel(["fine"]))
    talk(memory, 10)
    assert observers.headers() == {}  # Outside of a span, a task carries nothing.
    with reported.tracer_provider.get_tracer("site").start_as_current_span("request") as request:
        headers = observers.headers()

    with observers.originating(headers):
        memory.compact("s")

    [fold] = reported.spans("convmemory.compact")
    [link] = fold.links
    assert link.context == remote(request.get_span_context())
    assert fold.parent is None


def remote(context: Any) -> Any:
    """The context as another process sees it."""
    return type(context)(context.trace_id, context.span_id, True, context.trace_flags, context.trace_state)


@pytest.mark.parametrize("origin", [None, [], "x", {}, {"traceparent": 1}, {"traceparent": "00-zz-yy-01"}, {1: "x"}])
def test_a_task_with_other_headers_is_folded_without_a_link(reported: Reported, origin: Any) -> None:
    memory = build(ScriptedChatModel(["fine"]))
    talk(memory, 10)

    with observers.originating(origin):
        assert memory.compact("s") == "published"

    [fold] = reported.spans("convmemory.compact")
    assert list(fold.links) == []


def test_another_instrumentation_of_the_client_makes_the_span(
    reporting: Reporting, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openai  # noqa: F401
    from openai.resources.chat import completions

    class Wrapper:
        """What instrumentations put in place of the method. It claims to be of the same class, as those of wrapt do."""

        __class__ = types.FunctionType  # type: ignore[assignment]

        def __init__(self, wrapped: Any) -> None:
            self.wrapped = wrapped

        def __get__(self, instance: Any, owner: Any) -> Any:
            return self.wrapped.__get__(instance, owner)

    monkeypatch.setattr(completions.Completions, "create", Wrapper(completions.Completions.create))
    for chat_spans, expected in ((None, 0), (True, 1), (False, 0)):
        with reporting(chat_spans=chat_spans) as reported:
            memory = build(model_at(server))
            talk(memory, 10, key=f"s{chat_spans}")
            assert memory.compact(f"s{chat_spans}") == "published"
        assert len(reported.spans("chat")) == expected
        assert len(reported.points("gen_ai.client.operation.duration")) == 0 or expected
        assert len(reported.spans("convmemory.compact")) == 1
