"""200 turns through the SDK's runner, with tools, parallel calls, thoughts and handoffs, while a worker folds."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, OpenAIResponsesModel, Runner, function_tool

from django_convmemory import models
from django_convmemory.integrations import responses_items
from django_convmemory.integrations.openai_agents import ConvMemorySession
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from integration_tests.openai_agents.model import called, inputs, response, said, talking, thought, unmatched
from tests import processes, projects, servers
from tests.openai_server import Behaviour, OpenAIServer
from tests.projects import configured
from tests.workers import Worker, worker_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db(transaction=True)

TURNS = 200
# Tokens: what is folded, and what an agent is given besides the new question.
LIMIT, BUDGET = 1500, 2500
WORDS = "The ferry to the island leaves at nine and takes about an hour if the sea is calm. "


@pytest.fixture
def worker(tmp_path: pathlib.Path, patient_broker: None) -> Iterator[Worker]:
    if absent := servers.why_absent("redis"):
        pytest.skip(f"redis is not available: {absent}")
    with worker_of(servers.BROKERS["redis"], tmp_path, max_token_limit=LIMIT) as started:
        started.server.default = Behaviour(text=f"They spoke of ferries. {WORDS}")
        with projects.current(started.site):
            yield started


@function_tool
def look_up(city: str) -> str:
    """Look up a city."""
    return f"{city}: {WORDS}"


def replies(chooser: random.Random, turn: int) -> list[Behaviour]:
    """What the model answers in one turn: some rounds of calls, perhaps a handoff to the other agent, and a text."""
    steps = []
    for step in range(chooser.choice((0, 0, 1, 2))):
        ids = [f"call_{turn}_{step}_{number}" for number in range(chooser.randint(1, 3))]
        calls = [called(call_id, "look_up", city=f"City {call_id}") for call_id in ids]
        steps.append(response(thought(f"Step {step}.", turn), *calls))
    if chooser.random() < 0.2:
        steps.append(response(called(f"handoff_{turn}", "transfer_to_clerk")))
    steps.append(
        response(thought("Now I answer.", turn), said(f"Answer {turn}. {WORDS * chooser.randint(1, 4)}", turn))
    )
    return steps


def test_the_budget_holds_and_every_item_comes_back(
    worker: Worker, settings: Settings, server: OpenAIServer, record_property: Any
) -> None:
    configured(settings, worker.site, options={"max_token_limit": LIMIT, "max_context_tokens": BUDGET})
    memory, chooser = memories["default"], random.Random(7)
    acknowledged: list[Any] = []

    class Noting(ConvMemorySession):
        async def add_items(self, items: list[Any]) -> None:
            await super().add_items(items)
            acknowledged.extend(items)

    session = Noting("main")

    async def talk(model: OpenAIResponsesModel) -> None:
        clerk = Agent("Clerk", model=model, tools=[look_up])
        guide = Agent("Guide", model=model, tools=[look_up], handoffs=[clerk])
        for turn in range(TURNS):
            server.queue(*replies(chooser, turn))
            await Runner.run(guide, f"Question {turn}? {WORDS * chooser.randint(1, 3)}", session=session)

    talking(server, talk)

    row = models.Session.objects.get()
    processes.wait_until(worker.folded(row), "the session is folded")
    history = [stored.message for stored in _all(memory)]
    assert responses_items.items(history) == acknowledged
    assert list(integrity.check(models.Session.objects.all())) == []
    assert [unmatched(sent) for sent in inputs(server)] == [[]] * len(server.log)
    folds = len(worker.versions(row))
    assert folds >= 10
    # The memory bounds what a run begins with, besides the new question. The run adds its own items to it.
    begins = [sent[:-1] for sent in inputs(server) if sent[-1].get("role") == "user"]
    assert len(begins) == TURNS
    largest = max(sum(memory.counter.count(responses_items.message(item)) for item in sent) for sent in begins)
    assert LIMIT < largest <= BUDGET
    record_property("folds by a worker in 200 turns", folds)
    record_property("items of 200 turns", len(acknowledged))
    record_property(f"tokens of the largest context of a run, with a budget of {BUDGET}", largest)


def _all(memory: Any) -> Iterator[Any]:
    position = 0
    while page := memory.history("main", after=position, limit=500, items=True):
        yield from page
        position = page[-1].position
