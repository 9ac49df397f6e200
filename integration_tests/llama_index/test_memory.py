"""The memory of LlamaIndex, by itself and through its agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from hypothesis import given, strategies as st
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import (
    ChatMessage,
    CitableBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer

from django_convmemory import messages as chat
from django_convmemory.contrib.llama_index import ConvMemory
from django_convmemory.exceptions import InvalidMessage, InvalidSession
from django_convmemory.rules.exchanges import REDACTED
from integration_tests import agent_scripts
from integration_tests.agent_scripts import ANY_TEXTS, JSON, WORDS, Turn
from integration_tests.llama_index.model import ScriptedLLM

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("limit"),
    # The workflows of LlamaIndex look at each attribute of an agent, also at deprecated ones of pydantic.
    pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning"),
]


def new_memory(alias: str = "default") -> ConvMemory:
    return ConvMemory(agent_scripts.new_key(), alias=alias)


async def look_up(word: str, fails: bool) -> str:
    """Look up a word. In threads, the results of parallel calls would come in another order each time."""
    if fails:
        raise ValueError("There is no such word.")
    return f"the meaning of {word}"


def run(turns: list[Turn], memory: BaseMemory, llm: ScriptedLLM) -> None:
    async def talk() -> None:
        for turn in turns:
            llm.script(turn.steps)
            agent = FunctionAgent(llm=llm, tools=[look_up], system_prompt="You are a guide.", streaming=False)
            await agent.run(turn.said, memory=memory)

    async_to_sync(talk)()


@given(agent_scripts.turns(max_size=3), st.booleans())
def test_the_model_is_sent_the_same_as_with_their_memory(turns: list[Turn], has_ids: bool) -> None:
    ours, theirs = ScriptedLLM(has_ids=has_ids), ScriptedLLM(has_ids=has_ids)
    memory = new_memory("large")
    buffer = ChatMemoryBuffer.from_defaults(token_limit=10**9, tokenizer_fn=str.split)

    run(turns, memory, ours)
    run(turns, buffer, theirs)

    assert ours.sent == theirs.sent
    assert memory.get() == memory.get_all() == buffer.get_all()


def test_set_replaces_the_messages() -> None:
    memory = new_memory("large")
    memory.put(ChatMessage("a"))
    memory.set([ChatMessage("b"), ChatMessage("c")])
    assert memory.get_all() == [ChatMessage("b"), ChatMessage("c")]
    with pytest.raises(InvalidMessage):
        memory.set([ChatMessage("d"), ChatMessage("a", additional_kwargs={"b": object()})])
    assert len(memory.get_all()) == 2
    memory.set([])
    assert memory.get_all() == []
    memory.put(ChatMessage("e"))
    memory.reset()
    assert memory.get_all() == []


@pytest.mark.parametrize("read", [ConvMemory.get, ConvMemory.get_all])
def test_what_is_folded_or_added_while_messages_are_added_to_the_old_ones_stays(
    read: Callable[[ConvMemory], list[ChatMessage]],
) -> None:
    memory = new_memory()
    memory.put_messages([ChatMessage(f"{number} {WORDS}") for number in range(12)])
    old = read(memory)
    memory.session.compact()
    memory.session.append({"role": "user", "content": "Of another process."})

    memory.set([*old, ChatMessage("And now?")])

    assert [message.content for message in memory.get()][-2:] == ["Of another process.", "And now?"]
    assert len(memory.get_all()) == 14


def test_messages_of_the_site_and_redacted_ones_are_made_into_messages() -> None:
    memory = new_memory("large")
    call = {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}
    image = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    content: list[dict[str, Any]] = [{"type": "text", "text": "This?"}, image, {"type": "input_audio"}]
    message = chat.ChatMessage
    memory.session.append(message.system("Be brief."), message.human("Hello"), message.ai("Look.", tool_calls=[call]))
    memory.session.append(message.tool("1", "a"), message.human(content))
    memory.put_messages([ChatMessage("My name is Ada."), ChatMessage(role="assistant", content="Hi Ada.")])
    memory.session.redact(6)
    memory.session.redact(7)

    expected = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage("Hello"),
        ChatMessage(
            role="assistant",
            blocks=[
                TextBlock(text="Look."),
                ToolCallBlock(tool_call_id="a", tool_name="look_up", tool_kwargs='{"a": 1}'),
            ],
        ),
        ChatMessage(role="tool", content="1", additional_kwargs={"tool_call_id": "a"}),
        ChatMessage(
            role="user",
            blocks=[
                TextBlock(text="This?"),
                ImageBlock(url="https://a.example/b.png"),
                TextBlock(text="[input_audio]"),
            ],
        ),
        ChatMessage(REDACTED),
        ChatMessage(role="assistant", content=REDACTED),
    ]
    assert memory.get() == expected
    assert memory.get_all() == expected


def test_calls_of_older_integrations_are_calls() -> None:
    memory = new_memory("large")
    call = {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    asks = ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [call]})
    result = ChatMessage(role="tool", content="1", additional_kwargs={"tool_call_id": "a"})
    memory.put_messages([asks, result])

    assert memory.session.load()[0].call_ids == ("a",)
    assert memory.get() == [asks, result]


def test_calls_without_ids_are_all_given_with_their_results() -> None:
    memory = new_memory("large")
    blocks = [ToolCallBlock(tool_call_id="", tool_name="look_up", tool_kwargs={"word": each}) for each in "ab"]
    results = [ChatMessage(role="tool", content=each, additional_kwargs={"tool_call_id": ""}) for each in "ab"]
    memory.put_messages([ChatMessage("?"), ChatMessage(role="assistant", blocks=blocks), *results])

    _, asks, *answers = memory.get()

    assert memory.get() == memory.get_all()
    assert [block.tool_kwargs for block in asks.blocks if isinstance(block, ToolCallBlock)] == [
        {"word": "a"},
        {"word": "b"},
    ]
    assert [answer.content for answer in answers] == ["a", "b"]
    assert {answer.additional_kwargs["tool_call_id"] for answer in answers} == {"call"}


def test_a_session_of_somebody_comes_back_from_the_context_of_a_workflow() -> None:
    ada = get_user_model().objects.create_user("ada")
    memories = [ConvMemory("main", owner=ada), ConvMemory("main", visitor="v"), ConvMemory("main")]
    for memory in memories:
        memory.put(ChatMessage(repr(memory)))

    for memory in memories:
        assert ConvMemory.from_json(memory.to_json()).get() == memory.get() == [ChatMessage(repr(memory))]
    with pytest.raises(InvalidSession):
        ConvMemory("main", owner=None)
    with pytest.raises(InvalidSession):
        ConvMemory("main", visitor="")


def test_what_is_refused() -> None:
    memory = new_memory()
    memory.put_messages([])
    bad = ChatMessage("a", additional_kwargs={"b": object()})
    with pytest.raises(InvalidMessage):
        memory.put_messages([ChatMessage("a"), bad])
    assert memory.get() == []


def test_asynchronous_twins() -> None:
    memory = new_memory("large")

    async def talk() -> None:
        await memory.aput(ChatMessage("a"))
        await memory.aput_messages([ChatMessage("b")])
        assert await memory.aget("?") == await memory.aget_all() == [ChatMessage("a"), ChatMessage("b")]
        await memory.aset([ChatMessage("c")])
        assert await memory.aget() == [ChatMessage("c")]
        await memory.areset()
        assert await memory.aget_all() == []

    async_to_sync(talk)()


IDS = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
TEXT_BLOCKS = st.builds(TextBlock, text=ANY_TEXTS)
IMAGES = st.one_of(
    st.builds(ImageBlock, image=st.binary(min_size=1, max_size=8)), st.just(ImageBlock(url="https://a.example/b.png"))
)
BLOCKS = st.one_of(
    TEXT_BLOCKS,
    IMAGES,
    st.builds(DocumentBlock, data=st.binary(min_size=1, max_size=8), title=ANY_TEXTS),
    st.builds(CitableBlock, title=ANY_TEXTS, source=ANY_TEXTS, content=st.lists(TEXT_BLOCKS, max_size=2)),
    st.builds(ThinkingBlock, content=ANY_TEXTS),
    st.builds(
        ToolCallBlock,
        tool_call_id=IDS,
        tool_name=ANY_TEXTS,
        tool_kwargs=st.one_of(ANY_TEXTS, st.dictionaries(ANY_TEXTS, JSON, max_size=2)),
    ),
)
MESSAGES = st.builds(
    ChatMessage,
    role=st.sampled_from(list(MessageRole)),
    blocks=st.lists(BLOCKS, max_size=3),
    additional_kwargs=st.one_of(
        st.just({}), st.fixed_dictionaries({"tool_call_id": IDS}), st.fixed_dictionaries({"tool_calls": JSON})
    ),
)


@given(st.lists(st.lists(MESSAGES, max_size=4), max_size=3))
def test_any_messages_come_back_equal(batches: list[list[ChatMessage]]) -> None:
    memory = new_memory("large")
    for batch in batches:
        memory.put_messages(batch)

    assert memory.get_all() == [message for batch in batches for message in batch]
    memory.get()  # A random order is valid, too.
