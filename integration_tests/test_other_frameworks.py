"""Each adapter reads sessions whose items another framework's adapter, or an import, has stored."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage as LlamaMessage,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from django_convmemory.contrib import langchain_items, llama_index, pydantic_ai, responses_items
from django_convmemory.contrib.langchain import ConvMemoryChatMessageHistory
from django_convmemory.contrib.llama_index import ConvMemory
from django_convmemory.contrib.openai_agents import ConvMemorySession
from django_convmemory.contrib.pydantic_ai import message_history
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.tokens import IMAGE

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:.* deprecated:DeprecationWarning")]

_keys = (f"session {number}" for number in itertools.count())

# The same conversation as each framework stores it: a question, a thought, a call, its result, and an answer.
THOUGHT, CALL = {"summary": [], "type": "reasoning", "id": "rs_1"}, {"name": "population", "arguments": "{}"}
RESPONSES: list[dict[str, Any]] = [
    {"role": "user", "content": "How many people live in Köln?"},
    THOUGHT,
    {"type": "function_call", "call_id": "a", **CALL},
    {"type": "function_call_output", "call_id": "a", "output": "1087353"},
    {"role": "assistant", "content": "A million."},
]
LANGCHAIN: list[dict[str, Any]] = [
    {"type": "human", "data": {"content": "How many people live in Köln?"}},
    {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "population", "args": {}, "id": "a"}]}},
    {"type": "tool", "data": {"content": "1087353", "tool_call_id": "a"}},
    {"type": "ai", "data": {"content": "A million."}},
]
_CALL_BLOCK = {"block_type": "tool_call", "tool_call_id": "a", "tool_name": "population", "tool_kwargs": {}}


def _llama(role: str, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": role, "blocks": list(blocks), "additional_kwargs": more}


def _text(text: str) -> dict[str, Any]:
    return {"block_type": "text", "text": text}


LLAMA_INDEX = [
    _llama("user", _text("How many people live in Köln?")),
    _llama("assistant", {"block_type": "thinking", "content": "hm"}),
    _llama("assistant", _CALL_BLOCK),
    _llama("tool", _text("1087353"), tool_call_id="a"),
    _llama("assistant", _text("A million.")),
]
_NAMED = {"tool_name": "population", "tool_call_id": "a"}
PYDANTIC_AI: list[dict[str, Any]] = [
    {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "How many people live in Köln?"}]},
    {"kind": "response", "parts": [{"part_kind": "thinking", "content": "hm"}]},
    {"kind": "response", "parts": [{"part_kind": "tool-call", "args": "{}", **_NAMED}]},
    {"kind": "request", "parts": [{"part_kind": "tool-return", "content": "1087353", **_NAMED}]},
    {"kind": "response", "parts": [{"part_kind": "text", "content": "A million."}]},
]
WRITTEN: dict[str, list[ChatMessage]] = {
    "responses": [responses_items.message(item) for item in RESPONSES],
    "langchain": [langchain_items.message(item) for item in LANGCHAIN],
    "llama_index": list(llama_index.with_items(LLAMA_INDEX)),
    "pydantic_ai": [row for item in PYDANTIC_AI for row in pydantic_ai.rows(item)],
}

Told = list[tuple[str, str | None]]


def _of_responses(items: list[Any]) -> Told:
    return [
        (item.get("type", "message"), item.get("content") or item.get("output") or item.get("name")) for item in items
    ]


def _of_langchain(messages: list[BaseMessage]) -> Told:
    return [
        (message.type, message.text or "".join(call["name"] for call in getattr(message, "tool_calls", ())))
        for message in messages
    ]


def _of_llama_index(messages: list[LlamaMessage]) -> Told:
    return [
        (message.role.value, message.content or getattr(message.blocks[0], "tool_name", "")) for message in messages
    ]


def _of_pydantic_ai(messages: list[ModelMessage]) -> Told:
    parts = [part for message in messages for part in message.parts]
    return [(part.part_kind, getattr(part, "content", "") or getattr(part, "tool_name", "")) for part in parts]


def _texts(question: str, call: str, result: str, answer: str) -> Told:
    return [
        (question, "How many people live in Köln?"),
        (call, "population"),
        (result, "1087353"),
        (answer, "A million."),
    ]


READ: dict[str, tuple[Callable[[SessionHandle, Any], Told], Told]] = {
    "responses": (
        lambda session, view: _of_responses(async_to_sync(ConvMemorySession(session.key, view=view).get_items)()),
        _texts("message", "function_call", "function_call_output", "message"),
    ),
    "langchain": (
        lambda session, view: _of_langchain(ConvMemoryChatMessageHistory(session.key, view=view).messages),
        _texts("human", "ai", "tool", "ai"),
    ),
    "llama_index": (
        lambda session, view: _of_llama_index(
            ConvMemory(session.key).get() if view == "context" else ConvMemory(session.key).get_all()
        ),
        _texts("user", "assistant", "tool", "assistant"),
    ),
    "pydantic_ai": (
        lambda session, view: _of_pydantic_ai(message_history(session, view=view)),
        _texts("user-prompt", "tool-call", "tool-return", "text"),
    ),
}


@pytest.mark.parametrize("view", ["context", "history"])
@pytest.mark.parametrize(("writer", "reader"), list(itertools.permutations(WRITTEN, 2)))
def test_a_session_of_another_framework_is_read(writer: str, reader: str, view: str) -> None:
    session = memories["default"].session(next(_keys))
    session.append(*WRITTEN[writer])

    read, expected = READ[reader]

    assert read(session, view) == expected


def test_the_last_item_of_another_framework_is_popped() -> None:
    session = memories["default"].session(next(_keys))
    session.append(*WRITTEN["langchain"])

    popped = async_to_sync(ConvMemorySession(session.key).pop_item)()

    assert popped == {"type": "message", "role": "assistant", "content": "A million."}


# What a tool of each framework returns, and what a user says with a file. Each with how it is stored.
DATA = base64.b64encode(b"\xff" * 300_000).decode()
UNCLEAN = "9 \0€ \ud83d"
# A tree that a tool returns, and a number.
TREE: list[Any] = [UNCLEAN]
for _ in range(100):
    TREE = [TREE]
UNCLEAN_DATA = [UNCLEAN, TREE, 10**5000]


def _add_langchain(session: SessionHandle, *messages: BaseMessage) -> None:
    ConvMemoryChatMessageHistory(session.key).add_messages(messages)


def _add_responses(session: SessionHandle, *items: Any) -> None:
    async_to_sync(ConvMemorySession(session.key).add_items)(list(items))


def _add_llama(session: SessionHandle, *messages: LlamaMessage) -> None:
    ConvMemory(session.key).put_messages(messages)


def _add_pydantic(session: SessionHandle, *messages: ModelMessage) -> None:
    pydantic_ai.append_messages(session, messages)


UNCLEAN_TURNS: dict[str, Callable[[SessionHandle], None]] = {
    "langchain": lambda session: _add_langchain(
        session,
        AIMessage("", tool_calls=[{"name": "look_up", "args": {}, "id": "a"}]),
        ToolMessage(UNCLEAN, tool_call_id="a", artifact={UNCLEAN: UNCLEAN_DATA}),
    ),
    "responses": lambda session: _add_responses(
        session,
        {"type": "function_call", "call_id": "a", **CALL},
        {"type": "function_call_output", "call_id": "a", "output": UNCLEAN, "more": UNCLEAN_DATA},
    ),
    "llama_index": lambda session: _add_llama(
        session,
        LlamaMessage(role="assistant", blocks=[ToolCallBlock(tool_call_id="a", tool_name="f", tool_kwargs={})]),
        LlamaMessage(role="tool", content=UNCLEAN, additional_kwargs={"tool_call_id": "a", "more": UNCLEAN_DATA}),
    ),
    "pydantic_ai": lambda session: _add_pydantic(
        session,
        ModelResponse([ToolCallPart("f", {}, "a")]),
        ModelRequest([ToolReturnPart("f", UNCLEAN, "a"), ToolReturnPart("f", {"more": UNCLEAN_DATA}, "a")]),
    ),
}


@pytest.mark.parametrize("framework", UNCLEAN_TURNS)
def test_what_no_database_stores_is_replaced_because_the_tool_has_run(framework: str) -> None:
    session = memories["default"].session(next(_keys))

    UNCLEAN_TURNS[framework](session)

    read, _ = READ[framework]
    assert session.history()[1].message.text == "9 € \ufffd"
    assert "9 € \ufffd" in repr(read(session, "context"))


# The word of LangChain, and ours, for a file.
WORDS = {"image/png": ("image", "image"), "application/pdf": ("file", "document"), "audio/wav": ("audio", "audio")}
FILES: dict[str, Callable[[SessionHandle, str], None]] = {
    "langchain": lambda session, mime_type: _add_langchain(
        session, HumanMessage([{"type": WORDS[mime_type][0], "base64": DATA, "mime_type": mime_type}])
    ),
    "llama_index": lambda session, mime_type: _add_llama(session, LlamaMessage(blocks=[_llama_file(mime_type)])),
    "pydantic_ai": lambda session, mime_type: _add_pydantic(
        session, ModelRequest([UserPromptPart([BinaryContent(base64.b64decode(DATA), media_type=mime_type)])])
    ),
}
COSTS = {"image/png": IMAGE, "application/pdf": 6000, "audio/wav": 187}


def _llama_file(mime_type: str) -> Any:
    data = base64.b64decode(DATA)
    if mime_type.startswith("image/"):
        return ImageBlock(image=data)
    return AudioBlock(audio=data) if mime_type.startswith("audio/") else DocumentBlock(data=data)


@pytest.mark.parametrize("mime_type", COSTS)
@pytest.mark.parametrize("framework", FILES)
def test_a_file_counts_what_it_costs_and_is_sent_without_its_content_by_nobody(framework: str, mime_type: str) -> None:
    session = memories["default"].session(next(_keys))
    cost = COSTS[mime_type]

    FILES[framework](session, mime_type)

    [stored] = session.history()
    context = session.load()
    form = WORDS[mime_type][1]
    text = {"type": "text", "text": f"[{form}]"}
    assert cost <= stored.tokens <= cost + 10
    assert stored.message.to_openai() == {"role": "user", "content": [text]}
    assert context.to_openai() == [{"role": "user", "content": [text]}]
    assert context.to_anthropic() == {"messages": [{"role": "user", "content": [text]}]}
    assert context.to_responses() == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"[{form}]"}]}
    ]
    for read, _ in [READ[reader] for reader in READ if reader != framework]:
        assert "size" not in repr(read(session, "context"))
    # An other framework is given its word only.
    made = ConvMemoryChatMessageHistory(session.key).messages[0].content
    assert framework == "langchain" or made == [text]


THOUGHTS: dict[str, Callable[[SessionHandle], None]] = {
    "langchain": lambda session: _add_langchain(
        session,
        AIMessage([{"type": "thinking", "thinking": "secret", "signature": "s"}]),
        AIMessage([{"type": "thinking", "thinking": "secret", "signature": "s"}, {"type": "text", "text": "At nine."}]),
    ),
    "responses": lambda session: _add_responses(session, THOUGHT, {"role": "assistant", "content": "At nine."}),
    "llama_index": lambda session: _add_llama(
        session,
        LlamaMessage(role="assistant", blocks=[ThinkingBlock(content="secret")]),
        LlamaMessage(role="assistant", blocks=[ThinkingBlock(content="secret"), TextBlock(text="At nine.")]),
    ),
    "pydantic_ai": lambda session: _add_pydantic(
        session,
        ModelResponse([ThinkingPart("secret", signature="s", provider_name="anthropic")]),
        ModelResponse([ThinkingPart("secret", signature="s", provider_name="anthropic"), TextPart("At nine.")]),
    ),
}


@pytest.mark.parametrize("framework", THOUGHTS)
def test_a_thought_is_given_to_its_own_framework_only(framework: str) -> None:
    session = memories["default"].session(next(_keys))

    THOUGHTS[framework](session)

    thought, answer = [stored.message.to_openai() for stored in session.history()]
    context = session.load()
    assert (thought["content"], answer["content"]) == ("[reasoning]", "At nine.")
    assert context.to_openai() == [{"role": "assistant", "content": "At nine."}]
    assert [len(context.to_anthropic()["messages"]), len(context.to_responses())] == [3, 1]
    for read, _ in [READ[reader] for reader in READ if reader != framework]:
        [(_, text)] = read(session, "context")
        assert text == "At nine."
    session.redact(1)
    for read, _ in READ.values():
        assert all(text for _, text in read(session, "history"))
