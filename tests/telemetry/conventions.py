"""What OpenTelemetry's semantic conventions for generative AI say of the spans and metrics that this app makes.

The names and types are those of the pages "Spans" and "Metrics" of the conventions. Each attribute has the types that
its value may have.
"""

from __future__ import annotations

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

CALL = {
    "gen_ai.operation.name": str,
    "gen_ai.provider.name": str,
    "gen_ai.request.model": str,
    "gen_ai.response.model": str,
    **SERVER,
}
# By metric: the unit, the first two boundaries of the histogram, and the attribute that it has besides.
METRICS = {
    "gen_ai.client.operation.duration": ("s", (0.01, 0.02), {"error.type": str}),
    "gen_ai.client.token.usage": ("{token}", (1, 4), {"gen_ai.token.type": str}),
}
