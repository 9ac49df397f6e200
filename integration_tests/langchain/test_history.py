"""The message history of LangChain."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from hypothesis import given, strategies as st
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from django_convmemory import messages as chat
from django_convmemory.contrib import langchain_items
from django_convmemory.contrib.langchain import ConvMemoryChatMessageHistory
from django_convmemory.exceptions import InvalidArgument, InvalidMessage
from django_convmemory.rules.exchanges import REDACTED
from integration_tests import agent_scripts
from integration_tests.agent_scripts import ANY_TEXTS, JSON, LIMIT, WORDS, Turn

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("limit"),
    pytest.mark.filterwarnings("ignore:.* deprecated:DeprecationWarning"),
]


def new_history(alias: str = "default", **arguments: Any) -> ConvMemoryChatMessageHistory:
    return ConvMemoryChatMessageHistory(agent_scripts.new_key(), alias=alias, **arguments)


def messages_of(turn: Turn) -> list[BaseMessage]:
    messages: list[BaseMessage] = [HumanMessage(turn.said)]
    for step in turn.steps:
        calls = [{"name": "look_up", "args": {"word": call.word}, "id": call.id} for call in step.calls]
        messages.append(AIMessage(step.text, tool_calls=calls))
        messages += [ToolMessage("a word", tool_call_id=call.id) for call in reversed(step.calls)]
    return messages


@given(agent_scripts.turns())
def test_without_a_fold_the_messages_are_those_of_the_history_in_memory(turns: list[Turn]) -> None:
    ours, theirs = new_history("large"), InMemoryChatMessageHistory()

    for turn in turns:
        ours.add_messages(messages_of(turn))
        theirs.add_messages(messages_of(turn))

        assert ours.messages == theirs.messages
        assert ours == theirs


@given(agent_scripts.turns(min_size=3, max_size=6))
def test_after_a_fold_the_budget_is_held_and_each_call_has_its_result(turns: list[Turn]) -> None:
    history = new_history()
    everything = ConvMemoryChatMessageHistory(history.session.key, view="history")
    added: list[BaseMessage] = []

    for turn in turns:
        history.add_messages(messages_of(turn))
        added += messages_of(turn)
        history.session.compact()

        context = history.session.load()
        assert context.over_budget or context.tokens <= 2 * LIMIT
        waiting: list[str | None] = []
        tokens = 0
        for message in history.messages:
            tokens += history.session.memory.counter.count(langchain_items.message(langchain_item(message)))
            if isinstance(message, ToolMessage):
                waiting.remove(message.tool_call_id)
            else:
                assert waiting == []
                waiting = [call["id"] for call in message.tool_calls] if isinstance(message, AIMessage) else []
        assert waiting == []
        assert tokens <= context.tokens
    assert everything.messages == added


def langchain_item(message: BaseMessage) -> dict[str, Any]:
    return {"type": message.type, "data": message.model_dump()}


def test_a_fold_keeps_the_summary_and_the_first_system_message() -> None:
    history = new_history()
    history.add_messages([SystemMessage("Speak of ferries only.")])
    history.add_messages([HumanMessage(f"{number} {WORDS}") for number in range(12)])
    history.session.compact()

    history.add_messages([SystemMessage("Be brief.")])

    first, second, *_, last = history.messages

    assert last == SystemMessage("Be brief.")
    assert first == SystemMessage("Speak of ferries only.")
    assert isinstance(second, SystemMessage)
    assert str(second.content).startswith("Summary of earlier conversation: ")
    assert [part.position for part in history.session.load().parts if part.name == "pinned"] == [1]


def test_messages_are_set() -> None:
    history = new_history("large")
    history.add_user_message("a")
    history.messages = [HumanMessage("b"), AIMessage("c")]
    assert history.messages == [HumanMessage("b"), AIMessage("c")]
    history.messages += [HumanMessage("d")]
    assert len(history.messages) == 3
    with pytest.raises(InvalidMessage):
        history.messages = [HumanMessage("d"), OtherMessage(content="a")]
    assert len(history.messages) == 3
    history.messages = []
    assert history.messages == []
    history.add_ai_message("e")
    history.clear()
    assert history == InMemoryChatMessageHistory()


def test_what_is_folded_or_added_while_messages_are_added_to_the_old_ones_stays() -> None:
    history = new_history()
    history.add_messages([HumanMessage(f"{number} {WORDS}") for number in range(12)])
    old = history.messages
    history.session.compact()
    history.session.append({"role": "user", "content": "Of another process."})

    history.messages = [*old, HumanMessage("And now?")]

    assert [message.content for message in history.messages][-2:] == ["Of another process.", "And now?"]
    assert len(ConvMemoryChatMessageHistory(history.session.key, view="history").messages) == 14


def test_two_requests_that_begin_a_session_lose_nothing() -> None:
    first = new_history()
    second = ConvMemoryChatMessageHistory(first.session.key)
    of_first, of_second = first.messages, second.messages

    first.messages = [*of_first, HumanMessage("a")]
    second.messages = [*of_second, HumanMessage("b")]

    assert [message.content for message in first.messages] == ["a", "b"]


def test_what_was_added_since_can_be_taken_back() -> None:
    history = new_history()
    history.add_user_message("a")
    old = history.messages
    history.add_user_message("b")

    history.messages = old

    assert [message.content for message in history.messages] == ["a"]


def test_a_message_can_be_changed_and_set() -> None:
    history = new_history()
    history.add_user_message("a")
    messages = history.messages
    messages[0].content = "b"

    history.messages = messages

    assert [message.content for message in history.messages] == ["b"]


def test_equality() -> None:
    history = new_history("large")
    history.add_user_message("a")

    assert history == InMemoryChatMessageHistory(messages=[HumanMessage("a")])
    assert InMemoryChatMessageHistory(messages=[HumanMessage("a")]) == history
    assert history != new_history()
    assert history != [HumanMessage("a")]
    assert str(history) == "Human: a"
    with pytest.raises(TypeError, match="unhashable"):
        hash(history)


def test_messages_of_the_site_and_redacted_ones_are_made_into_messages() -> None:
    history = new_history("large")
    calls = [
        {"id": name, "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        for name, arguments in (("a", '{"a": 1}'), ("b", "no JSON"), ("c", "[5]"))
    ]
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "This?"},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
    ]
    message = chat.ChatMessage
    history.session.append(message.system("Be brief."), message.human("Hello", name="ada"))
    history.session.append(message.ai("Look.", tool_calls=calls), message.tool("1", "a"), message.tool("2", "b"))
    history.session.append(message.tool("3", "c"))
    history.session.append(message.human(content))
    history.add_messages([HumanMessage("My name is Ada."), AIMessage("Hi Ada.")])
    history.session.redact(8)
    history.session.redact(9)

    expected = [
        SystemMessage("Be brief."),
        HumanMessage("Hello", name="ada"),
        AIMessage(
            "Look.",
            tool_calls=[
                {"name": "look_up", "args": {"a": 1}, "id": "a"},
                {"name": "look_up", "args": {"_raw": [5]}, "id": "c"},
            ],
            invalid_tool_calls=[{"name": "look_up", "args": "no JSON", "id": "b", "error": None}],
        ),
        ToolMessage("1", tool_call_id="a"),
        ToolMessage("2", tool_call_id="b"),
        ToolMessage("3", tool_call_id="c"),
        HumanMessage(content),  # type: ignore[arg-type]
        HumanMessage(REDACTED),
        AIMessage(REDACTED),
    ]
    assert history.messages == expected
    assert ConvMemoryChatMessageHistory(history.session.key, alias="large", view="history").messages == expected


def test_sessions_have_owners() -> None:
    ada = get_user_model().objects.create_user("ada")
    for scope in ({"owner": ada}, {"visitor": "v"}, {}):
        ConvMemoryChatMessageHistory("main", **scope).add_user_message(str(scope))

    assert ConvMemoryChatMessageHistory("main", owner=ada).messages == [HumanMessage(str({"owner": ada}))]
    assert ConvMemoryChatMessageHistory("main").messages == [HumanMessage("{}")]


class OtherMessage(BaseMessage):
    type: str = "other"


def test_what_is_refused() -> None:
    history = new_history()
    history.add_messages([])
    itself: dict[str, Any] = {}
    itself["itself"] = itself
    for bad in (OtherMessage(content="a"), HumanMessage("a", metadata=itself)):
        with pytest.raises(InvalidMessage):
            history.add_messages([HumanMessage("a"), bad])
    with pytest.raises(InvalidArgument, match="view must be"):
        new_history(view="all")
    assert history.messages == []


@dataclasses.dataclass
class Ticket:
    price: float


def test_what_is_not_json_is_stored_as_json_or_text() -> None:
    history = new_history("large")
    when, number = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), uuid.UUID(int=7)
    odd = {"nan": math.nan, "when": when, "bytes": b"hello", "id": number, "set": {1}, "ticket": Ticket(9.5)}
    call = {"name": "book", "args": odd, "id": "a"}
    messages: list[BaseMessage] = [
        HumanMessage("Book it.", metadata={"object": Decimal("9.50"), "sink": object()}),
        AIMessage("", tool_calls=[call]),
        ToolMessage("Booked.", tool_call_id="a", artifact=Ticket(9.5)),
    ]
    history.add_messages(messages)

    _, asks, result = history.messages

    assert isinstance(asks, AIMessage)
    assert isinstance(result, ToolMessage)
    text = {"nan": None, "when": "2026-01-02T03:04:05Z", "bytes": "aGVsbG8=", "id": str(number)}
    assert asks.tool_calls[0]["args"] == {**text, "set": [1], "ticket": {"price": 9.5}}
    assert result.artifact == {"price": 9.5}


@pytest.mark.parametrize("happens", ["a fold", "an append"])
def test_a_run_stores_exactly_its_own_messages(happens: str) -> None:
    history = new_history()
    key, session = history.session.key, history.session
    history.add_messages([HumanMessage(f"{number} {WORDS}") for number in range(12)])
    before = [stored.message.text for stored in session.history()]

    def answer(messages: list[BaseMessage]) -> BaseMessage:
        if happens == "a fold":
            assert session.compact() == "published"
        else:
            session.append({"role": "user", "content": "Of another request."})
        return AIMessage("Yes.")

    chain: Any = RunnableWithMessageHistory(RunnableLambda(answer), ConvMemoryChatMessageHistory)
    chain.invoke([HumanMessage("Sure?")], {"configurable": {"session_id": key}})

    others = ["Of another request."] if happens == "an append" else []
    assert [stored.message.text for stored in session.history()] == [*before, *others, "Sure?", "Yes."]


def test_asynchronous_twins() -> None:
    history = new_history("large")

    async def talk() -> None:
        await history.aadd_messages([HumanMessage("a"), AIMessage("b")])
        assert await history.aget_messages() == [HumanMessage("a"), AIMessage("b")]
        await history.aclear()
        assert await history.aget_messages() == []

    async_to_sync(talk)()


IDS = st.sampled_from(["a", "b", "c"])
PARTS = st.one_of(
    ANY_TEXTS,
    st.fixed_dictionaries({"type": st.just("text"), "text": ANY_TEXTS}),
    st.just({"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}),
    st.just({"type": "image", "base64": "aGVsbG8=", "mime_type": "image/png"}),
    st.just({"type": "reasoning", "reasoning": "hm"}),
)
CONTENT = st.one_of(ANY_TEXTS, st.lists(PARTS, max_size=3))
NAMES = st.one_of(st.none(), ANY_TEXTS)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": ANY_TEXTS, "args": st.dictionaries(ANY_TEXTS, JSON, max_size=2), "id": st.none() | IDS}
    ),
    max_size=3,
)
INVALID_CALLS = st.lists(
    st.fixed_dictionaries({"name": NAMES, "args": NAMES, "id": st.none() | IDS, "error": NAMES}), max_size=1
)
MESSAGES: st.SearchStrategy[BaseMessage] = st.one_of(
    st.builds(HumanMessage, CONTENT, name=NAMES, id=st.none() | IDS),
    st.builds(SystemMessage, CONTENT),
    st.builds(AIMessage, CONTENT, tool_calls=CALLS, invalid_tool_calls=INVALID_CALLS, response_metadata=st.just({})),
    st.builds(AIMessageChunk, CONTENT),
    st.builds(ToolMessage, CONTENT, tool_call_id=IDS, artifact=JSON, status=st.sampled_from(["success", "error"])),
    st.builds(FunctionMessage, CONTENT, name=ANY_TEXTS),
    st.builds(ChatMessage, CONTENT, role=st.one_of(ANY_TEXTS, st.sampled_from(["user", "assistant", "system"]))),
    IDS.map(RemoveMessage),
)


def with_ids(message: BaseMessage) -> BaseMessage:
    """The message as it comes back: a call without an id has one."""
    calls = [*message.tool_calls, *message.invalid_tool_calls] if isinstance(message, AIMessage) else []
    for call in calls:
        call["id"] = call["id"] or "call"
    return message


@given(st.lists(st.lists(MESSAGES, max_size=4), max_size=3))
def test_any_messages_come_back_equal(batches: list[list[BaseMessage]]) -> None:
    history = new_history("large", view="history")
    for batch in batches:
        history.add_messages(batch)

    assert history.messages == [with_ids(message) for batch in batches for message in batch]
    history.view = "context"
    _ = history.messages  # A random order is valid, too.
