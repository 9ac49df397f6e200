"""The conversation store of pydantic-ai: equal to pydantic-ai's own, and safe when others write."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from asgiref.sync import async_to_sync
from hypothesis import given, strategies as st
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
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
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RunUsage

from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.contrib.pydantic_ai import ConvMemoryContext, ConvMemoryConversationStore
from django_convmemory.contrib.pydantic_ai.models import Entry
from django_convmemory.exceptions import InvalidArgument, InvalidSession
from django_convmemory.memory import ConversationSummaryBufferMemory, memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules.exchanges import REDACTED
from django_convmemory.store.in_memory import InMemoryStore
from integration_tests.agent_scripts import WORDS, new_key
from integration_tests.pydantic_ai.test_history import MESSAGES
from tests import processes
from tests.test_changes_at_once import InThread

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
    return store.memory.session(conversation_id, **store.whose)


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
    """By default, as many as run in twenty seconds."""
    count, began = request.config.getoption("sequences"), time.monotonic()
    for seed in itertools.count():
        if seed == count or (count is None and time.monotonic() - began > 20):
            break
        try:
            async_to_sync(Pair(random.Random(seed)).run)()
        except BaseException:
            print(f"The sequence {seed} differs.")  # noqa: T201
            raise


class Talk:
    """A conversation with an agent whose model notes what it is sent."""

    def __init__(self, store: ConvMemoryConversationStore, **options: Any) -> None:
        self.store, self.sent = store, list[list[ModelMessage]]()
        self.agent: Agent[None, Any] = Agent(FunctionModel(self.reply), **options)

    def reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.sent.append(messages)
        return ModelResponse([TextPart(f"Answer {len(self.sent)}. {WORDS}")])

    async def run(self, text: str | None, conversation: Conversation, **options: Any) -> Any:
        context = ConvMemoryContext(self.store)
        return await self.agent.run(text, conversation=conversation, capabilities=[context], **options)

    async def loaded(self) -> Conversation:
        return await self.store.load("main") or Conversation(conversation_id="main")

    async def turns(self, *texts: str, compact: bool = True) -> None:
        for text in texts:
            await self.store.save(await self.run(text, await self.loaded()))
            if compact:
                await session_of(self.store, "main").acompact()

    async def texts(self) -> list[str]:
        return texts((await self.loaded()).messages)


def texts(messages: list[ModelMessage]) -> list[str]:
    said = [getattr(part, "content", part.part_kind) for message in messages for part in message.parts]
    return [str(text).removesuffix(f" {WORDS}") for text in said]


def whole(*numbers: int) -> list[str]:
    return [text for number in numbers for text in (f"Question {number}?", f"Answer {number}.")]


def test_a_model_is_sent_the_context_also_before_and_inside_what_is_folded() -> None:
    talk = Talk(new_store(), system_prompt="Be brief.")

    async def go() -> None:
        await talk.turns(*(f"Question {number}?" for number in range(1, 9)))
        assert await talk.texts() == ["Be brief.", *whole(*range(1, 9))]
        prompt, summary, *_, last = texts(talk.sent[-1])
        assert (prompt, last) == ("Be brief.", "Question 8?")
        assert summary.startswith("Summary of earlier conversation")
        assert len(talk.sent[-1]) < 6
        # 2 is before the end of what the first version has, 8 is inside, 14 is the last question.
        for at in (14, 8, 2, 0):
            talk.sent.clear()
            before = await talk.loaded()
            # As an adapter does it: the stored conversation changes only after the run.
            kept = before.messages[:at]
            cut = Conversation(messages=[*kept], conversation_id="main", revision=before.revision)
            result = await talk.run(f"Instead {at}?", cut)
            assert texts(talk.sent[0])[-1] == f"Instead {at}?"
            assert len(talk.sent[0]) < 6
            assert not [text for text in texts(talk.sent[0]) if text in whole(*range(at // 2 + 1, 9))]
            await talk.store.save(dataclasses.replace(result.conversation, new_message_index=None))
            assert (await talk.loaded()).messages[:at] == kept
            assert (await talk.texts())[-2:] == [f"Instead {at}?", "Answer 1."]
            await session_of(talk.store, "main").acompact()
        [record] = await talk.store.list_conversations()
        assert [len(await talk.store.read_history(tip)) for tip in record.branches] == [16, 16, 10, 4]

    async_to_sync(go)()


def test_a_fold_during_a_run_loses_no_reply() -> None:
    talk = Talk(new_store())

    async def go() -> None:
        await talk.turns(*(f"Question {number}?" for number in range(1, 6)), compact=False)
        session = session_of(talk.store, "main")

        async def look_up() -> str:
            await session.acompact()
            return "Nine."

        def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            talk.sent.append(messages)
            done = isinstance(messages[-1].parts[-1], ToolReturnPart)
            return ModelResponse([TextPart("At nine.") if done else ToolCallPart("look_up", {}, "c")])

        agent = Agent(FunctionModel(reply), tools=[look_up])
        context = ConvMemoryContext(talk.store)
        result = await agent.run("When?", conversation=await talk.loaded(), capabilities=[context])
        await talk.store.save(result)
        row = await talk.store.rows("main").aget()
        assert row.covered_position > 0
        assert [message.kind for message in (await talk.loaded()).messages[-4:]] == ["request", "response"] * 2
        assert (await talk.texts())[:10] == whole(*range(1, 6))
        assert (await talk.texts())[-1] == "At nine."
        assert talk.sent[-1][: len(talk.sent[-2])] == talk.sent[-2]  # The provider's cache still has it.

    async_to_sync(go)()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("begins", [True, False])
def test_of_two_writers_at_once_one_gets_a_conflict(begins: bool) -> None:
    store, threads = new_store(), 4
    first = Conversation(conversation_id="main", messages=[ModelRequest([UserPromptPart("?")])])
    if not begins:
        async_to_sync(store.save)(first)
    held = [async_to_sync(store.load)("main") or Conversation(conversation_id="main") for _ in range(threads)]
    barrier = threading.Barrier(threads)

    def write(number: int) -> str:
        held[number].messages.append(ModelResponse([TextPart(f"{number}")]))
        barrier.wait()
        try:
            async_to_sync(store.save)(held[number])
        except ConversationConflict:
            return "conflict"
        return str(number)

    workers = [InThread(functools.partial(write, number)) for number in range(threads)]
    outcomes = [worker.result() for worker in workers]
    [winner] = [outcome for outcome in outcomes if outcome != "conflict"]
    loaded = async_to_sync(store.load)("main")
    assert loaded is not None
    assert texts(loaded.messages) == ([] if begins else ["?"]) + [winner]


def test_what_somebody_else_changes_gives_the_revision_up() -> None:
    store = new_store()

    async def go() -> None:
        talk = Talk(store)
        await talk.turns("Question 1?", "Question 2?", compact=False)
        session = session_of(store, "main")
        changes: list[Callable[[], Any]] = [
            lambda: session.aappend(ChatMessage.human("By the site.")),
            lambda: session.aredact(1),
            lambda: session.atruncate(2),
            session.aclear,
        ]
        seen, branches, left_rows = [], [], []
        for change in changes:
            held = await talk.loaded()
            tip = (await store.list_conversations())[0].head_id
            left = await store.branch("main", at=1, expected_revision=held.revision)
            left.messages.append(ModelRequest([UserPromptPart("A secret.")]))
            await store.save(left)
            held = await store.branch("main", from_entry=tip, expected_revision=left.revision)
            await change()
            held.messages.append(ModelRequest([UserPromptPart("Lost?")]))
            with pytest.raises(ConversationConflict):
                await store.save(held)
            seen.append(await talk.texts())
            branches.append(len((await store.list_conversations())[0].branches))
            left_rows.append(
                await Entry.objects.filter(session__visitor=store.whose["visitor"], position=None).acount()
            )
        # An append leaves them. What is removed or redacted may be in them.
        assert branches == left_rows == [1, 0, 0, 0]
        everything = whole(1, 2)
        assert seen == [
            [*everything, "By the site."],
            [REDACTED, *everything[1:], "By the site."],
            [REDACTED, everything[1]],
            [],
        ]

    async_to_sync(go)()


def test_an_open_call_is_repaired_in_what_is_sent_unless_it_waits() -> None:
    talk = Talk(new_store(), output_type=[str, DeferredToolRequests])
    call = ModelResponse([ToolCallPart("pay", {}, "p")])
    asked: list[ModelMessage] = [ModelRequest([UserPromptPart("Pay.")]), call]
    waits = DeferredToolRequests(approvals=[ToolCallPart("pay", {}, "p")])

    @talk.agent.tool_plain(requires_approval=True)
    def pay() -> str:
        return "Paid."

    async def go() -> None:
        await talk.store.save(Conversation(conversation_id="main", messages=[*asked]))
        await talk.turns("Hello?", compact=False)
        assert [[part.part_kind for part in message.parts] for message in talk.sent[-1]] == [
            ["user-prompt"],
            ["tool-call"],
            ["tool-return", "user-prompt"],
        ]
        stored = (await talk.loaded()).messages
        assert stored[:2] == asked
        assert not [part for message in stored for part in message.parts if isinstance(part, ToolReturnPart)]

        await talk.store.delete("main")
        held = Conversation(conversation_id="main", messages=[*asked], deferred_tool_requests=waits)
        await talk.store.save(held)
        with pytest.raises(UserError, match="unprocessed tool calls"):
            await talk.turns("Hello?")
        loaded = await talk.loaded()
        assert loaded.deferred_tool_requests == waits
        results = DeferredToolResults(approvals={"p": True})
        await talk.store.save(await talk.run(None, loaded, deferred_tool_results=results))
        assert "Paid." in texts((await talk.loaded()).messages[2:])
        assert (await talk.loaded()).deferred_tool_requests is None

    async_to_sync(go)()


def test_a_conversation_of_somebody_else_is_not_found() -> None:
    store, other = new_store(), new_store()

    async def go() -> None:
        await Talk(store).turns("Question 1?", compact=False)
        [record] = await store.list_conversations()
        assert await other.load("main") is None
        assert await other.list_conversations() == []
        for head in (str(record.head_id), "another"):
            with pytest.raises(LookupError):
                await other.read_entry(head)
        with pytest.raises(UserError, match="not in the store"):
            await other.fork("main")
        await other.delete("main")
        # Both have a conversation of this id.
        await Talk(other).turns("Question 2?", compact=False)
        assert await Talk(store).texts() == ["Question 1?", "Answer 1."]
        assert (await store.read_entry(str(record.head_id))).id == record.head_id
        with pytest.raises(UserError, match="must be a string of 1 to"):
            await store.load("a" * 300)

    async_to_sync(go)()


def test_a_session_of_the_site_is_a_conversation_and_a_redacted_original_stays_redacted() -> None:
    store = ConvMemoryConversationStore(memories["large"], visitor="ann")

    async def go() -> None:
        session = store.memory.session("main", visitor="ann")
        for number in range(130):  # More rows than are read at once.
            await session.aappend(ChatMessage.human(f"Question {number}?"), ChatMessage.ai(f"Answer {number}."))
        talk = Talk(store)
        assert await talk.texts() == whole(*range(130))
        for limit in (0, 1, 199, 200, 201, 259, 400):
            loaded, entries = await store.load("main", limit=limit), await store.load_entries("main", limit=limit + 1)
            assert loaded is not None
            assert entries is not None
            assert texts(loaded.messages) == (whole(*range(130))[-limit:] if limit else [])
            assert [entry.parent_id for entry in entries[1:]] == [entry.id for entry in entries[:-1]]
        fork = await store.fork("main", at=3, new_conversation_id="fork")
        await session.aredact(1, forks=False)
        assert (await talk.texts())[0] == REDACTED
        assert texts((await store.load("fork") or fork).messages) == whole(0, 1)[:3]
        listed = [(record.conversation_id, record.forked_from) for record in await store.list_conversations()]
        assert listed == [("main", None), ("fork", "main")]

    async_to_sync(go)()


@given(st.lists(st.lists(MESSAGES, max_size=3), max_size=3), st.integers(0, 9))
def test_any_messages_come_back_equal_also_from_a_branch(turns: list[list[ModelMessage]], at: int) -> None:
    store, theirs = new_store("large"), list[ModelMessage]()

    async def go() -> None:
        held = Conversation(conversation_id="main")
        for turn in turns:
            theirs.extend(ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(turn)))
            held.messages.extend(turn)
            await store.save(held)
            loaded = await store.load("main")
            assert loaded is not None
            assert loaded.messages == theirs
            tip = (await store.list_conversations())[0].head_id
            if tip is not None:
                kept = at % (len(theirs) + 1)
                branch = await store.branch("main", at=kept, expected_revision=held.revision)
                assert branch.messages == theirs[:kept]
                held = await store.branch("main", from_entry=tip, expected_revision=branch.revision)
                assert held.messages == theirs

    async_to_sync(go)()


def test_what_is_refused() -> None:
    in_process = ConversationSummaryBufferMemory(store=InMemoryStore(), model=ExtractiveChatModel(), max_token_limit=9)
    with pytest.raises(InvalidSession):
        ConvMemoryConversationStore(memories["default"], owner=None)
    with pytest.raises(InvalidArgument, match="in a database"):
        ConvMemoryConversationStore(in_process, visitor="v")


def test_only_the_store_needs_the_app() -> None:
    """Django imports the package before the apps are ready. Sites without the tables use the functions."""
    code = """
import django
import django_convmemory.contrib.pydantic_ai as package
django.setup()
print(package.message_history.__name__, package.rows.__name__)
package.ConvMemoryConversationStore
"""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=processes.ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "message_history rows\n"
    assert done.stderr.strip().endswith('Add "django_convmemory.contrib.pydantic_ai" to INSTALLED_APPS.')
