"""``python -m integration_tests.openai_agents.talker NUMBER``: talks with an agent until it is killed.

Prints the items of each ``add_items`` that has returned, as JSON, a list a line.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import agents
import django
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class Scripted(Model):
    """Makes two calls at once, and then answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        self.count += 1
        number = f"{self.name}-{self.count}"
        output: list[Any]
        if self.count % 2:
            output = [
                ResponseFunctionToolCall(
                    type="function_call", call_id=f"{number}-{letter}", name="look_up", arguments='{"city": "Köln"}'
                )
                for letter in "ab"
            ]
        else:
            text = ResponseOutputText(type="output_text", text=f"Answer {number}. " + "word " * 30, annotations=[])
            output = [
                ResponseOutputMessage(id=number, type="message", role="assistant", status="completed", content=[text])
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@function_tool
def look_up(city: str) -> str:
    """Look up a city."""
    return f"{city} has a million people. " * 5


async def talk(name: str) -> None:
    from django_convmemory.integrations.openai_agents import ConvMemorySession

    class Noting(ConvMemorySession):
        async def add_items(self, items: list[Any]) -> None:
            await super().add_items(items)
            sys.stdout.write(json.dumps(items) + "\n")
            sys.stdout.flush()

    guide = Agent("Guide", model=Scripted(name), tools=[look_up])
    for number in itertools.count():
        await Runner.run(guide, f"Question {name}-{number}?", session=Noting("main"))


if __name__ == "__main__":
    django.setup()
    agents.set_tracing_disabled(True)
    asyncio.run(talk(sys.argv[1]))
