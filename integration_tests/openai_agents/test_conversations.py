"""The SDK's session of conversations keeps its items here, through the real client: openai-conversations.md."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner
from openai import AsyncOpenAI

from integration_tests.openai_agents.model import called, inputs, response, said, talking, thought, unmatched
from integration_tests.openai_agents.test_session import look_up
from tests.guides.test_openai_conversations import bearer, key_of
from tests.openai_server import OpenAIServer

__all__ = ["bearer"]


@pytest.mark.django_db(transaction=True)
def test_runs_with_tools_keep_their_items_here(server: OpenAIServer, live_server: Any) -> None:
    calls = [thought("two"), called("a", "look_up", city="Köln"), called("b", "look_up", city="Bonn")]
    server.queue(response(*calls), response(said("One each.")), response(said("Goodbye.", 2)))
    key = key_of("ann")

    async def talk(model: OpenAIResponsesModel) -> None:
        async with AsyncOpenAI(api_key=key, base_url=f"{live_server}/v1", max_retries=0) as client:
            session = OpenAIConversationsSession(openai_client=client)
            guide = Agent("Guide", model=model, tools=[look_up])
            assert (await Runner.run(guide, "How many?", session=session)).final_output == "One each."
            await Runner.run(guide, "Bye.", session=session)
            whole: list[Any] = await session.get_items()
            assert await session.get_items(limit=3) == whole[-3:]
            assert await session.pop_item() == whole.pop()
            assert await session.get_items() == whole
            await session.add_items([{"role": "user", "content": str(number)} for number in range(45)])
            assert len(await session.get_items()) == len(whole) + 45

    talking(server, talk)

    sent = inputs(server)
    assert unmatched(sent[1]) == unmatched(sent[2]) == []
    assert [item.get("type", "message") for item in sent[2]] == [
        *("message", "reasoning", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message", "message"),
    ]
