"""What was said, as JSON in the forms of the semantic conventions. Only a site that asks for it gets it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.messages import ChatMessage
from django_convmemory.search.hits import Hit


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
