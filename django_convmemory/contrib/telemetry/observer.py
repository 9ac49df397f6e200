"""Reports folds, calls of models and searches to OpenTelemetry, as ``settings.CONVMEMORY_TELEMETRY`` says."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
import types
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_convmemory.chat_models.base import ChatModel, ChatResponse
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.conf import from_settings
from django_convmemory.contrib.monitoring import figures
from django_convmemory.messages import ChatMessage, dumps
from django_convmemory.observers import ModelCall, Observer, Run, Search
from django_convmemory.rules.options import check_type
from django_convmemory.store import transactions

NAME = "CONVMEMORY_TELEMETRY"

# The attributes of spans and metrics, by OpenTelemetry's semantic conventions for generative AI.
OPERATION = "gen_ai.operation.name"
CONVERSATION = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
STORE = "gen_ai.memory.store.id"
ERROR = "error.type"
# Of this project.
ALIAS = "convmemory.alias"
OUTCOME = "convmemory.outcome"

_PORTS = {"http": 80, "https": 443}

# The link between an append and the fold needs this form, whatever form a site has chosen for its own headers.
_PROPAGATOR = TraceContextTextMapPropagator()
# The semantic conventions say these boundaries.
DURATION_BOUNDARIES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKEN_BOUNDARIES = tuple(4**power for power in range(14))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryOptions:
    """The keys of ``CONVMEMORY_TELEMETRY``, in lower case."""

    # Whether calls of models get a span and metrics. None: unless an instrumentation of the openai client makes them.
    chat_spans: bool | None = None
    # Whether spans have the texts of requests, answers and searches.
    content: bool = False
    # Whether the process reports how many sessions are due. It then asks the database at each export.
    gauges: bool = True

    def __post_init__(self) -> None:
        check_type("CHAT_SPANS", self.chat_spans, bool | None)
        check_type("CONTENT", self.content, bool)
        check_type("GAUGES", self.gauges, bool)


class Telemetry(Observer):
    """Makes the spans and the metrics. Without providers, it uses those that the site has set for the process."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        options: TelemetryOptions | None = None,
    ) -> None:
        self.options = options or from_settings(TelemetryOptions, NAME)
        self.tracer = trace.get_tracer("django_convmemory", tracer_provider=tracer_provider)
        self.instruments = Instruments(meter_provider, gauges=self.options.gauges)

    @contextlib.contextmanager
    def folding(self, run: Run) -> Iterator[None]:
        began = time.monotonic()
        known = {ALIAS: run.alias, "convmemory.work": run.work}
        outcome = "error"
        with self._span("convmemory.compact", SpanKind.INTERNAL, known, links=_links(run.origin)) as span:
            try:
                yield
                outcome = run.outcome
            finally:
                if run.public_id:
                    span.set_attribute(CONVERSATION, run.public_id)
                span.set_attribute(OUTCOME, outcome)
                measured = {**known, OUTCOME: outcome}
                self.instruments.folds.add(1, measured)
                self.instruments.fold_duration.record(time.monotonic() - began, measured)

    @contextlib.contextmanager
    def calling(self, call: ModelCall) -> Iterator[None]:
        reports = self.options.chat_spans
        if reports is False or (reports is None and is_instrumented(call.model)):
            yield
            self._count_cached(call)
            return
        began = time.monotonic()
        known = of_call(call.model)
        name = f"chat {call.model.name}" if call.model.name else "chat"
        kind = SpanKind.CLIENT if "server.address" in known else SpanKind.INTERNAL
        failed: dict[str, str] = {}
        with self._span(name, kind, {**known, CONVERSATION: call.public_id}) as span:
            if self.options.content and span.is_recording():
                span.set_attribute("gen_ai.input.messages", dumps([_message(each) for each in call.request.messages]))
            try:
                yield
            except BaseException as error:
                failed[ERROR] = type(error).__qualname__
                raise
            finally:
                measured = {**known, **self._answered(call, span)}
                self.instruments.duration.record(time.monotonic() - began, {**measured, **failed})
        self._count_cached(call)
        if call.response is not None and (usage := call.response.usage) is not None:
            tokens = self.instruments.tokens
            tokens.record(usage.prompt_tokens, {**measured, "gen_ai.token.type": "input"})
            tokens.record(usage.completion_tokens, {**measured, "gen_ai.token.type": "output"})

    @contextlib.contextmanager
    def searching(self, search: Search) -> Iterator[None]:
        known = {OPERATION: "search_memory", STORE: search.alias}
        with self._span("search_memory", SpanKind.INTERNAL, known) as span:
            yield
            span.set_attribute("gen_ai.memory.record.count", len(search.hits))
            if self.options.content and span.is_recording():
                records = [{"id": str(hit.position), "content": hit.excerpt, "score": hit.score} for hit in search.hits]
                span.set_attribute("gen_ai.memory.query.text", search.query)
                span.set_attribute("gen_ai.memory.records", dumps(records))

    def loaded(self, alias: str, omitted: int) -> None:
        if omitted:
            self.instruments.omitted.add(omitted, {ALIAS: alias})

    def headers(self) -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier

    def _answered(self, call: ModelCall, span: Span) -> dict[str, str]:
        """Add the answer to the span, and return what metrics have of it."""
        if call.response is None:
            return {}
        span.set_attributes(of_answer(call.response))
        if self.options.content and span.is_recording():
            answer = {**_message(call.response.message), "finish_reason": call.response.finish_reason}
            span.set_attribute("gen_ai.output.messages", dumps([answer]))
        return {"gen_ai.response.model": call.response.model} if call.response.model else {}

    def _count_cached(self, call: ModelCall) -> None:
        usage = call.response.usage if call.response is not None else None
        if usage is not None and usage.cached_tokens is not None:
            self.instruments.cached_tokens.add(usage.cached_tokens, {ALIAS: call.alias})

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
                span.set_attribute(ERROR, type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR))
                raise


def _links(origin: Mapping[str, str]) -> list[Link]:
    """Return a link to the span in which the session became due, in another process."""
    context = trace.get_current_span(_PROPAGATOR.extract(dict(origin))).get_span_context() if origin else None
    return [Link(context)] if context is not None and context.is_valid else []


# The attributes.


def of_call(model: ChatModel) -> dict[str, str | int]:
    """Return the attributes of a call of ``model`` that are known before it answers."""
    # The provider, as far as the client tells. Another endpoint with OpenAI's interface is "openai" too.
    provider = "openai" if isinstance(model, OpenAIChatModel) else type(model).__module__.partition(".")[0]
    attributes: dict[str, str | int] = {OPERATION: "chat", PROVIDER: provider}
    if model.name:
        attributes["gen_ai.request.model"] = model.name
    return attributes | server(model)


def server(model: ChatModel) -> dict[str, str | int]:
    """Return the host and the port that a model calls, or nothing if it does not say so."""
    try:
        parts = urllib.parse.urlsplit(getattr(model, "base_url", ""))
        port = parts.port or _PORTS.get(parts.scheme)
    except (TypeError, ValueError):
        return {}
    if not parts.hostname or port is None:
        return {}
    return {"server.address": parts.hostname, "server.port": port}


def of_answer(response: ChatResponse) -> dict[str, str | int | list[str]]:
    """Return the attributes of an answer."""
    attributes: dict[str, str | int | list[str]] = {"gen_ai.response.finish_reasons": [response.finish_reason]}
    if response.model:
        attributes["gen_ai.response.model"] = response.model
    if (usage := response.usage) is not None:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens is not None:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    return attributes


# What was said, as JSON in the forms of the semantic conventions. Only a site that asks for it gets it.


def _message(message: ChatMessage) -> dict[str, Any]:
    return {"role": message.role, "parts": [{"type": "text", "content": message.text}]}


# Whether another instrumentation makes the spans of the openai client's calls already.


def is_instrumented(model: ChatModel) -> bool:
    """Whether the method of the client that ``model`` calls was replaced, as instrumentations do."""
    completions = sys.modules.get("openai.resources.chat.completions")
    if completions is None or not isinstance(model, OpenAIChatModel):
        return False
    # An instrumentation puts an object of its own in place of the function. isinstance() would not tell: a wrapper may
    # have the class of what it wraps.
    classes = (completions.Completions, completions.AsyncCompletions)
    return any(type(vars(cls).get("create")) is not types.FunctionType for cls in classes)


# The metrics: two of the semantic conventions, and our own.


class Instruments:
    """The instruments of one provider. Without ``gauges`` nothing asks the database."""

    def __init__(self, provider: MeterProvider | None, *, gauges: bool) -> None:
        meter: Meter = metrics.get_meter("django_convmemory", meter_provider=provider)
        histogram, counter, gauge = meter.create_histogram, meter.create_counter, meter.create_observable_gauge
        seconds = functools.partial(histogram, unit="s", explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES)
        self.duration = seconds("gen_ai.client.operation.duration", description="GenAI operation duration.")
        self.fold_duration = seconds("convmemory.fold.duration", description="Duration of a run of compaction.")
        self.tokens = histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKEN_BOUNDARIES,
        )
        self.folds = counter("convmemory.folds", "{fold}", "Runs of compaction, by outcome.")
        self.cached_tokens = counter(
            "convmemory.cached_tokens", "{token}", "Tokens of the prompts of folds that came from the provider's cache."
        )
        self.omitted = counter(
            "convmemory.omitted_messages",
            "{message}",
            "Messages that a context had no room for and that no summary covered.",
        )
        if gauges:
            due, oldest = (functools.partial(_observed, field) for field in ("due", "oldest_due_seconds"))
            gauge("convmemory.sessions.due", [due], "{session}", "Sessions that wait to be folded.")
            gauge("convmemory.sessions.oldest_due", [oldest], "s", "How long the longest waiting session has been due.")


def _observed(field: str, options: CallbackOptions) -> Iterable[Observation]:
    try:
        return [Observation(getattr(backlog, field), {ALIAS: alias}) for alias, backlog in figures.backlogs().items()]
    finally:
        # The thread of an exporter belongs to no request, so nothing else closes its connections.
        transactions.close_old_connections()
