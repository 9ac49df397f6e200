"""The conversation store of pydantic-ai: equal to pydantic-ai's own, and safe when others write."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any, NamedTuple

import pytest
from asgiref.sync import async_to_sync
from pydantic_ai import DeferredToolRequests
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RunUsage

from django_convmemory.contrib.pydantic_ai import ConvMemoryConversationStore
from django_convmemory.memory import memories
from django_convmemory.operations.handles import SessionHandle
from integration_tests.agent_scripts import WORDS, new_key

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("limit")]

OPERATIONS = {
    "load": 4,
    "add": 6,
    "edit": 2,
    "branch": 6,
    "fork": 2,
    "serialize": 1,
    "fold": 2,
    "records": 1,
    "delete": 0.3,
}


def new_store(alias: str = "default") -> ConvMemoryConversationStore:
    return ConvMemoryConversationStore(memories[alias], visitor=new_key())


def session_of(store: ConvMemoryConversationStore, conversation_id: str) -> SessionHandle:
    return store.memory.session(store.rows(conversation_id).get())


class Step(NamedTuple):
    """The arguments of an operation. Each takes what it needs."""

    key: str
    new_key: str
    scope: str | None
    limit: int | None
    at: int
    entry: int | None
    turn: list[ModelMessage]


class Pair:
    """The same sequence of operations in both stores. Ids and times differ, so they are numbered as they come."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ours = new_store()
        self.stores: list[ConversationStore] = [self.ours, InMemoryConversationStore()]
        self.known: list[dict[str, Conversation]] = [{}, {}]
        self.numbers: list[dict[str, int]] = [{}, {}]
        self.ids: list[list[str]] = [[], []]

    async def both(self, operation: str, step: Step) -> None:
        outcomes = []
        for side, store in enumerate(self.stores):
            try:
                outcome = await getattr(self, operation)(side, store, step)
            except (UserError, LookupError) as error:
                outcome = "conflict" if isinstance(error, ConversationConflict) else "error"
            outcomes.append(self.seen(side, outcome))
        assert outcomes[0] == outcomes[1]

    def held(self, side: int, step: Step) -> Conversation:
        """Return the conversation as a request holds it. It may be an old one."""
        return self.known[side].setdefault(step.key, Conversation(conversation_id=step.key))

    def where(self, side: int, step: Step) -> dict[str, Any]:
        return {"at": step.at} if step.entry is None else {"from_entry": self.ids[side][step.entry]}

    async def load(self, side: int, store: ConversationStore, step: Step) -> Any:
        return await store.load(step.key, limit=step.limit, scope=step.scope)

    async def entries(self, side: int, store: ConversationStore, step: Step) -> Any:
        return await store.load_entries(step.key, limit=step.limit, scope=step.scope)

    async def records(self, side: int, store: ConversationStore, step: Step) -> Any:
        return await store.list_conversations(limit=step.limit, scope=step.scope)

    async def add(self, side: int, store: ConversationStore, step: Step) -> Any:
        held = self.held(side, step)
        held.messages.extend(step.turn)
        held.usage = held.usage + RunUsage(requests=1, input_tokens=step.at)
        waits = DeferredToolRequests(approvals=[ToolCallPart("pay", {"n": step.at}, "p")], metadata={"p": {"a": [1]}})
        held.deferred_tool_requests = waits if step.at == 5 else None
        return await store.save(held, scope=step.scope)

    async def edit(self, side: int, store: ConversationStore, step: Step) -> Any:
        held = self.held(side, step)
        held.messages, held.new_message_index = [*held.messages[: step.at], *step.turn], None
        return await store.save(held)

    async def branch(self, side: int, store: ConversationStore, step: Step) -> Any:
        revision = self.held(side, step).revision
        return await store.branch(step.key, **self.where(side, step), expected_revision=revision, scope=step.scope)

    async def fork(self, side: int, store: ConversationStore, step: Step) -> Any:
        return await store.fork(step.key, **self.where(side, step), new_conversation_id=step.new_key, scope=step.scope)

    async def delete(self, side: int, store: ConversationStore, step: Step) -> Any:
        return await store.delete(step.key, scope=step.scope)

    async def serialize(self, side: int, store: ConversationStore, step: Step) -> None:
        held = ConversationTypeAdapter.dump_json(self.held(side, step))
        self.known[side][step.key] = ConversationTypeAdapter.validate_json(held)

    async def fold(self, side: int, store: ConversationStore, step: Step) -> None:
        if isinstance(store, ConvMemoryConversationStore):
            async for session in store.rows(step.key):
                await store.memory.acompact(session)

    def seen(self, side: int, outcome: Any) -> Any:
        """Return what can be compared."""
        if isinstance(outcome, Conversation):
            self.known[side][outcome.conversation_id] = outcome
            return [
                self.json(outcome.messages),
                outcome.usage,
                outcome.deferred_tool_requests,
                outcome.new_message_index,
            ]
        if isinstance(outcome, list):
            return [
                self.entry(side, each) if hasattr(each, "parent_id") else self.record(side, each) for each in outcome
            ]
        return outcome

    def entry(self, side: int, entry: Any) -> Any:
        return self.number(side, entry.id), self.number(side, entry.parent_id), self.json([entry.message])

    def record(self, side: int, record: Any) -> Any:
        ids = [self.number(side, each) for each in (record.head_id, record.forked_at, *record.branches)]
        return (
            record.conversation_id,
            ids,
            record.usage,
            record.deferred_tool_requests,
            record.scope,
            record.forked_from,
        )

    def number(self, side: int, entry_id: str | None) -> int | None:
        if entry_id is not None and entry_id not in self.numbers[side]:
            self.numbers[side][entry_id] = len(self.numbers[side])
            self.ids[side].append(str(entry_id))
        return None if entry_id is None else self.numbers[side][entry_id]

    @staticmethod
    def json(messages: list[ModelMessage]) -> Any:
        return ModelMessagesTypeAdapter.dump_python(messages, mode="json")

    def turn(self) -> list[ModelMessage]:
        """A few messages of a turn, and sometimes no whole one."""
        call = ToolCallPart("look_up", {"n": self.rng.randrange(9)}, f"call {self.rng.random()}")
        turn: list[ModelMessage] = [
            ModelRequest([UserPromptPart(f"{self.rng.random()} {WORDS}")]),
            ModelResponse([TextPart("I look."), call]),
            ModelRequest([ToolReturnPart("look_up", self.rng.random(), call.tool_call_id), UserPromptPart("And?")]),
            ModelResponse([TextPart(f"{self.rng.random()}")]),
        ]
        return turn[: self.rng.choice([0, 1, 2, 4, 4, 4])]

    async def step(self) -> None:
        choose = self.rng.choice
        step = Step(
            key=choose("aaab"),
            new_key=choose("bcd"),
            scope=choose([None] * 8 + ["x"]),
            limit=choose([None, None, 0, 1, 3, 7]),
            at=self.rng.randrange(6),
            entry=self.rng.randrange(len(self.ids[0])) if self.ids[0] and self.rng.random() < 0.4 else None,
            turn=self.turn(),
        )
        [operation] = self.rng.choices(list(OPERATIONS), list(OPERATIONS.values()))
        await self.both(operation, step)
        await self.both("entries", step)

    async def run(self) -> None:
        for _ in range(self.rng.randint(5, 40)):
            await self.step()


def test_random_sequences_equal_those_of_pydantic_ai(request: pytest.FixtureRequest) -> None:
    """By default, as many as run in a minute."""
    count, began = request.config.getoption("sequences"), time.monotonic()
    for seed in itertools.count():
        if seed == count or (count is None and time.monotonic() - began > 60):
            break
        try:
            async_to_sync(Pair(random.Random(seed)).run)()
        except BaseException:
            print(f"The sequence {seed} differs.")  # noqa: T201
            raise
