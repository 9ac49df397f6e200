"""Reports folds, calls of models and searches to OpenTelemetry."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.contrib.telemetry import attributes, conf
from django_convmemory.contrib.telemetry.instruments import Instruments
from django_convmemory.messages import ChatMessage
from django_convmemory.observers import ModelCall, Observer, Run, Search
from django_convmemory.search.hits import Hit

# The link between an append and the fold needs this form, whatever form a site has chosen for its own headers.
_PROPAGATOR = TraceContextTextMapPropagator()


class Telemetry(Observer):
    """Makes the spans and the metrics. Without providers, it uses those that the site has set for the process."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        options: conf.TelemetryOptions | None = None,
    ) -> None:
        self.options = options or conf.options()
        self.tracer = trace.get_tracer("django_convmemory", tracer_provider=tracer_provider)
        self.instruments = Instruments(meter_provider, gauges=self.options.gauges)

    @contextlib.contextmanager
    def folding(self, run: Run) -> Iterator[None]:
        began = time.monotonic()
        known = {attributes.ALIAS: run.alias, "convmemory.work": run.work}
        outcome = "error"
        with self._span("convmemory.compact", SpanKind.INTERNAL, known, links=_links(run.origin)) as span:
            try:
                yield
                outcome = run.outcome
            finally:
                if run.public_id:
                    span.set_attribute(attributes.CONVERSATION, run.public_id)
                span.set_attribute(attributes.OUTCOME, outcome)
                measured = {**known, attributes.OUTCOME: outcome}
                self.instruments.folds.add(1, measured)
                self.instruments.fold_duration.record(time.monotonic() - began, measured)

    @contextlib.contextmanager
    def calling(self, call: ModelCall) -> Iterator[None]:
        if not self._reports(call):
            yield
            self._count_cached(call)
            return
        began = time.monotonic()
        known = attributes.of_call(call.model)
        name = f"chat {call.model.name}" if call.model.name else "chat"
        kind = SpanKind.CLIENT if "server.address" in known else SpanKind.INTERNAL
        failed: dict[str, str] = {}
        with self._span(name, kind, {**known, attributes.CONVERSATION: call.public_id}) as span:
            if self.options.content and span.is_recording():
                span.set_attributes(of_request(call.request))
            try:
                yield
            except BaseException as error:
                failed[attributes.ERROR] = attributes.error_type(error)
                raise
            finally:
                measured = {**known, **self._answered(call, span)}
                self.instruments.duration.record(time.monotonic() - began, {**measured, **failed})
        self._count_cached(call)
        if call.response is not None and call.response.usage is not None:
            self.instruments.count_tokens(call.response.usage, measured)

    @contextlib.contextmanager
    def searching(self, search: Search) -> Iterator[None]:
        known = {attributes.OPERATION: "search_memory", attributes.STORE: search.alias}
        with self._span("search_memory", SpanKind.INTERNAL, known) as span:
            yield
            span.set_attribute("gen_ai.memory.record.count", len(search.hits))
            if self.options.content and span.is_recording():
                span.set_attributes(of_search(search.query, search.hits))

    def loaded(self, alias: str, omitted: int) -> None:
        if omitted:
            self.instruments.omitted.add(omitted, {attributes.ALIAS: alias})

    def headers(self) -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier

    def _reports(self, call: ModelCall) -> bool:
        if self.options.chat_spans is None:
            return not is_instrumented(call.model)
        return self.options.chat_spans

    def _answered(self, call: ModelCall, span: Span) -> dict[str, str]:
        """Add the answer to the span, and return what metrics have of it."""
        if call.response is None:
            return {}
        span.set_attributes(attributes.of_response(call.response))
        if self.options.content and span.is_recording():
            span.set_attributes(of_response(call.response))
        return {"gen_ai.response.model": call.response.model} if call.response.model else {}

    def _count_cached(self, call: ModelCall) -> None:
        usage = call.response.usage if call.response is not None else None
        if usage is not None and usage.cached_tokens is not None:
            self.instruments.cached_tokens.add(usage.cached_tokens, {attributes.ALIAS: call.alias})

    @contextlib.contextmanager
    def _span(
        self, name: str, kind: SpanKind, known: Mapping[str, str | int], *, links: list[Link] | None = None
    ) -> Iterator[Span]:
        """Make a span the current one. An error is noted by its class: its text could quote a conversation."""
        started = functools.partial(self.tracer.start_as_current_span, name, kind=kind, attributes=known, links=links)
        with started(record_exception=False, set_status_on_exception=False) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute(attributes.ERROR, attributes.error_type(error))
                span.set_status(Status(StatusCode.ERROR))
                raise


def _links(origin: Mapping[str, str]) -> list[Link]:
    """Return a link to the span in which the session became due, in another process."""
    context = trace.get_current_span(_PROPAGATOR.extract(dict(origin))).get_span_context() if origin else None
    return [Link(context)] if context is not None and context.is_valid else []


# What was said, as JSON in the forms of the semantic conventions. Only a site that asks for it gets it.


def of_request(request: ChatRequest) -> dict[str, str]:
    return {"gen_ai.input.messages": _dumps([_message(message) for message in request.messages])}


def of_response(response: ChatResponse) -> dict[str, str]:
    message = {**_message(response.message), "finish_reason": response.finish_reason}
    return {"gen_ai.output.messages": _dumps([message])}


def of_search(query: str, hits: Sequence[Hit]) -> dict[str, str]:
    records = [{"id": str(hit.position), "content": hit.excerpt, "score": hit.score} for hit in hits]
    return {"gen_ai.memory.query.text": query, "gen_ai.memory.records": _dumps(records)}


def _message(message: ChatMessage) -> dict[str, Any]:
    return {"role": message.role, "parts": [{"type": "text", "content": message.text}]}


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# Whether another instrumentation makes the spans of the openai client's calls already.


def is_instrumented(model: ChatModel) -> bool:
    """Whether the method of the client that ``model`` calls was replaced, as instrumentations do."""
    completions = sys.modules.get("openai.resources.chat.completions")
    if completions is None or not isinstance(model, OpenAIChatModel):
        return False
    # An instrumentation puts an object of its own in place of the function. isinstance() would not tell: a wrapper may
    # have the class of what it wraps.
    return any(
        type(vars(cls).get("create")) is not types.FunctionType
        for cls in (completions.Completions, completions.AsyncCompletions)
    )
