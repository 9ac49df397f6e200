"""A model for agents: the real client of the Responses API, and what the local server answers it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from agents import OpenAIResponsesModel
from asgiref.sync import async_to_sync
from openai import AsyncOpenAI

from tests import response_items
from tests.guides.test_providers import RESPONSE
from tests.openai_server import Behaviour, OpenAIServer

Item = dict[str, Any]


def talking(server: OpenAIServer, talk: Callable[[OpenAIResponsesModel], Awaitable[Any]]) -> None:
    """Run ``talk`` with a model that is connected to the server."""

    async def connected() -> None:
        async with AsyncOpenAI(api_key="none", base_url=server.base_url, max_retries=0) as client:
            await talk(OpenAIResponsesModel("fake", client))

    async_to_sync(connected)()


def said(text: str, number: int = 1) -> Item:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": content}


def thought(text: str, number: int = 1) -> Item:
    return {"id": f"rs_{number}", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def called(call_id: str, name: str, **arguments: Any) -> Item:
    own = {"id": f"fc_{call_id}", "status": "completed", "arguments": json.dumps(arguments)}
    return response_items.called(call_id, name) | own


def response(*output: Item) -> Behaviour:
    """What the server answers: a response with these items."""
    return Behaviour("raw", body=RESPONSE | {"output": list(output)})


def inputs(server: OpenAIServer) -> list[list[Item]]:
    """The input of each request to the server."""
    return [exchange.body["input"] for exchange in server.log]


def unmatched(items: Iterable[Item]) -> list[str]:
    """The ids of calls without a result, and of results without a call before them."""
    open_calls: set[str] = set()
    lone_results = []
    for item in items:
        form = item.get("type", "")
        if form.endswith("_output"):
            if item["call_id"] not in open_calls:
                lone_results.append(item["call_id"])
            open_calls.discard(item["call_id"])
        elif form.endswith("_call"):
            open_calls.add(item["call_id"])
    return [*lone_results, *open_calls]
