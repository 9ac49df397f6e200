"""What OpenTelemetry's semantic conventions for generative AI say of the spans and metrics that this app makes.

The names and types are those of the pages "Spans" and "Metrics" of the conventions. Each attribute has the types that
its value may have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    instrument: str
    unit: str
    boundaries: tuple[float, ...]
    required: frozenset[str]
    allowed: Mapping[str, type]


SERVER = {"server.address": str, "server.port": int}
CHAT = {
    "gen_ai.operation.name": str,
    "gen_ai.provider.name": str,
    "gen_ai.conversation.id": str,
    "gen_ai.request.model": str,
    "gen_ai.response.model": str,
    "gen_ai.response.finish_reasons": tuple,
    "gen_ai.usage.input_tokens": int,
    "gen_ai.usage.output_tokens": int,
    "gen_ai.usage.cache_read.input_tokens": int,
    "error.type": str,
    **SERVER,
}
CHAT_REQUIRED = {"gen_ai.operation.name", "gen_ai.provider.name"}
CHAT_CONTENT = {"gen_ai.input.messages": str, "gen_ai.output.messages": str}
SEARCH_MEMORY = {
    "gen_ai.operation.name": str,
    "gen_ai.memory.store.id": str,
    "gen_ai.memory.record.count": int,
    "error.type": str,
}
SEARCH_MEMORY_REQUIRED = {"gen_ai.operation.name"}
SEARCH_MEMORY_CONTENT = {"gen_ai.memory.query.text": str, "gen_ai.memory.records": str}

_CALL = {
    "gen_ai.operation.name": str,
    "gen_ai.provider.name": str,
    "gen_ai.request.model": str,
    "gen_ai.response.model": str,
    **SERVER,
}
METRICS = {
    "gen_ai.client.operation.duration": Metric(
        "Histogram",
        "s",
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
        frozenset({"gen_ai.operation.name"}),
        {**_CALL, "error.type": str},
    ),
    "gen_ai.client.token.usage": Metric(
        "Histogram",
        "{token}",
        (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864),
        frozenset({"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.token.type"}),
        {**_CALL, "gen_ai.token.type": str},
    ),
}
